"""The interface of the store for the rest of the server. It names no table, no SQL and no driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.ledger import Dimension, Entry, EntryPosition, EntrySelection, LedgerReport, UsedAmounts
from antiphon.domain.limits import Limit
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import AuditEntry, Key, Membership, Project, RecordedRequest, User


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key together with the digest by which the server finds it."""

    key: Key
    digest: bytes
    """The digest has 32 bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """All projects, users, keys, limits and prices at one moment. Requests are checked against it, never
    against the database."""

    projects: tuple[Project, ...] = ()
    users: tuple[User, ...] = ()
    memberships: tuple[Membership, ...] = ()
    keys: tuple[KeptKey, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()
    revision: int = 0
    """The number of the last change."""

    def families(self) -> dict[str, str]:
        """Returns the id of the first key for each key that succeeds another."""
        return {kept.key.id: kept.key.family for kept in self.keys if kept.key.family is not None}


@dataclass(frozen=True, slots=True)
class ChangeAuthor:
    """The actor and the time of a change."""

    actor: str
    at: int
    """Unix seconds."""
    known: int | None = None
    """The revision of the directory against which the change was checked. None applies the change at any
    revision."""


class StaleDirectory(Exception):
    """Another process changed the directory after this change was checked, so nothing was written.
    `services.changes` always catches this error."""


class TenancyStore(Protocol):
    """Projects, users, memberships and keys. Each change is one transaction that also writes its audit entry,
    and returns the directory's new revision.

    Every method blocks, so call it in a thread. An unknown id raises NotFound. A duplicate raises Conflict. A
    change raises StaleDirectory if the directory's revision is no longer `by.known`.
    """

    def directory(self, known: Directory | None = None) -> Directory:
        """Reads the directory, including archived and revoked entries. `known`: an earlier directory, so that
        only later changes are read."""

    def revision(self) -> int:
        """Reads the number of the directory's last change."""

    def add_project(self, project: Project, by: ChangeAuthor) -> int:
        """Adds a project. Raises Conflict if its name is taken."""

    def change_project(self, project: Project, by: ChangeAuthor) -> int:
        """Replaces the project with that id."""

    def add_user(self, user: User, by: ChangeAuthor) -> int:
        """Adds a user. Raises Conflict if the email address is taken."""

    def change_user(self, user: User, by: ChangeAuthor) -> int:
        """Replaces the user with that id."""

    def put_membership(self, membership: Membership, by: ChangeAuthor) -> int:
        """Adds a membership. If the user is already a member, changes the role."""

    def remove_membership(self, project: str, user: str, by: ChangeAuthor) -> int:
        """Ends a membership."""

    def add_key(self, kept: KeptKey, by: ChangeAuthor, limits: Sequence[Limit] = ()) -> int:
        """Adds a key with its limits in one transaction."""

    def change_key(self, key: Key, by: ChangeAuthor) -> int:
        """Replaces the key with that id; its digest stays."""

    def rotate_key(self, old: Key, new: KeptKey, limits: Sequence[Limit], by: ChangeAuthor) -> int:
        """Adds the new key, replaces the old one's row, and replaces these limits, in one transaction."""

    def families(self) -> Mapping[str, str]:
        """Returns the id of the first key for each key that succeeds another."""

    def audit(self, limit: int, before: int | None = None, target: str | None = None) -> Sequence[AuditEntry]:
        """Returns at most `limit` audit entries, the latest first. `before`: only entries with a smaller id.
        `target`: only entries about this thing."""

    def mark(self, name: str) -> str | None:
        """Returns the value of a mark: a short text that the whole database has under a name."""

    def set_mark(self, name: str, value: str) -> None:
        """Sets a mark. Raises Conflict if the mark already has a value."""

    def close(self) -> None:
        """Closes the database."""


class RuleStore(Protocol):
    """Limits and prices. Changes work as in `TenancyStore`."""

    def add_limit(self, limit: Limit, by: ChangeAuthor) -> int:
        """Adds a limit."""

    def change_limit(self, limit: Limit, by: ChangeAuthor) -> int:
        """Replaces the limit with that id."""

    def remove_limit(self, id_: str, by: ChangeAuthor) -> int:
        """Removes a limit."""

    def add_price(self, price: Price, by: ChangeAuthor) -> int:
        """Adds a price."""

    def change_price(self, price: Price, by: ChangeAuthor) -> int:
        """Replaces the price with that id. A time in `until` ends the price. No price is removed, since
        ledger entries name it."""

    def find_other_currency(self, but: str) -> str | None:
        """Returns a currency in the ledger other than `but`; None if there is none. Raises StoreUnavailable,
        and DeadlineExceeded if the search takes too long."""


class ChangeFeed(Protocol):
    """Reports changes of the directory, whichever process or node makes them."""

    def start(self, on_change: Callable[[int], None]) -> None:
        """Calls `on_change` with each new revision within a second, beginning with the current one. The calls
        come from a thread of the feed. If `on_change` raises StoreUnavailable, it is called again a little
        later."""

    def close(self) -> None:
        """Stops the reports."""


class RecordStore(Protocol):
    """Requests that projects keep word by word. Every method blocks, so call it in a thread."""

    def add(self, records: Sequence[RecordedRequest]) -> None:
        """Adds records, except those that began before their project's last erasure. A record whose id exists
        already is ignored. Raises StoreUnavailable."""

    def page(
        self, project: str, most: int, before: tuple[int, str] | None = None
    ) -> Sequence[RecordedRequest]:
        """Returns a project's latest records, the latest first. `before`: only records before this time (Unix
        milliseconds) and id."""

    def one(self, id_: str) -> RecordedRequest | None:
        """Returns the record with that id; None if there is none."""

    def expire(self, now: int) -> int:
        """Removes the records that have expired by now (Unix seconds). Returns their number."""

    def erase(self, project: str, until: int, by: ChangeAuthor) -> tuple[int, int]:
        """Removes all records of a project, and refuses later records that began before `until` (Unix
        milliseconds). It is a change as in `TenancyStore`. Returns the number of removed records and the
        directory's revision. Raises NotFound."""


class EntryStore(Protocol):
    """The ledger's rows. Every method blocks, so call it in a thread."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries in one transaction. An entry whose id exists already is ignored. Raises
        StoreUnavailable."""

    def sum_usage(self, since: int, grain: int, before: int | None = None) -> Iterator[UsedAmounts]:
        """Yields sums over the entries that began at `since` (Unix milliseconds) or later, for each period of
        `grain` milliseconds. `before`: only entries that ended before this time. An aborted entry counts as
        ended when it began."""


class UsageStore(Protocol):
    """Reports over the ledger. Every method blocks, so call it in a thread. Each report reads the ledger at
    one moment. Raises StoreUnavailable, and DeadlineExceeded for a report that takes too long."""

    def report(self, chosen: EntrySelection, by: Sequence[Dimension], most: int) -> LedgerReport:
        """Returns the totals of the selected entries, and at most `most` groups if `by` names dimensions. The
        earliest period comes first, then the groups with the most requests."""

    def entries(
        self, chosen: EntrySelection, most: int, after: EntryPosition | None = None
    ) -> Sequence[Entry]:
        """Returns at most `most` entries, sorted by their start and then by id. `after`: the position of the
        last entry of the call before."""
