"""The caller of a request, and its permissions."""

from collections.abc import Iterable
from enum import StrEnum

from antiphon.domain.tenancy import DEFAULT_PROJECT, EVERYTHING, Grant
from antiphon.domain.values import Value


class ActorKind(StrEnum):
    """How the caller was identified."""

    ANONYMOUS = "anonymous"
    """A local caller of a server that has no key configured."""
    SERVICE_KEY = "service_key"
    """The bearer of a project's key, or of the key in ANTIPHON_API_KEY."""
    USER = "user"
    """A user who sends an access token."""
    ADMIN = "admin"
    """The operator."""


class Right(StrEnum):
    """The permission that a route needs."""

    READ = "read"
    """See models and token ids."""
    GENERATE = "generate"
    """Generate text or vectors."""
    WRITE = "write"
    """Change knowledge tables."""
    ADAPT = "adapt"
    """Load and unload adapters."""
    OBSERVE = "observe"
    """See the numbers of the whole server."""
    MANAGE = "manage"
    """Manage keys and members, at least of one's own project."""


READER_RIGHTS = frozenset({Right.READ, Right.MANAGE})
WRITER_RIGHTS = frozenset({Right.READ, Right.GENERATE, Right.WRITE, Right.MANAGE})
SERVICE_RIGHTS = frozenset({Right.READ, Right.GENERATE})
LOCAL_RIGHTS = frozenset({Right.READ, Right.GENERATE, Right.WRITE, Right.ADAPT, Right.OBSERVE})
EVERY_RIGHT = frozenset(Right)

KNOWLEDGE = "/knowledge"
"""The text in a path that names knowledge tables."""

LORA = "lora"
"""The text in a path that names adapters."""


class Actor(Value, frozen=True):
    """The caller of one request, as a verifier established it."""

    kind: ActorKind
    id: str
    """A stable and public id. It is safe to log, and never contains a part of the credential."""
    project: str = DEFAULT_PROJECT
    """The project to which the usage is charged. Prompts of one project share the engines' prefix caches."""
    user: str | None = None
    """The user for whom the caller acts, if known."""
    rights: frozenset[Right] = LOCAL_RIGHTS
    grant: Grant = EVERYTHING
    """The models and paths that the key allows."""
    is_bound: bool = False
    """Whether the key is valid for its project only, and for no other project of its user."""
    expires: int | None = None
    """Unix seconds when the key ends; None if it does not end."""
    client: str | None = None
    """The address of the client, for the log and the audit. Nothing that the caller may do depends on it."""

    @property
    def admin(self) -> bool:
        """Whether the caller is the operator."""
        return self.kind is ActorKind.ADMIN

    @property
    def caller(self) -> str:
        """The id under which queues count the caller: the user if an access token was sent, and the key if
        not."""
        return self.user if self.kind is ActorKind.USER and self.user else self.id

    def may_use(self, model: str) -> bool:
        """Whether the key allows this model."""
        return self.grant.models is None or matches(self.grant.models, model)

    def may_call(self, path: str) -> bool:
        """Whether the key allows this path."""
        return self.grant.endpoints is None or matches(self.grant.endpoints, path)

    def may_write(self, path: str) -> bool:
        """Whether the caller can change knowledge tables at this path. A service key is for inference by
        default. It can change tables only if one of its path patterns names knowledge and matches the
        path."""
        return Right.WRITE in self.rights or self._is_granted_by_name(KNOWLEDGE, path)

    def may_adapt(self, path: str) -> bool:
        """Whether the caller can load and unload adapters at this path. A service key can only if one of its
        path patterns names adapters and matches the path. Its adapters belong to its project."""
        return Right.ADAPT in self.rights or self._is_granted_by_name(LORA, path)

    @property
    def adapter_owner(self) -> str | None:
        """The project of the adapters that the caller loads; None for the operator's adapters."""
        return None if Right.ADAPT in self.rights else self.project

    def _is_granted_by_name(self, name: str, path: str) -> bool:
        """Whether the key is a service key, and one of its path patterns contains `name` and matches the
        path."""
        naming_patterns = [pattern for pattern in self.grant.endpoints or () if name in pattern]
        return self.kind is ActorKind.SERVICE_KEY and matches(naming_patterns, path)


LOCAL_ANONYMOUS = Actor(ActorKind.ANONYMOUS, "anonymous")


def matches(patterns: Iterable[str], text: str) -> bool:
    """Whether any pattern matches the whole text. `*` in a pattern matches any characters."""
    return any(_matches(pattern.split("*"), text) for pattern in patterns)


def _matches(pieces: list[str], text: str) -> bool:
    """Whether the text consists of the pieces between the pattern's stars, in this order, with any characters
    between two pieces. Taking the first occurrence of each piece is enough."""
    prefix, *more_pieces = pieces
    if not more_pieces:
        return text == prefix
    *inner_pieces, suffix = more_pieces
    if not text.startswith(prefix) or not text.endswith(suffix):
        return False
    start, end = len(prefix), len(text) - len(suffix)
    for piece in inner_pieces:
        position = text.find(piece, start, end) if start <= end else -1
        if position < 0:
            return False
        start = position + len(piece)
    return start <= end


def is_within(narrow: Grant, wide: Grant) -> bool:
    """Whether the grant `wide` allows everything that the grant `narrow` allows."""
    return _covers(wide.models, narrow.models) and _covers(wide.endpoints, narrow.endpoints)


def _covers(wide: tuple[str, ...] | None, narrow: tuple[str, ...] | None) -> bool:
    """Whether `wide` allows everything that `narrow` allows: a pattern of `wide` matches the text of each
    pattern of `narrow`. None allows everything."""
    return wide is None or (narrow is not None and all(matches(wide, pattern) for pattern in narrow))
