"""Keys: wire types, handlers and endpoints."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import EXPECTED, decode_json
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import Request, Response
from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.tenancy import PATH_PATTERN, Grant, Key, KeyKind
from antiphon.domain.values import replace
from antiphon.http.admin.limits import Amount, LimitCard, build_limit_card
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon.http.admin.resource import (
    CREATED,
    Id,
    ListPage,
    Moment,
    Note,
    Pattern,
    answer_json,
    answer_page,
    declare_endpoint,
    declare_paging,
)
from antiphon.http.admin.tenants import EmptyBody
from antiphon.services.policy import MAX_LIMITS, KeyRequest, LimitRequest
from antiphon.services.tenancy import IssuedKey, TenancyService

YEAR = 366 * 24 * 3600

MAX_PATTERNS = 100

Patterns = Annotated[list[Pattern], Meta(max_length=MAX_PATTERNS)]

PathPattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=300,
        pattern=PATH_PATTERN,
        extra={EXPECTED: "a path pattern, which begins with / or *"},
    ),
]

PathPatterns = Annotated[list[PathPattern], Meta(max_length=MAX_PATTERNS)]

Overlap = Annotated[int, Meta(ge=0, le=YEAR)]


class KeyLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit of a new key. The fields are those of NewLimit without subject and target."""

    measure: Measure
    amount: Amount
    window: Window | None = None
    models: Pattern | None = None
    note: Note = ""

    def to_request(self) -> LimitRequest:
        return LimitRequest(Subject.KEY, "", self.measure, self.amount, self.window, self.models, self.note)


KeyLimits = Annotated[list[KeyLimit], Meta(max_length=MAX_LIMITS)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to create. `models` and `endpoints` are patterns, with `*` for any run of characters; null means
    all. `limits` apply from the key's first request on. Key and limits are created together, or nothing is
    created."""

    kind: KeyKind
    project: Id | None = None
    user: Id | None = None
    models: Patterns | None = None
    endpoints: PathPatterns | None = None
    limits: KeyLimits = msgspec.field(default_factory=list)
    expires_at: Moment | None = None
    note: Note = ""

    def to_request(self) -> KeyRequest:
        grant = Grant(_freeze_patterns(self.models), _freeze_patterns(self.endpoints))
        limits = tuple(limit.to_request() for limit in self.limits)
        return KeyRequest(self.kind, self.project, self.user, grant, self.expires_at, self.note, limits)


class KeyChange(Struct, frozen=True, forbid_unknown_fields=True):
    """The fields to change; others stay. With an `expires_at` of null the key never expires."""

    note: Note | None = None
    models: Patterns | UnsetType | None = UNSET
    endpoints: PathPatterns | UnsetType | None = UNSET
    expires_at: Moment | UnsetType | None = UNSET

    def apply_to(self, key: Key) -> Key:
        grant = Grant(
            key.grant.models if self.models is UNSET else _freeze_patterns(self.models),
            key.grant.endpoints if self.endpoints is UNSET else _freeze_patterns(self.endpoints),
        )
        return replace(
            key,
            note=key.note if self.note is None else self.note,
            grant=grant,
            expires=key.expires if self.expires_at is UNSET else self.expires_at,
        )


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """For how many seconds the old key is still accepted."""

    overlap: Overlap = 0


class KeyCard(Struct, frozen=True, kw_only=True):
    """A key, without its secret. `limits` are the limits of the key's family: all keys that were rotated from
    the same key. `family` is the id of the family's first key. Limits of its user, its project and the models
    apply too. `warnings` is present if a change of the key causes warnings about its models."""

    object: Literal["key"] = "key"
    id: str
    kind: KeyKind
    prefix: str
    project: str | None
    user: str | None
    models: list[str] | None
    endpoints: list[str] | None
    limits: list[LimitCard]
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    note: str
    family: str | None
    warnings: list[str] | UnsetType = UNSET


class NewKeyCard(KeyCard, frozen=True, kw_only=True):
    """A new key. `secret` is the key itself, which is shown only this once."""

    secret: str


class KeyPage(ListPage, frozen=True, kw_only=True):
    """Keys, the oldest first."""

    data: list[KeyCard]


class KeyResource:
    """The handlers of keys."""

    def __init__(self, tenants: TenancyService, warnings: ModelWarnings) -> None:
        self._tenants = tenants
        self._warnings = warnings

    def endpoints(self) -> Iterator[Endpoint]:
        path = "/keys/{key}"
        yield declare_endpoint(
            "GET",
            "/keys",
            self.list_keys,
            "Keys that the caller can see",
            gives=KeyPage,
            query=declare_paging(),
        )
        yield declare_endpoint(
            "POST",
            "/keys",
            self.add_key,
            "Create a key; its secret is shown only once",
            body=NewKey,
            gives=NewKeyCard,
            status=CREATED,
        )
        yield declare_endpoint("GET", path, self.show_key, "One key", gives=KeyCard)
        yield declare_endpoint(
            "PATCH",
            path,
            self.change_key,
            "Change the note, the allowed models and endpoints, or the expiry",
            body=KeyChange,
            gives=KeyCard,
        )
        yield declare_endpoint(
            "POST",
            f"{path}/rotate",
            self.rotate_key,
            "Create a successor of a key",
            body=Rotation,
            gives=NewKeyCard,
            status=CREATED,
        )
        yield declare_endpoint(
            "POST", f"{path}/revoke", self.revoke_key, "End a key now", body=EmptyBody, gives=KeyCard
        )
        yield declare_endpoint("DELETE", path, self.end_key, "End a key now", gives=KeyCard)

    async def list_keys(self, request: Request) -> Response:
        keys: list[Key] = self._tenants.list_keys(request.actor)
        limits = self._tenants.list_limits(keys)
        return answer_page(request, [(key.id, build_key_card(key, limits[key.id])) for key in keys], KeyPage)

    async def show_key(self, request: Request) -> Response:
        return self._answer_key(self._tenants.get_key(request.actor, request.path_params["key"]))

    async def add_key(self, request: Request) -> Response:
        key_request = decode_json(request.body, NewKey).to_request()
        actor = request.actor
        issued = await self._tenants.add_key(actor, key_request)
        return answer_json(
            build_new_key_card(issued, self._warnings.warn_of_key(actor, issued.key, issued.limits)), 201
        )

    async def change_key(self, request: Request) -> Response:
        body = decode_json(request.body, KeyChange)
        id_, actor = request.path_params["key"], request.actor
        changed = await self._tenants.change_key(actor, id_, body.apply_to)
        return self._answer_key(changed, self._warnings.warn_of_key(actor, changed))

    async def rotate_key(self, request: Request) -> Response:
        """Creates a successor. The old key ends after the overlap."""
        overlap = decode_json(request.body, Rotation).overlap
        issued = await self._tenants.rotate_key(request.actor, request.path_params["key"], overlap)
        return answer_json(build_new_key_card(issued), 201)

    async def revoke_key(self, request: Request) -> Response:
        decode_json(request.body, EmptyBody)
        return await self.end_key(request)

    async def end_key(self, request: Request) -> Response:
        """Ends a key now. The request has no body."""
        return self._answer_key(await self._tenants.revoke_key(request.actor, request.path_params["key"]))

    def _answer_key(self, key: Key, warnings: Sequence[str] = ()) -> Response:
        """Answers with the card of a key and its limits."""
        return answer_json(build_key_card(key, self._tenants.list_limits([key])[key.id], warnings))


def build_key_card(key: Key, limits: Iterable[Limit], warnings: Sequence[str] = ()) -> KeyCard:
    grant = key.grant
    return KeyCard(
        id=key.id,
        kind=key.kind,
        prefix=key.prefix,
        project=key.project,
        user=key.user,
        models=None if grant.models is None else list(grant.models),
        endpoints=None if grant.endpoints is None else list(grant.endpoints),
        limits=[build_limit_card(limit) for limit in limits],
        created_at=key.created,
        created_by=key.creator,
        expires_at=key.expires,
        revoked_at=key.revoked,
        note=key.note,
        family=key.family,
        warnings=list(warnings) or UNSET,
    )


def build_new_key_card(issued: IssuedKey, warnings: Sequence[str] = ()) -> NewKeyCard:
    fields = msgspec.structs.asdict(build_key_card(issued.key, issued.limits, warnings))
    return NewKeyCard(**fields, secret=issued.secret)


def _freeze_patterns(patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Converts patterns to a tuple, as `Grant` stores them."""
    return None if patterns is None else tuple(patterns)
