"""What the admin API takes and gives of keys, as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.domain.limits import Limit, Measure, Subject, Window
from antiphon.domain.tenancy import Grant, Key, KeyKind
from antiphon.http.admin.shapes import Id, Moment, Note, Page, Pattern
from antiphon.http.admin.shapes_limits import Amount, LimitCard, limit_card
from antiphon.services.limit_validation import MOST_LIMITS, LimitRequest
from antiphon.services.policy import KeyRequest
from antiphon.services.tenancy import IssuedKey

YEAR = 366 * 24 * 3600
MAX_PATTERNS = 100

Patterns = Annotated[list[Pattern], Meta(max_length=MAX_PATTERNS)]
Overlap = Annotated[int, Meta(ge=0, le=YEAR)]


class KeyLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit of a key that is to be made: as NewLimit says it, of this key."""

    measure: Measure
    amount: Amount
    window: Window | None = None
    models: Pattern | None = None
    note: Note = ""

    def wanted(self) -> LimitRequest:
        """As the rules ask for it."""
        return LimitRequest(Subject.KEY, "", self.measure, self.amount, self.window, self.models, self.note)


KeyLimits = Annotated[list[KeyLimit], Meta(max_length=MOST_LIMITS)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key to make. `models` and `endpoints` are patterns, `*` for any run of characters; null is all.
    `limits` hold from the key's first request on: all of them are set with it, or nothing is made."""

    kind: KeyKind
    project: Id | None = None
    user: Id | None = None
    models: Patterns | None = None
    endpoints: Patterns | None = None
    limits: KeyLimits = msgspec.field(default_factory=list)
    expires_at: Moment | None = None
    note: Note = ""

    def wanted(self) -> KeyRequest:
        """As the rules ask for it."""
        grant = Grant(_patterns(self.models), _patterns(self.endpoints))
        limits = tuple(limit.wanted() for limit in self.limits)
        return KeyRequest(self.kind, self.project, self.user, grant, self.expires_at, self.note, limits)


class KeyChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be another; what is left out stays. An `expires_at` of null: it does not end by itself."""

    note: Note | None = None
    models: Patterns | UnsetType | None = UNSET
    endpoints: Patterns | UnsetType | None = UNSET
    expires_at: Moment | UnsetType | None = UNSET

    def changed(self, key: Key) -> Key:
        """The key from then on."""
        grant = Grant(
            key.grant.models if self.models is UNSET else _patterns(self.models),
            key.grant.endpoints if self.endpoints is UNSET else _patterns(self.endpoints),
        )
        return replace(
            key,
            note=key.note if self.note is None else self.note,
            grant=grant,
            expires=key.expires if self.expires_at is UNSET else self.expires_at,
        )


class Rotation(Struct, frozen=True, forbid_unknown_fields=True):
    """How long the old key is still accepted, in seconds."""

    overlap: Overlap = 0


class KeyCard(Struct, frozen=True, kw_only=True):
    """A key, without its secret. `limits` are those of the key, and of those it was rotated from or into:
    `family` is the id of the first of these. Limits of its user, its project and the models hold beside
    them. `warnings` is there where it was made or changed and something is to be said of its models."""

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
    """A key that was just made. `secret` is the key itself, shown this once."""

    secret: str


class KeyPage(Page, frozen=True, kw_only=True):
    """Keys, the oldest first."""

    data: list[KeyCard]


def key_card(key: Key, limits: Iterable[Limit], warnings: Sequence[str] = ()) -> KeyCard:
    """A key and its limits as they are shown."""
    grant = key.grant
    return KeyCard(
        id=key.id,
        kind=key.kind,
        prefix=key.prefix,
        project=key.project,
        user=key.user,
        models=None if grant.models is None else list(grant.models),
        endpoints=None if grant.endpoints is None else list(grant.endpoints),
        limits=[limit_card(limit) for limit in limits],
        created_at=key.created,
        created_by=key.creator,
        expires_at=key.expires,
        revoked_at=key.revoked,
        note=key.note,
        family=key.family,
        warnings=list(warnings) or UNSET,
    )


def made_card(made: IssuedKey, warnings: Sequence[str] = ()) -> NewKeyCard:
    """A new key as it is shown this once."""
    shown = msgspec.structs.asdict(key_card(made.key, made.limits, warnings))
    return NewKeyCard(**shown, secret=made.secret)


def _patterns(said: Sequence[str] | None) -> tuple[str, ...] | None:
    """As a grant holds them."""
    return None if said is None else tuple(said)
