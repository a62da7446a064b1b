"""What the admin API takes and gives of limits, as JSON."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.domain.limits import MAX_COST_UNITS, Limit, LimitStatus, Measure, Subject, Window
from antiphon.domain.money import NANO
from antiphon.http.admin.shapes import Name, Note, Page, Pattern
from antiphon.services.limit_validation import LimitRequest

Amount = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_COST_UNITS * NANO})]
"""How much is too much depends on the measure."""


class NewLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to set: so much of `measure` in `window` (left out for `concurrent`). `target` is the id of a
    key, user or project, or the name of a model; of `cost`, `amount` is in nano-units of the currency, else
    at most 2^53. `models` is a pattern of the models whose requests count; null is all."""

    subject: Subject
    target: Name
    measure: Measure
    amount: Amount
    window: Window | None = None
    models: Pattern | None = None
    note: Note = ""

    def wanted(self) -> LimitRequest:
        """As the rules ask for it."""
        return LimitRequest(
            self.subject, self.target, self.measure, self.amount, self.window, self.models, self.note
        )


class LimitChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be another; what is left out stays. What a limit counts does not change: remove it, and set
    another."""

    amount: Amount | None = None
    note: Note | None = None


class LimitCard(Struct, frozen=True, kw_only=True):
    """A limit. Times are Unix seconds. `warnings` is there where it was set or changed and something is to be
    said of its models."""

    object: Literal["limit"] = "limit"
    id: str
    subject: Subject
    target: str
    measure: Measure
    amount: int
    window: Window | None
    models: str | None
    created_at: int
    note: str
    warnings: list[str] | UnsetType = UNSET


class StandingLimit(LimitCard, frozen=True, kw_only=True):
    """A limit and how it stands now. `reset_seconds`: until all of it is there again, if nothing more is
    used."""

    remaining: int
    reset_seconds: float


class LimitPage(Page, frozen=True, kw_only=True):
    """Limits, the oldest first."""

    data: list[LimitCard]


def limit_card(limit: Limit, warnings: Sequence[str] = ()) -> LimitCard:
    """A limit as it is shown."""
    return LimitCard(**_shown(limit), warnings=list(warnings) or UNSET)  # type: ignore[arg-type]


def standing_card(standing: LimitStatus) -> StandingLimit:
    """A limit and how it stands, as it is shown."""
    left = {"remaining": standing.remaining, "reset_seconds": round(standing.reset, 3)}
    return StandingLimit(**_shown(standing.limit), **left)  # type: ignore[arg-type]


def _shown(limit: Limit) -> dict[str, object]:
    return {
        "id": limit.id,
        "subject": limit.subject,
        "target": limit.target,
        "measure": limit.measure,
        "amount": limit.amount,
        "window": limit.window,
        "models": limit.models,
        "created_at": limit.created,
        "note": limit.note,
    }
