"""Limits and budgets: wire types, handlers and endpoints."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.domain.identity import Actor
from antiphon.domain.limits import Limit, LimitStatus, Measure, Subject, Window
from antiphon.domain.models import STAR
from antiphon.domain.prices import MAX_COST
from antiphon.engines.registry import ModelRegistry
from antiphon.errors import InvalidValue, ModelNotFound
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.resource import (
    CREATED,
    NO_CONTENT,
    ListPage,
    Name,
    Note,
    Pattern,
    answer_json,
    answer_page,
    declare_endpoint,
    declare_paging,
    declare_parameter,
    read_query,
)
from antiphon.services.limits import LimitService
from antiphon.services.policy import LimitRequest

Amount = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_COST})]
"""The schema has the largest maximum of all measures. The service checks each measure's own."""


FILTERS = ("subject", "target")


class NewLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to set: at most `amount` of `measure` in each `window`. Leave `window` out for `concurrent`.
    `target` is the id of a key, user or project, or the name of a model. For `cost`, `amount` is in
    nano-units of the currency; otherwise it is at most 2^53. `models` is a pattern of the models whose
    requests count; null means all."""

    subject: Subject
    target: Name
    measure: Measure
    amount: Amount
    window: Window | None = None
    models: Pattern | None = None
    note: Note = ""

    def to_request(self) -> LimitRequest:
        return LimitRequest(
            self.subject, self.target, self.measure, self.amount, self.window, self.models, self.note
        )


class LimitChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to change; others stay. To count something else, remove the limit and set another."""

    amount: Amount | None = None
    note: Note | None = None


class LimitCard(Struct, frozen=True, kw_only=True):
    """A limit. Times are Unix seconds. `warnings` is present if a change of the limit causes warnings about
    its models."""

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


class LimitStatusCard(LimitCard, frozen=True, kw_only=True):
    """A limit and its current state. `reset_seconds` is the time until the whole amount is available again,
    without further use."""

    remaining: int
    reset_seconds: float


class LimitPage(ListPage, frozen=True, kw_only=True):
    """Limits, the oldest first."""

    data: list[LimitCard]


class LimitResource:
    """The handlers of limits."""

    def __init__(self, limits: LimitService, models: ModelRegistry, warnings: ModelWarnings) -> None:
        self._limits = limits
        self._models = models
        self._warnings = warnings

    def endpoints(self) -> tuple[Endpoint, ...]:
        subject = declare_parameter("subject", {"type": "string", "enum": [*Subject]})
        path, query = "/limits/{limit}", declare_paging(subject, declare_parameter("target"))
        return (
            declare_endpoint(
                "GET",
                "/limits",
                self.list_limits,
                "Limits that the caller can see",
                gives=LimitPage,
                query=query,
            ),
            declare_endpoint(
                "POST",
                "/limits",
                self.add,
                "Set a limit or a budget",
                body=NewLimit,
                gives=LimitCard,
                status=CREATED,
            ),
            declare_endpoint(
                "GET", path, self.show_limit, "One limit and its current state", gives=LimitStatusCard
            ),
            declare_endpoint(
                "PATCH",
                path,
                self.change,
                "Change the amount or the note of a limit",
                body=LimitChange,
                gives=LimitCard,
            ),
            declare_endpoint("DELETE", path, self.remove, "Remove a limit", status=NO_CONTENT),
        )

    async def list_limits(self, request: Request) -> Response:
        """Lists the limits that the caller can see. The query can choose a subject or a target."""
        query = read_query(request, "limit", "after", *FILTERS)
        name = query.get("subject")
        if name is not None and name not in set(Subject):
            raise InvalidValue(f"subject must be {' or '.join(Subject)}", param="subject")
        subject = None if name is None else Subject(name)
        limits = self._limits.list_limits(request.actor, subject, query.get("target"))
        cards = [(limit.id, build_limit_card(limit)) for limit in limits]
        return answer_page(request, cards, LimitPage, *FILTERS, removable="limit")

    async def show_limit(self, request: Request) -> Response:
        status = await self._limits.get_status(request.actor, request.path_params["limit"])
        return answer_json(build_status_card(status))

    async def add(self, request: Request) -> Response:
        limit_request = decode_json(request.body, NewLimit).to_request()
        if limit_request.subject is Subject.MODEL:
            self._require_model(limit_request.target)
        return self._answer_limit(request.actor, await self._limits.add(request.actor, limit_request), 201)

    async def change(self, request: Request) -> Response:
        body = decode_json(request.body, LimitChange)
        changed = await self._limits.change(
            request.actor, request.path_params["limit"], body.amount, body.note
        )
        return self._answer_limit(request.actor, changed)

    async def remove(self, request: Request) -> Response:
        await self._limits.remove(request.actor, request.path_params["limit"])
        return Response(status=NO_CONTENT)

    def _answer_limit(self, actor: Actor, limit: Limit, status: int = 200) -> Response:
        """Answers with the card of a limit and warnings about its models."""
        return answer_json(build_limit_card(limit, self._warnings.warn_of_limits(actor, [limit])), status)

    def _require_model(self, name: str) -> None:
        """Raises InvalidValue unless the name is a model's own name. Requests count under the model's own
        name, so a limit of another name or of a pattern would count nothing."""
        if STAR in name:
            raise InvalidValue(
                "requests count for one model, so a limit of a pattern would count nothing: name one model, "
                "or limit a key, a project or a user, with the pattern in models",
                param="target",
            )
        try:
            model_name = self._models.get(name).name
        except ModelNotFound as unknown:
            raise InvalidValue(f"nothing would be counted: {unknown.message}", param="target") from None
        if model_name != name:
            raise InvalidValue(f"{name} is another name of {model_name}; limit {model_name}", param="target")


def build_limit_card(limit: Limit, warnings: Sequence[str] = ()) -> LimitCard:
    return LimitCard(**_list_limit_fields(limit), warnings=list(warnings) or UNSET)  # type: ignore[arg-type]


def build_status_card(status: LimitStatus) -> LimitStatusCard:
    usage_fields = {"remaining": status.remaining, "reset_seconds": round(status.reset, 3)}
    return LimitStatusCard(**_list_limit_fields(status.limit), **usage_fields)  # type: ignore[arg-type]


def _list_limit_fields(limit: Limit) -> dict[str, object]:
    """Returns the fields that the cards of a limit share."""
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
