"""The seam of the store: what the rest of the server asks of it. No table, no SQL, no driver."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.ledger import Entry, Used
from antiphon.domain.limits import Limit
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import AuditEntry, Key, Membership, Project, User


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key with the digest by which it is found."""

    key: Key
    digest: bytes
    """32 bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Everybody and every key at one moment: requests are answered from it, and from no database."""

    projects: tuple[Project, ...] = ()
    users: tuple[User, ...] = ()
    memberships: tuple[Membership, ...] = ()
    keys: tuple[KeptKey, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()


@dataclass(frozen=True, slots=True)
class By:
    """Who changes something, and when."""

    actor: str
    at: int
    """Unix seconds."""


class Tenancy(Protocol):
    """Projects, users, memberships and keys. Each change is one transaction with its entry in the audit.

    Every method blocks, and belongs into a thread. Unknown ids raise NotFound; what exists already, Conflict.
    """

    def directory(self) -> Directory:
        """All of it, archived and revoked too."""

    def add_project(self, project: Project, by: By) -> None:
        """Raises Conflict where its name is taken."""

    def change_project(self, project: Project, by: By) -> None:
        """Puts a project in the place of the one of its id."""

    def add_user(self, user: User, by: By) -> None:
        """Raises Conflict where the email address is taken."""

    def change_user(self, user: User, by: By) -> None:
        """Puts a user in the place of the one of its id."""

    def put_membership(self, membership: Membership, by: By) -> None:
        """Adds a membership, or changes its role."""

    def remove_membership(self, project: str, user: str, by: By) -> None:
        """Ends a membership."""

    def add_key(self, kept: KeptKey, by: By) -> None:
        """Keeps a new key."""

    def change_key(self, key: Key, by: By) -> None:
        """Puts a key in the place of the one of its id; what it is found by stays."""

    def rotate_key(self, old: Key, new: KeptKey, by: By) -> None:
        """Keeps a new key and changes the old one, at once."""

    def audit(self, limit: int, before: int | None = None, target: str | None = None) -> Sequence[AuditEntry]:
        """The latest entries first, at most `limit`; those before an id, of one target."""

    def mark(self, name: str) -> str | None:
        """A short text that belongs to the whole database."""

    def set_mark(self, name: str, value: str) -> None:
        """Sets it where it is not set yet. Raises Conflict where it is."""

    def close(self) -> None:
        """Lets go of the database."""


class Entries(Protocol):
    """The ledger's rows. Every method blocks, and belongs into a thread."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Keeps them in one transaction; those whose id is there already change nothing. Raises
        StoreUnavailable."""

    def used(self, since: int, grain: int) -> Iterator[Used]:
        """What entries took that began at `since` (Unix milliseconds) or later, in sums over `grain`
        milliseconds of time, counted from 1970; 1 gives every moment of its own."""
