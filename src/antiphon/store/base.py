"""The interfaces of the store. They contain no table, no SQL and no driver."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from antiphon.domain.ledger import Dimension, Entry, EntryPosition, EntrySelection, LedgerReport, UsedAmounts
from antiphon.domain.limits import BudgetWarning, Limit, Subject
from antiphon.domain.memory import KeptSummary
from antiphon.domain.prices import Price
from antiphon.domain.stored_responses import KeptResponse, StoredChain, StoredResponse
from antiphon.domain.tenancy import (
    ALL_CHANGES,
    AuditEntry,
    AuditSelection,
    Key,
    Membership,
    Project,
    RecordedRequest,
    User,
)
from antiphon.domain.values import Struct


class StoredKey(Struct, frozen=True):
    """A key with the digest of its secret."""

    key: Key
    digest: bytes
    """32 bytes."""


class Directory(Struct, frozen=True):
    """All projects, users, keys, limits and prices, at one revision. Requests read this object and never the
    database."""

    projects: tuple[Project, ...] = ()
    users: tuple[User, ...] = ()
    memberships: tuple[Membership, ...] = ()
    keys: tuple[StoredKey, ...] = ()
    limits: tuple[Limit, ...] = ()
    prices: tuple[Price, ...] = ()
    revision: int = 0
    """The number of the last change."""

    def build_families(self) -> dict[str, str]:
        """Returns the family of each rotated key: the id of the first key, by the id of the successor."""
        return {
            stored_key.key.id: stored_key.key.family
            for stored_key in self.keys
            if stored_key.key.family is not None
        }

    def build_limit_names(self) -> dict[str, str]:
        """Returns the names of the projects, users and keys that have limits, by id. A key's name is its
        prefix."""
        names = {key.key.id: key.key.prefix for key in self.keys}
        names |= {project.id: project.name for project in self.projects}
        names |= {user.id: user.name for user in self.users}
        ids = {limit.target for limit in self.limits if limit.subject is not Subject.MODEL}
        return {id_: names[id_] for id_ in ids if names.get(id_, id_) != id_}


class ChangeAuthor(Struct, frozen=True):
    """The actor and the time of a change."""

    actor: str
    at: int
    """Unix seconds."""
    known_revision: int | None = None
    """The revision of the directory against which the change was checked. None: any revision."""
    client: str | None = None
    """The address of the client; None if the change came over no connection."""


LAST_BACKUP = "last-backup"
"""The empty file in the home directory whose time is that of the latest complete backup."""

AUDIT_BEFORE, AUDIT_ABOUT = "before", "about"
"""Two fields of an audit entry's `detail`. `before` has the earlier values of the changed fields. `about` has
the fields that identify the changed object."""


class StaleDirectory(Exception):
    """Another process changed the directory after a change was checked. Nothing was written. Only
    `services.changes` catches it."""


class TenancyStore(Protocol):
    """Projects, users, memberships and keys. Each change is one transaction that also writes an audit entry,
    and returns the new revision of the directory.

    Every method blocks, so call it in a thread. It raises NotFound for an unknown id, Conflict for a
    duplicate, and StaleDirectory if the directory is no longer at the revision `author.known_revision`.
    """

    def load_directory(self, known_directory: Directory | None = None) -> Directory:
        """Reads the directory, including archived projects and revoked keys.

        `known_directory`: an earlier result; only the changes since then are read."""

    def load_revision(self) -> int:
        """Reads the current revision of the directory."""

    def add_project(self, project: Project, author: ChangeAuthor) -> int:
        """Raises Conflict if another project has the name."""

    def change_project(self, project: Project, author: ChangeAuthor) -> int:
        """Replaces the stored project with the same id."""

    def add_user(self, user: User, author: ChangeAuthor) -> int:
        """Raises Conflict if another user has the email address."""

    def change_user(self, user: User, author: ChangeAuthor) -> int:
        """Replaces the stored user with the same id."""

    def put_membership(self, membership: Membership, author: ChangeAuthor) -> int:
        """Adds a membership, or changes its role."""

    def remove_membership(self, project: str, user: str, author: ChangeAuthor) -> int:
        """Removes a user from a project. Raises NotFound if there is no such membership."""

    def add_key(self, stored_key: StoredKey, author: ChangeAuthor, limits: Sequence[Limit] = ()) -> int:
        """Adds a key with its limits in one transaction."""

    def change_key(self, key: Key, author: ChangeAuthor) -> int:
        """Replaces the stored key with the same id, but not its digest."""

    def rotate_key(self, old: Key, new: StoredKey, limits: Sequence[Limit], author: ChangeAuthor) -> int:
        """Adds the new key, changes the old one, and updates the limits, in one transaction."""

    def load_families(self) -> Mapping[str, str]:
        """Returns the family of each rotated key: the id of the first key, by the id of the successor."""

    def load_service_keys(self) -> frozenset[str]:
        """Returns the ids of all service keys."""

    def load_audit_entries(
        self, limit: int, before: int | None = None, selection: AuditSelection = ALL_CHANGES
    ) -> Sequence[AuditEntry]:
        """Returns at most `limit` of the selected audit entries, the latest first. `before`: only entries
        with a smaller id."""

    def note_erasure(self, project: str, removed: Mapping[str, int], author: ChangeAuthor) -> int:
        """Writes an audit entry that counts the removed knowledge tables of a project."""

    def load_mark(self, name: str) -> str | None:
        """Returns the value of a mark; None if there is none of that name. A mark is a property of the whole
        database, such as the pepper's digest."""

    def create_mark(self, name: str, value: str) -> None:
        """Creates a mark. Raises Conflict if there is one of that name."""

    def close(self) -> None: ...


class RuleStore(Protocol):
    """Limits and prices. Changes work as in `TenancyStore`."""

    def add_limit(self, limit: Limit, author: ChangeAuthor) -> int: ...

    def change_limit(self, limit: Limit, author: ChangeAuthor) -> int:
        """Replaces the stored limit with the same id."""

    def remove_limit(self, id_: str, author: ChangeAuthor) -> int: ...

    def add_price(self, price: Price, author: ChangeAuthor) -> int: ...

    def change_price(self, price: Price, author: ChangeAuthor) -> int:
        """Replaces the stored price with the same id. To end a price, set its `until`. Prices are never
        removed, because entries of the ledger refer to them."""

    def find_other_currency(self, currency: str) -> str | None:
        """Returns a currency of the ledger other than `currency`; None if there is no other. Raises
        StoreUnavailable, and DeadlineExceeded if the search takes too long."""


class WarningStore(Protocol):
    """The budget warnings that were sent."""

    def claim(self, warning: BudgetWarning) -> bool:
        """Stores a warning before it is sent. Returns False if a call of any server has already stored a
        warning about this share of the budget in this window. Blocks, so call it in a thread. Raises
        StoreUnavailable."""


class ChangeFeed(Protocol):
    """Reports changes of the directory by any process of any server."""

    def start(self, on_change: Callable[[int], None]) -> None:
        """Calls `on_change` in a separate thread with the current revision, and then with each new one within
        a second. If `on_change` raises StoreUnavailable, it is called again later."""

    def close(self) -> None: ...


class RecordStore(Protocol):
    """Recorded requests with their answers. Every method blocks, so call it in a thread."""

    def add(self, records: Sequence[RecordedRequest]) -> None:
        """Adds records. Skips records that started before their project's last erasure, and records whose id
        exists. Raises StoreUnavailable."""

    def load_page(
        self, project: str, max_records: int, before: tuple[int, str] | None = None
    ) -> Sequence[RecordedRequest]:
        """Returns at most `max_records` records of a project, the latest first. `before`: only records before
        this time (Unix milliseconds) and id."""

    def find_record(self, id_: str) -> RecordedRequest | None: ...

    def expire(self, now: int) -> int:
        """Removes the records, summaries and kept responses that expire at or before `now` (Unix seconds).
        Returns the number of removed records."""

    def note_reading(self, project: str, detail: Mapping[str, object], author: ChangeAuthor) -> None:
        """Writes an audit entry about records that were read; `detail` identifies them. Raises
        StoreUnavailable."""

    def erase(self, project: str, until: int, author: ChangeAuthor) -> tuple[int, int]:
        """Removes all records, summaries and kept responses of a project. Those of requests that started
        before `until` (Unix milliseconds) can no longer be added. It is a change as in `TenancyStore`.
        Returns the number of removed records and the directory's revision. Raises NotFound."""


class SummaryStore(Protocol):
    """Summaries of conversations. Each belongs to one project. Every method blocks, so call it in a thread,
    and raises StoreUnavailable. `RecordStore.expire` and `RecordStore.erase` also remove summaries."""

    def find(self, project: str, digests: Sequence[str], now: int) -> Mapping[str, str]:
        """Returns the summaries of a project with these digests, by digest. Skips summaries that expired at
        or before `now` (Unix seconds)."""

    def add(self, summary: KeptSummary, max_summaries: int) -> None:
        """Adds a summary, and removes the oldest summaries of the project if there are more than
        `max_summaries`. Does not add a summary of a request that started before the project's last
        erasure."""


class EntryStore(Protocol):
    """The ledger's rows. Every method blocks, so call it in a thread."""

    def add(self, entries: Sequence[Entry]) -> None:
        """Adds entries in one transaction. Skips entries whose id exists. Raises StoreUnavailable."""

    def sum_usage(self, since: int, bucket_ms: int, before: int | None = None) -> Iterator[UsedAmounts]:
        """Yields the sums of the entries that started at `since` (Unix milliseconds) or later: one for each
        key, user, project and model in each period of `bucket_ms` milliseconds. `before`: only entries that
        ended before this time. An aborted entry ended when it started."""


class UsageStore(Protocol):
    """Reports over the ledger. Every method blocks, so call it in a thread. Each call reads one consistent
    state. Raises StoreUnavailable, and DeadlineExceeded if a report takes too long."""

    def report(
        self, selection: EntrySelection, dimensions: Sequence[Dimension], max_groups: int
    ) -> LedgerReport:
        """Returns the totals of the selected entries and, if there are dimensions, at most `max_groups`
        groups. The groups are ordered by time bucket, then by the number of requests, descending."""

    def load_entries(
        self, selection: EntrySelection, max_entries: int, after: EntryPosition | None = None
    ) -> Sequence[Entry]:
        """Returns at most `max_entries` entries, ordered by start and id. To read the next page, pass the
        position of the last entry as `after`."""


class ResponseBackend(Protocol):
    """Keeps responses. `now`: Unix seconds; an expired response is not found. Each method can raise
    StoreUnavailable."""

    async def add(self, kept: KeptResponse, now: int) -> bool:
        """Keeps a response, and removes the oldest ones of the project if they need too much room. Returns
        False if it is not kept: it is too large, or the project's responses were erased since the request
        began."""

    async def find(self, project: str, id_: str, now: int) -> StoredResponse | None:
        """Returns one response."""

    async def find_chain(self, project: str, id_: str, now: int, max_bytes: int) -> StoredChain:
        """Returns the items of a response and of its predecessors. `max_bytes`: the most bytes of the
        items."""

    async def find_items(
        self, project: str, ids: Sequence[str], now: int, max_bytes: int
    ) -> Mapping[str, bytes]:
        """Returns the items that exist, by id. Several responses can have an item with the same id: the
        latest one counts. Ends with an empty text in the place of an item with which they have more than
        `max_bytes`."""

    async def remove(self, project: str, id_: str) -> bool:
        """Removes a response. Returns False if there is none."""
