"""Summaries of conversations, in a database."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from antiphon.domain.memory import KeptSummary
from antiphon.store import schema
from antiphon.store.database import Database
from antiphon.store.ledger import ABSENT
from antiphon.store.request_log import ignore_known, read_erasures

TABLE = schema.summaries

MOST_DIGESTS = 1_000
"""Digests of one statement."""


class SqlSummaries:
    """`store.base.SummaryStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, project: str, digests: Sequence[str], now: int) -> Mapping[str, str]:
        row = TABLE.c
        with self._database.reading() as connection:
            found: dict[str, str] = {}
            for begin in range(0, len(digests), MOST_DIGESTS):
                some = digests[begin : begin + MOST_DIGESTS]
                query = sa.select(row.digest, row.text).where(
                    row.project == project, row.digest.in_(some), row.expires > now
                )
                found |= {each.digest: each.text for each in connection.execute(query)}
        return found

    def keep(self, summary: KeptSummary, most: int) -> None:
        row = TABLE.c
        with self._database.writing() as connection:
            if summary.at <= read_erasures(connection, {summary.project}).get(summary.project, -1):
                return
            values = {
                "project": summary.project,
                "digest": summary.digest,
                "at": summary.at,
                "expires": summary.expires,
                "text": summary.text.translate(ABSENT),
            }
            # One that has expired, but is not removed yet, gives way.
            same = (row.project == summary.project, row.digest == summary.digest)
            connection.execute(TABLE.delete().where(*same, row.expires < summary.expires))
            connection.execute(ignore_known(TABLE, connection.dialect.name), values)
            # Parts that one request wrote are equally old, so the new one is kept whatever its digest.
            others = (row.project == summary.project, row.digest != summary.digest)
            latest = sa.select(row.digest).where(*others)
            latest = latest.order_by(row.at.desc(), row.digest).limit(most - 1)
            connection.execute(TABLE.delete().where(*others, row.digest.not_in(latest.scalar_subquery())))
