"""The wire types of usage: sums over the ledger and its entries, as JSON and as lines of files.

Counts are exact integers. Money is an exact decimal text in the currency's unit, and also an integer of
nano-units. A CSV file contains no formulas of a spreadsheet.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

import msgspec
from msgspec import Struct

from antiphon.domain.ledger import Dimension, Entry, Mean, ReportGroup, UsageTotals
from antiphon.domain.prices import format_decimal
from antiphon.http.admin.resource import ListPage

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


MEAN_DECIMALS = 3
"""Decimals of a mean of milliseconds."""


FORMULA_STARTS = frozenset("=+-@\uff1d\uff0b\uff0d\uff20")
"""The first characters of a spreadsheet's formula, in half and full width."""


TEXT_QUOTE = "'"
"""The prefix that makes a spreadsheet treat a cell as text. The spreadsheet does not show it."""


class FileFormat(StrEnum):
    """The formats of a response about usage."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"


class TotalsCard(Struct, frozen=True, kw_only=True):
    """Sums over entries of the ledger. `failed` ended with an error, and `aborted` ended with the process. No
    price applied to `unpriced` entries, so their cost is unknown and counts as zero. Each mean covers the
    entries that have the value, and is null if none has it."""

    requests: int
    ok: int
    cancelled: int
    aborted: int
    failed: int
    unpriced: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    cost: str
    cost_nano: int
    mean_queue_ms: float | None
    mean_ttft_ms: float | None
    mean_total_ms: float | None


class GroupCard(TotalsCard, frozen=True, kw_only=True):
    """The sums of entries with the same values. `by` contains these values by dimension. The value of `hour`,
    `day`, `week` and `month` is the Unix second of its start in UTC."""

    by: dict[str, str | int | None]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Sums of the entries that began at or after `since` and before `until` (Unix seconds). `more`: whether
    there are groups beyond `data`; `total` counts them too."""

    object: Literal["usage"] = "usage"
    since: int
    until: int
    by: list[str]
    currency: str | None
    total: TotalsCard
    data: list[GroupCard]
    more: bool


class RouteTryCard(Struct, frozen=True, kw_only=True):
    """One route that a request tried. `error` is null if the route served the request. `ms` is the time until
    its first event, or until the error."""

    route: str
    error: str | None
    ms: int


class EntryCard(Struct, frozen=True, kw_only=True):
    """One generation. `at_ms` is its start in Unix milliseconds, and `time` is the same in ISO 8601. `source`
    says who counted the tokens. `price` is the id of the price that determined `cost`."""

    object: Literal["ledger_entry"] = "ledger_entry"
    id: str
    request_id: str
    parent: str | None
    at_ms: int
    time: str
    project: str
    user: str | None
    key: str
    end_user: str | None
    dialect: str
    operation: str
    asked: str
    model: str
    adapter: str | None
    engine: str
    attempts: int
    status: str
    source: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    price: str | None
    cost: str
    cost_nano: int
    currency: str
    queue_ms: int | None
    ttft_ms: int | None
    total_ms: int | None
    tags: dict[str, str]
    routes: list[RouteTryCard]


class EntryPage(ListPage, frozen=True, kw_only=True):
    """Entries, the earliest first."""

    data: list[EntryCard]


_DECODE_ROUTES = msgspec.json.Decoder(list[RouteTryCard]).decode


def build_totals_card(totals: UsageTotals) -> TotalsCard:
    return TotalsCard(**_list_totals(totals))


def build_group_card(group: ReportGroup, dimensions: tuple[Dimension, ...]) -> GroupCard:
    return GroupCard(
        by=dict(zip(map(str, dimensions), group.values, strict=True)), **_list_totals(group.totals)
    )


def _list_totals(totals: UsageTotals) -> dict[str, Any]:
    """Returns the fields of a card of totals."""
    return {
        "requests": totals.requests,
        "ok": totals.ok,
        "cancelled": totals.cancelled,
        "aborted": totals.aborted,
        "failed": totals.failed,
        "unpriced": totals.unpriced,
        "prompt_tokens": totals.prompt_tokens,
        "cached_tokens": totals.cached_tokens,
        "output_tokens": totals.output_tokens,
        "reasoning_tokens": totals.reasoning_tokens,
        "cost": format_decimal(totals.cost),
        "cost_nano": totals.cost,
        "mean_queue_ms": _round_mean(totals.queue_ms),
        "mean_ttft_ms": _round_mean(totals.ttft_ms),
        "mean_total_ms": _round_mean(totals.total_ms),
    }


def _round_mean(mean: Mean) -> float | None:
    """Returns the mean with few decimals, or None if there is none."""
    return None if mean.value is None else round(mean.value, MEAN_DECIMALS)


def build_entry_card(entry: Entry) -> EntryCard:
    start = EPOCH + timedelta(milliseconds=entry.at)
    return EntryCard(
        id=entry.id,
        request_id=entry.request_id,
        parent=entry.parent,
        at_ms=entry.at,
        time=start.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        project=entry.project,
        user=entry.user,
        key=entry.key,
        end_user=entry.end_user,
        dialect=entry.dialect,
        operation=entry.operation,
        asked=entry.asked,
        model=entry.model,
        adapter=entry.adapter,
        engine=entry.engine,
        attempts=entry.attempts,
        status=entry.status,
        source=entry.source,
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=entry.cached_tokens,
        output_tokens=entry.output_tokens,
        reasoning_tokens=entry.reasoning_tokens,
        price=entry.price,
        cost=format_decimal(entry.cost),
        cost_nano=entry.cost,
        currency=entry.currency,
        queue_ms=entry.queue_ms,
        ttft_ms=entry.ttft_ms,
        total_ms=entry.total_ms,
        tags=dict(entry.tags),
        routes=_DECODE_ROUTES(entry.routes) if entry.routes else [],
    )


def list_columns(card: type[Struct]) -> tuple[str, ...]:
    """Returns the fields of a card as columns, without the constant `object`."""
    return tuple(name for name in card.__struct_fields__ if name != "object")


def encode_rows(cards: Sequence[Struct], columns: Sequence[str], file_format: FileFormat) -> bytes:
    """Encodes cards as lines of CSV or JSON. `columns` are the columns of CSV, in order."""
    if file_format is not FileFormat.CSV:
        return b"".join(msgspec.json.encode(card) + b"\n" for card in cards)
    rows = [msgspec.structs.asdict(card) for card in cards]
    return encode_csv([row.get("by", {}) | row for row in rows], columns)


def encode_header(columns: Sequence[str]) -> bytes:
    """Encodes the first line of a CSV file."""
    return encode_csv([dict(zip(columns, columns, strict=True))], columns)


def encode_csv(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> bytes:
    """Encodes rows as CSV (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([format_cell(row[name]) for name in columns] for row in rows)
    return text.getvalue().encode("utf-8", "replace")


def format_cell(value: object) -> str:
    """Formats a value as a cell of CSV. A quote precedes a text that a spreadsheet could run as a formula.
    Such a text begins, after blanks, with a formula's first character or a control character."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return str(value) if isinstance(value, int | float) else msgspec.json.encode(value).decode()
    first_character = value.lstrip(" \u00a0\u3000")[:1]
    is_formula = (
        first_character in FORMULA_STARTS
        or (first_character < " " and first_character)
        or first_character == "\x7f"
    )
    return TEXT_QUOTE + value if is_formula else value
