"""Projects, users, memberships, keys, and the rules for their names."""

from enum import StrEnum

from antiphon.domain.values import Struct

AUDIT_SUBJECTS = {"limit": ("subject", "target", "measure", "window"), "price": ("models", "currency")}
"""The fields that describe a limit or a price in the audit, by the first word of the action."""

DEFAULT_PROJECT = "default"
"""Id of the project that always exists."""

ASCII_LOWER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


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
    """Unique, in the form of `fold_email`."""
    disabled: int | None = None
    """The time from which the user's keys are refused; None if the user is not disabled."""
    note: str = ""


def fold_email(address: str) -> str:
    """Returns an email address in the form in which addresses are compared: ASCII letters in lower case.
    Other letters stay, because Unicode folds some to an ASCII letter, such as the Kelvin sign to k."""
    return address.translate(ASCII_LOWER)


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


class AuditSelection(Struct, frozen=True):
    """The audit entries to read. None selects all. Times are Unix seconds."""

    target: str | None = None
    """Only entries about the object with this id."""
    actor: str | None = None
    """Only changes by this actor."""
    project: str | None = None
    """Only entries about this project, its keys, and the limits of both."""
    since: int = 0
    until: int = 2**62
    """Changes at this second are left out."""


ALL_CHANGES = AuditSelection()


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
    client: str | None = None
    """The address of the client that made the change; None if it came over no connection, or is older than
    this field."""


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

PATH_PATTERN = rf"^[/*][^{CONTROL_CHARACTERS}]*{END_OF_TEXT}"
"""A plain text that can match a path. Paths begin with a slash."""

NAME_PATTERN = (
    rf"^[^{CONTROL_CHARACTERS}]*[^{CONTROL_CHARACTERS}{INVISIBLE}][^{CONTROL_CHARACTERS}]*{END_OF_TEXT}"
)
"""A plain text with a visible character."""

NOTE_PATTERN = rf"^[^\x00]*{END_OF_TEXT}"
"""Any text without NUL, because some databases cannot store NUL."""

EMAIL_PATTERN = rf"^[^@\s{CONTROL_CHARACTERS}]+@[^@\s{CONTROL_CHARACTERS}]+{END_OF_TEXT}"
