"""What the admin API gives of the ledger. Counts are exact integers, money an exact decimal text of the
currency's unit beside the same in nano-units.
"""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from msgspec import Struct

from antiphon.domain.ledger import Entry
from antiphon.domain.money import decimal
from antiphon.domain.reports import Dimension, Group, Mean, Totals
from antiphon.http.admin.shapes import Page

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DECIMALS = 3
"""Of a mean of milliseconds."""


class TotalsCard(Struct, frozen=True, kw_only=True):
    """Sums over entries of the ledger. `failed` ended with an error, `aborted` with the process; for
    `unpriced` ones no price held, so that their cost is not known and counts as none. Means are of the
    entries that have the figure; null where none has."""

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
    """The sums of the entries that say the same. `by`: what they say, by dimension; of `hour`, `day`, `week`
    and `month` the Unix second in which it begins, in UTC."""

    by: dict[str, str | int | None]


class UsageReport(Struct, frozen=True, kw_only=True):
    """Sums of the entries that began from `since` on and before `until` (Unix seconds). `more`: whether there
    are groups beyond `data`; `total` counts them too."""

    object: Literal["usage"] = "usage"
    since: int
    until: int
    by: list[str]
    currency: str | None
    total: TotalsCard
    data: list[GroupCard]
    more: bool


class EntryCard(Struct, frozen=True, kw_only=True):
    """One generation. `at_ms` is the Unix millisecond in which it began, `time` the same moment in ISO 8601;
    `source` says who counted the tokens; `price` is the id of the price that `cost` was reckoned by."""

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


class EntryPage(Page, frozen=True, kw_only=True):
    """Entries, the earliest first."""

    data: list[EntryCard]


def totals_card(totals: Totals) -> TotalsCard:
    """Totals as they are shown."""
    return TotalsCard(**_said(totals))


def group_card(group: Group, by: tuple[Dimension, ...]) -> GroupCard:
    """A group as it is shown."""
    return GroupCard(by=dict(zip(map(str, by), group.values, strict=True)), **_said(group.totals))


def entry_card(entry: Entry) -> EntryCard:
    """An entry as it is shown."""
    return EntryCard(
        id=entry.id,
        request_id=entry.request_id,
        parent=entry.parent,
        at_ms=entry.at,
        time=_moment(entry.at),
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
        cost=decimal(entry.cost),
        cost_nano=entry.cost,
        currency=entry.currency,
        queue_ms=entry.queue_ms,
        ttft_ms=entry.ttft_ms,
        total_ms=entry.total_ms,
        tags=dict(entry.tags),
    )


def _said(totals: Totals) -> dict[str, Any]:
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
        "cost": decimal(totals.cost),
        "cost_nano": totals.cost,
        "mean_queue_ms": _mean(totals.queue_ms),
        "mean_ttft_ms": _mean(totals.ttft_ms),
        "mean_total_ms": _mean(totals.total_ms),
    }


def _mean(mean: Mean) -> float | None:
    return None if mean.value is None else round(mean.value, DECIMALS)


def _moment(milliseconds: int) -> str:
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
