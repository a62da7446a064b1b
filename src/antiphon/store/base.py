"""The seam of the store: what the rest of the server asks of it. No table, no SQL, no driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.ledger import Entry, Used
from antiphon.domain.limits import Limit
from antiphon.domain.prices import Price
from antiphon.domain.recording import Record
from antiphon.domain.reports import Dimension, Place, Report, Selection
from antiphon.domain.tenancy import AuditEntry, Key, Membership, Project, User


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key with the digest by which it is found."""

    key: Key
    digest: bytes
    """32 bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """Everybody and every key, limit and price at one moment: requests are answered from it, and from no
    database."""

    projects: tuple[Project, ...] = ()
    users: tuple[User, ...] = ()
    memberships: tuple[Membership, ...] = ()
    keys: tuple[KeptKey, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()
    revision: int = 0
    """Number of the change that was the last."""

    def families(self) -> dict[str, str]:
        """By the id of each key that succeeds another the id of the first."""
        return {kept.key.id: kept.key.family for kept in self.keys if kept.key.family is not None}


@dataclass(frozen=True, slots=True)
class By:
    """Who changes something, and when."""

    actor: str
    at: int
    """Unix seconds."""
    known: int | None = None
    """Revision of the directory that the change was checked against; None changes whatever is there."""


class DirectoryMoved(Exception):
    """Another process changed the directory after a change was checked: nothing was written. Never leaves
    `services.changes`."""


class Tenancy(Protocol):
    """Projects, users, memberships and keys. Each change is one transaction with its entry in the audit, and
    returns the directory's revision from then on.

    Every method blocks, and belongs into a thread. Unknown ids raise NotFound; what exists already, Conflict;
    a change of a directory that is not at the revision `by.known` any more, DirectoryMoved.
    """

    def directory(self, known: Directory | None = None) -> Directory:
        """All of it, archived and revoked too, with limits and prices. `known`: an earlier one, so that only
        what changed since has to be read."""

    def revision(self) -> int:
        """The number of the last change of the directory."""

    def add_project(self, project: Project, by: By) -> int:
        """Raises Conflict where its name is taken."""

    def change_project(self, project: Project, by: By) -> int:
        """Puts a project in the place of the one of its id."""

    def add_user(self, user: User, by: By) -> int:
        """Raises Conflict where the email address is taken."""

    def change_user(self, user: User, by: By) -> int:
        """Puts a user in the place of the one of its id."""

    def put_membership(self, membership: Membership, by: By) -> int:
        """Adds a membership, or changes its role."""

    def remove_membership(self, project: str, user: str, by: By) -> int:
        """Ends a membership."""

    def add_key(self, kept: KeptKey, by: By, limits: Sequence[Limit] = ()) -> int:
        """Keeps a new key with its limits, at once."""

    def change_key(self, key: Key, by: By) -> int:
        """Puts a key in the place of the one of its id; what it is found by stays."""

    def rotate_key(self, old: Key, new: KeptKey, limits: Sequence[Limit], by: By) -> int:
        """Keeps a new key, changes the old one, and puts its limits in the place of those of their ids, at
        once."""

    def families(self) -> Mapping[str, str]:
        """By the id of each key that succeeds another the id of the first."""

    def audit(self, limit: int, before: int | None = None, target: str | None = None) -> Sequence[AuditEntry]:
        """The latest entries first, at most `limit`; those before an id, of one target."""

    def mark(self, name: str) -> str | None:
        """A short text that belongs to the whole database."""

    def set_mark(self, name: str, value: str) -> None:
        """Sets it where it is not set yet. Raises Conflict where it is."""

    def close(self) -> None:
        """Lets go of the database."""


class Rules(Protocol):
    """Limits and prices. Changes are as in `Tenancy`."""

    def add_limit(self, limit: Limit, by: By) -> int:
        """Keeps a new limit."""

    def change_limit(self, limit: Limit, by: By) -> int:
        """Puts a limit in the place of the one of its id."""

    def remove_limit(self, id_: str, by: By) -> int:
        """Ends a limit."""

    def add_price(self, price: Price, by: By) -> int:
        """Keeps a new price."""

    def change_price(self, price: Price, by: By) -> int:
        """Puts a price in the place of the one of its id; `until` ends it. None is removed: entries of the
        ledger name it."""

    def spent(self, but: str) -> str | None:
        """A currency of the ledger that is not this one; None where it has no other. Raises StoreUnavailable,
        and DeadlineExceeded where looking takes too long."""


class Feed(Protocol):
    """Tells what changes of the directory, whichever process or node changes it."""

    def start(self, told: Callable[[int], None]) -> None:
        """From now on tells each new revision, in a thread of its own, within a second; first the one that it
        begins with. What `told` raises as StoreUnavailable is told again a little later."""

    def close(self) -> None:
        """Tells nothing any more."""


class Records(Protocol):
    """Requests that projects keep word by word. Every method blocks, and belongs into a thread."""

    def add(self, records: Sequence[Record]) -> None:
        """Keeps them, but for those that began before their project's last erasure, however long they have
        waited; those whose id is there already change nothing. Raises StoreUnavailable."""

    def page(self, project: str, most: int, before: tuple[int, str] | None = None) -> Sequence[Record]:
        """The latest of a project first, those before a moment (Unix milliseconds) and an id."""

    def one(self, id_: str) -> Record | None:
        """That of an id."""

    def expire(self, now: int) -> int:
        """Removes what has expired by now (Unix seconds); how much it was."""

    def erase(self, project: str, until: int, by: By) -> tuple[int, int]:
        """Removes all of a project, and whatever is added later but began until then (Unix milliseconds): a
        change as in `Tenancy`. Returns how much was removed, and the directory's revision. Raises NotFound.
        """


class Entries(Protocol):
    """The ledger's rows. Every method blocks, and belongs into a thread."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Keeps them in one transaction; those whose id is there already change nothing. Raises
        StoreUnavailable."""

    def used(self, since: int, grain: int, before: int | None = None) -> Iterator[Used]:
        """What entries took that began at `since` (Unix milliseconds) or later, in sums over `grain`
        milliseconds of time, counted from 1970; 1 gives every moment of its own. `before`: only of those that
        ended earlier; one that was cut ended as it began."""


class Usage(Protocol):
    """What the ledger says. Every method blocks, and belongs into a thread; each reads one moment. Raises
    StoreUnavailable, and DeadlineExceeded for what would take too long."""

    def report(self, chosen: Selection, by: Sequence[Dimension], most: int) -> Report:
        """Totals of a selection and, where dimensions are named, of its groups: at most so many of them, the
        earliest bucket first, then those with the most requests."""

    def entries(self, chosen: Selection, most: int, after: Place | None = None) -> Sequence[Entry]:
        """At most so many, by the time of their beginning and then by id, from a place on. A long list is
        read by calling it again with the place of the last."""
