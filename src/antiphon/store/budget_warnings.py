"""Which warnings budgets gave, in a database: each row is one warning of one window."""

import sqlalchemy as sa

from antiphon.domain.limits import BudgetWarning
from antiphon.store import schema
from antiphon.store.database import Database

TABLE = schema.budget_warnings

KEPT_S = 100 * 86_400
"""Seconds for which a warning is remembered: longer than any window."""


class SqlWarnings:
    """`store.base.WarningStore` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, warning: BudgetWarning) -> bool:
        values = {"limit": warning.limit.id, "period": warning.begin, "share": str(warning.share)}
        try:
            with self._database.writing() as connection:
                connection.execute(TABLE.insert(), values | {"at": warning.at})
                connection.execute(TABLE.delete().where(TABLE.c.at < warning.at - KEPT_S))
        except sa.exc.IntegrityError:
            return False
        return True
