"""The interface of the store for the rest of the server. It names no table, no SQL and no driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.domain.ledger import Dimension, Entry, EntryPosition, EntrySelection, LedgerReport, UsedAmounts
from antiphon.domain.limits import BudgetWarning, Limit
from antiphon.domain.memory import KeptSummary
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import AuditEntry, Key, Membership, Project, RecordedRequest, User


@dataclass(frozen=True, slots=True)
class KeptKey:
    """A key with the digest that finds it."""

    key: Key
    digest: bytes
    """32 bytes."""


@dataclass(frozen=True, slots=True)
class Directory:
    """All projects, users, keys, limits and prices at one moment. Requests are answered from it, never from a
    database."""

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
        return {
            stored_key.key.id: stored_key.key.family
            for stored_key in self.keys
            if stored_key.key.family is not None
        }


@dataclass(frozen=True, slots=True)
class ChangeAuthor:
    """The actor and the time of a change."""

    actor: str
    at: int
    """Unix seconds."""
    known: int | None = None
    """The directory's revision that the change was checked against; None applies it to any revision."""


AUDIT_BEFORE, AUDIT_ABOUT = "before", "about"
"""Parts of an audit entry's detail beside the new values: the earlier values of the same fields, and the
fields that say what was changed."""


class StaleDirectory(Exception):
    """Another process changed the directory after a change was checked, so nothing was written. It never
    leaves `services.changes`."""


class TenancyStore(Protocol):
    """Projects, users, memberships and keys. Each change is one transaction with its audit entry, and returns
    the directory's new revision.

    Every method blocks, so call it in a thread. An unknown id raises NotFound; a duplicate, Conflict; a
    change of a directory that is no longer at the revision `by.known`, StaleDirectory.
    """

    def directory(self, known_directory: Directory | None = None) -> Directory:
        """Reads the directory, archived and revoked entries included.

        `known_directory`: an earlier result; then only later changes are read."""

    def revision(self) -> int:
        """Reads the number of the directory's last change."""

    def add_project(self, project: Project, author: ChangeAuthor) -> int:
        """Raises Conflict where its name is taken."""

    def change_project(self, project: Project, author: ChangeAuthor) -> int:
        """Replaces the project with that id."""

    def add_user(self, user: User, author: ChangeAuthor) -> int:
        """Raises Conflict where the email address is taken."""

    def change_user(self, user: User, author: ChangeAuthor) -> int:
        """Replaces the user with that id."""

    def put_membership(self, membership: Membership, author: ChangeAuthor) -> int:
        """Adds a membership, or changes its role."""

    def remove_membership(self, project: str, user: str, author: ChangeAuthor) -> int:
        """Ends a membership."""

    def add_key(self, stored_key: KeptKey, author: ChangeAuthor, limits: Sequence[Limit] = ()) -> int:
        """Adds a key with its limits in one transaction."""

    def change_key(self, key: Key, author: ChangeAuthor) -> int:
        """Replaces the key with that id; its digest stays."""

    def rotate_key(self, old: Key, new: KeptKey, limits: Sequence[Limit], author: ChangeAuthor) -> int:
        """Adds a new key, changes the old one, and replaces these limits, in one transaction."""

    def families(self) -> Mapping[str, str]:
        """Returns the id of the first key for each key that succeeds another."""

    def audit(self, limit: int, before: int | None = None, target: str | None = None) -> Sequence[AuditEntry]:
        """Returns at most `limit` entries, the latest first; only those before an id and of one target, where
        given."""

    def note_erasure(self, project: str, removed: Mapping[str, int], author: ChangeAuthor) -> int:
        """Notes in the audit what was removed of a project's knowledge."""

    def mark(self, name: str) -> str | None:
        """Returns a short text that belongs to the whole database."""

    def set_mark(self, name: str, value: str) -> None:
        """Sets a mark. Raises Conflict where it is already set."""

    def close(self) -> None:
        """Closes the database."""


class RuleStore(Protocol):
    """Limits and prices. Changes work as in `TenancyStore`."""

    def add_limit(self, limit: Limit, author: ChangeAuthor) -> int:
        """Keeps a new limit."""

    def change_limit(self, limit: Limit, author: ChangeAuthor) -> int:
        """Replaces the limit with that id."""

    def remove_limit(self, id_: str, author: ChangeAuthor) -> int:
        """Ends a limit."""

    def add_price(self, price: Price, author: ChangeAuthor) -> int:
        """Keeps a new price."""

    def change_price(self, price: Price, author: ChangeAuthor) -> int:
        """Replaces the price with that id; `until` ends it. No price is removed, since the ledger's entries
        name it."""

    def find_other_currency(self, but: str) -> str | None:
        """Returns a currency of the ledger that is not this one; None where it has no other. Raises
        StoreUnavailable, and DeadlineExceeded where the search takes too long."""


class WarningStore(Protocol):
    """The warnings that budgets gave."""

    def claim(self, warning: BudgetWarning) -> bool:
        """Returns True for the first caller of all servers that claims this share of this window, and False
        for all others. Blocks, so call it in a thread. Raises StoreUnavailable."""


class ChangeFeed(Protocol):
    """Reports changes of the directory, whichever process or node makes them."""

    def start(self, on_change: Callable[[int], None]) -> None:
        """Reports each new revision within a second, in a thread of its own, beginning with the current one.
        Where `on_change` raises StoreUnavailable, it is called again a little later."""

    def close(self) -> None:
        """Stops the reports."""


class RecordStore(Protocol):
    """Requests that projects keep word by word. Every method blocks, so call it in a thread."""

    def add(self, records: Sequence[RecordedRequest]) -> None:
        """Adds records, except those that began before their project's last erasure. An id that is there
        already changes nothing. Raises StoreUnavailable."""

    def page(
        self, project: str, most: int, before: tuple[int, str] | None = None
    ) -> Sequence[RecordedRequest]:
        """Returns a project's latest records first, those before a time (Unix milliseconds) and an id."""

    def find_record(self, id_: str) -> RecordedRequest | None:
        """Returns the record with that id."""

    def expire(self, now: int) -> int:
        """Removes the records and the summaries that have expired by now (Unix seconds). Returns the number
        of records."""

    def note_reading(self, project: str, what: Mapping[str, object], author: ChangeAuthor) -> None:
        """Writes an audit entry about records that somebody reads. Raises StoreUnavailable."""

    def erase(self, project: str, until: int, author: ChangeAuthor) -> tuple[int, int]:
        """Removes all records and summaries of a project, and refuses later ones that began before `until`
        (Unix milliseconds). It is a change as in `TenancyStore`. Returns the number of removed records and
        the directory's revision. Raises NotFound."""


class SummaryStore(Protocol):
    """Summaries of conversations, which projects never share. Every method blocks, so call it in a thread.
    Raises StoreUnavailable. `RecordStore` removes them when they expire, and erases them with a project's
    records."""

    def find(self, project: str, digests: Sequence[str], now: int) -> Mapping[str, str]:
        """Returns the texts of those digests that the project has and that have not expired by now (Unix
        seconds)."""

    def keep(self, summary: KeptSummary, most: int) -> None:
        """Adds a summary, and removes the project's oldest ones above `most`. One of a request that began
        before the project's last erasure is not added."""


class EntryStore(Protocol):
    """The ledger's rows. Every method blocks, so call it in a thread."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries in one transaction. An id that is there already changes nothing. Raises
        StoreUnavailable."""

    def sum_usage(self, since: int, grain: int, before: int | None = None) -> Iterator[UsedAmounts]:
        """Sums the entries that began at `since` (Unix milliseconds) or later, for each `grain` milliseconds
        since 1970. `before`: only entries that ended earlier; an aborted entry ended as it began."""


class UsageStore(Protocol):
    """Reports over the ledger. Every method blocks, so call it in a thread, and each reads one moment. Raises
    StoreUnavailable, and DeadlineExceeded for a report that takes too long."""

    def report(self, chosen: EntrySelection, author: Sequence[Dimension], most: int) -> LedgerReport:
        """Returns the totals of a selection, and at most `most` of its groups where dimensions are named: the
        earliest bucket first, then the groups with the most requests."""

    def entries(
        self, chosen: EntrySelection, most: int, after: EntryPosition | None = None
    ) -> Sequence[Entry]:
        """Returns at most `most` entries by their start and then by id, from a place on. To read on, call it
        with the place of the last entry."""
