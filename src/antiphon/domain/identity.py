"""Projects, users, memberships and keys, the rules for their names, and the caller of a request with its
permissions.
"""

from collections.abc import Iterable
from enum import StrEnum

from antiphon.domain.values import Struct, Value


class Redaction(StrEnum):
    """A kind of text that is removed before a request is stored."""

    KEY = "key"
    """API keys and tokens, Antiphon's and others'."""
    EMAIL = "email"
    CARD = "card"
    """Numbers of payment cards."""
    PHONE = "phone"
    ADDRESS = "address"
    """IP addresses."""


class RecordingPolicy(Struct, frozen=True):
    """How a project's requests are recorded: for how many days, and what is redacted."""

    days: int
    redact: tuple[Redaction, ...] = ()


class RecordedRequest(Struct, frozen=True):
    """One recorded request with its answer."""

    id: str
    """Id of its ledger entry."""
    project: str
    at: int
    """Unix milliseconds, as in its entry."""
    expires: int
    """Unix seconds when it is removed."""
    request: str
    """The body as it was sent."""
    answer: str
    """The choices as JSON, as far as they were generated."""


DEFAULT_PROJECT = "default"
"""Id of the project that always exists."""


class ProjectRole(StrEnum):
    """A user's role in a project."""

    OWNER = "owner"
    """Manages the project's members and keys, and generates."""
    MEMBER = "member"
    """Generates, and manages its own keys."""
    VIEWER = "viewer"
    """Reads only."""


class KeyKind(StrEnum):
    """The kind of a key: the party that it authenticates."""

    ACCESS_TOKEN = "access_token"
    """A user, in one project or in all of the user's projects."""
    SERVICE = "service"
    """A project, and any of its members that a request names."""
    ADMIN = "admin"
    """The operator, for everything."""


class Project(Struct, frozen=True):
    """The owner of keys, usage and knowledge."""

    id: str
    name: str
    """Unique, also among archived projects."""
    created: int
    """Unix seconds, as all times of projects, users and keys."""
    archived: int | None = None
    """The time from which its keys are refused; None if it is not archived."""
    note: str = ""
    recording: RecordingPolicy | None = None
    """How its requests are recorded; None if they are not recorded."""


class User(Struct, frozen=True):
    """A person."""

    id: str
    name: str
    created: int
    email: str | None = None
    """Unique."""
    disabled: int | None = None
    """The time from which the user's keys are refused; None if the user is not disabled."""
    note: str = ""


class Membership(Struct, frozen=True):
    """A user's role in a project."""

    project: str
    user: str
    role: ProjectRole
    created: int


class Grant(Struct, frozen=True):
    """The models and paths that a key allows. They restrict the permissions of its owner."""

    models: tuple[str, ...] | None = None
    """Patterns of model names, `*` for any characters; None is every model."""
    endpoints: tuple[str, ...] | None = None
    """Patterns of paths; None is every path except the operator's."""


EVERYTHING = Grant()


class Key(Struct, frozen=True):
    """A stored key: never the secret itself."""

    id: str
    kind: KeyKind
    prefix: str
    """The beginning of the secret, by which people recognise the key."""
    created: int
    creator: str
    """Id of the actor that created it."""
    project: str | None = None
    """The project of a service key; for an access token its only project, or None."""
    user: str | None = None
    """The user of an access token."""
    grant: Grant = EVERYTHING
    expires: int | None = None
    revoked: int | None = None
    note: str = ""
    family: str | None = None
    """For a key that a rotation made: the id of the first key, which was rotated. None for other keys. A
    limit of a key applies to its whole family."""

    @property
    def family_id(self) -> str:
        """Id of the first key of the family. A key that was not rotated is its own family."""
        return self.family or self.id


class AuditEntry(Struct, frozen=True):
    """One change and its author."""

    id: int
    at: int
    actor: str
    action: str
    """`key.create`, `project.archive`, ..."""
    target: str
    """Id of the changed object."""
    detail: str = ""
    """JSON of the change, without secrets."""


CONTROL_CHARACTERS = r"\x00-\x1f\x7f"

INVISIBLE = (
    " \x80-\xa0\xad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Blanks and invisible characters. Two names that differ only in these look the same, and a name of these
alone looks empty."""

END_OF_TEXT = r"(?![\s\S])"
"""Matches only at the end of the text; `$` would also match before a final line break."""

PLAIN_PATTERN = rf"^[^{CONTROL_CHARACTERS}]+{END_OF_TEXT}"

NAME_PATTERN = (
    rf"^[^{CONTROL_CHARACTERS}]*[^{CONTROL_CHARACTERS}{INVISIBLE}][^{CONTROL_CHARACTERS}]*{END_OF_TEXT}"
)
"""A plain text with a visible character."""

NOTE_PATTERN = rf"^[^\x00]*{END_OF_TEXT}"
"""Any text without NUL, because some databases cannot store NUL."""

EMAIL_PATTERN = rf"^[^@\s{CONTROL_CHARACTERS}]+@[^@\s{CONTROL_CHARACTERS}]+{END_OF_TEXT}"


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
