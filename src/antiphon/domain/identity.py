"""Who calls, and what the caller may do."""

from collections.abc import Iterable
from enum import StrEnum

from antiphon.domain.tenancy import DEFAULT_PROJECT, EVERYTHING, Grant
from antiphon.domain.values import Value


class ActorKind(StrEnum):
    """How the caller is known."""

    ANONYMOUS = "anonymous"
    """A local caller of a server that has no key configured."""
    SERVICE_KEY = "service_key"
    """The bearer of a project's key, or of the one in ANTIPHON_API_KEY."""
    USER = "user"
    """A user, by an access token."""
    ADMIN = "admin"
    """The operator."""


class Right(StrEnum):
    """What a route asks of its caller."""

    READ = "read"
    """To see models and token ids."""
    GENERATE = "generate"
    """To have text or vectors made."""
    ADAPT = "adapt"
    """To load and unload adapters."""
    OBSERVE = "observe"
    """To see the numbers of the whole server."""
    MANAGE = "manage"
    """To manage keys and members, one's own project's at least."""


READER = frozenset({Right.READ, Right.MANAGE})
WRITER = frozenset({Right.READ, Right.GENERATE, Right.MANAGE})
SERVICE = frozenset({Right.READ, Right.GENERATE})
LOCAL = frozenset({Right.READ, Right.GENERATE, Right.ADAPT, Right.OBSERVE})
EVERY_RIGHT = frozenset(Right)


class Actor(Value, frozen=True):
    """The caller of one request, as a verifier established it."""

    kind: ActorKind
    id: str
    """Stable and public: safe to log, never the credential or a part of it."""
    project: str = DEFAULT_PROJECT
    """Whose prompts may share what the engines keep of them, and whose usage it is."""
    user: str | None = None
    """For whom it speaks, where that is known."""
    rights: frozenset[Right] = LOCAL
    grant: Grant = EVERYTHING
    """To which models and paths the key is confined."""
    bound: bool = False
    """Whether the key is for its project alone, and so for none other of its user's."""
    until: int | None = None
    """Unix seconds at which the key ends."""

    @property
    def admin(self) -> bool:
        """Whether the operator calls."""
        return self.kind is ActorKind.ADMIN

    @property
    def caller(self) -> str:
        """Who takes turns and leaves room as one: a user, whatever the tokens, else a key."""
        return self.user if self.kind is ActorKind.USER and self.user else self.id

    def may_use(self, model: str) -> bool:
        """Whether the key is for this model."""
        return self.grant.models is None or matches(self.grant.models, model)

    def may_call(self, path: str) -> bool:
        """Whether the key is for this path."""
        return self.grant.endpoints is None or matches(self.grant.endpoints, path)


LOCAL_ANONYMOUS = Actor(ActorKind.ANONYMOUS, "anonymous")


def matches(patterns: Iterable[str], text: str) -> bool:
    """Whether any pattern is the text; `*` stands for any run of characters."""
    return any(_matches(pattern.split("*"), text) for pattern in patterns)


def _matches(pieces: list[str], text: str) -> bool:
    """Each piece where it first comes after the one before: as good as any other place, and found at once."""
    first, *others = pieces
    if not others:
        return text == first
    *between, last = others
    if not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in between:
        found = text.find(piece, at, end) if at <= end else -1
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def is_within(narrow: Grant, wide: Grant) -> bool:
    """Whether everything that one grant allows the other does too."""
    return _covers(wide.models, narrow.models) and _covers(wide.endpoints, narrow.endpoints)


def _covers(wide: tuple[str, ...] | None, narrow: tuple[str, ...] | None) -> bool:
    """A pattern that another matches as a text allows no more than the other."""
    return wide is None or (narrow is not None and all(matches(wide, pattern) for pattern in narrow))
