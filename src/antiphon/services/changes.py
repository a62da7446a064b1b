"""The thread that makes all changes of projects, users, keys, limits and prices.

It stores the current directory and passes each new one to the parts that answer requests from memory. A
change is checked against one revision of the directory and written only at that revision. If another process
has changed the directory meanwhile, the directory is read and the change is checked again. `services.policy`
decides what each caller can change.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from antiphon.auth.base import DirectoryIndex
from antiphon.auth.secrets import ALPHABET
from antiphon.domain.identity import Actor
from antiphon.domain.values import Struct, replace
from antiphon.errors import Conflict
from antiphon.services.policy import AccessPolicy, Identified
from antiphon.store.base import ChangeAuthor, ChangeFeed, Directory, StaleDirectory, TenancyStore

MOMENT_LENGTH = 9
"""Characters of the time in milliseconds, in base 36, at the start of each id. It makes ids sort by time."""
RANDOM_LENGTH = 10
MAX_TRIES = 20
"""The most attempts at a change if other processes change the directory at the same time."""
T = TypeVar("T")


class _IndexedDirectory(Struct, frozen=True):
    """A directory with its index."""

    directory: Directory
    index: DirectoryIndex


class DirectoryChanges:
    """Stores the current directory of one process, and makes its changes, one at a time."""

    def __init__(
        self,
        store: TenancyStore,
        listeners: Sequence[Callable[[Directory], None]],
        clock: Callable[[], float],
        feed: ChangeFeed | None = None,
        wait_until_known: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`listeners` are called in the thread with each new directory. `clock`: Unix seconds. `feed` reports
        changes by other processes. `wait_until_known` waits until the other processes of this server have
        read a revision."""
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self._feed = feed
        self._wait_until_known = wait_until_known
        self._view = _IndexedDirectory(Directory(), DirectoryIndex.from_directory(Directory()))
        self._thread = ThreadPoolExecutor(1, "antiphon-store")
        """Runs one change at a time. A change is completed even if its caller disconnects."""

    @property
    def directory(self) -> Directory:
        return self._view.directory

    @property
    def policy(self) -> AccessPolicy:
        """The access rules for the current directory."""
        view = self._view
        return AccessPolicy(view.directory, self.now(), view.index)

    async def load(self) -> None:
        """Reads the directory and starts the feed. Raises StoreUnavailable."""
        await self.run_in_thread(lambda: self._set_directory(self._store.load_directory()))
        if self._feed is not None:
            self._feed.start(self._catch_up)

    def close(self) -> None:
        """Waits for the running change, then closes the store."""
        if self._feed is not None:
            self._feed.close()
        self._thread.shutdown()
        self._store.close()

    async def apply(self, change: Callable[[], T]) -> T:
        """Calls `change`. Returns its result when every process of this server knows the change.

        `change` checks against `policy` and `directory`, writes to the store with `attribute_to`, and calls
        `update_directory`. It must have no other effects: it runs again if another process changed the
        directory meanwhile. It runs in the thread. Raises the errors of `change`, StoreUnavailable, and
        Conflict if every attempt collided with another change.
        """
        result = await self.run_in_thread(lambda: self._apply(change))
        # Not in the thread: two processes that both wait there would block each other.
        if self._wait_until_known is not None:
            await self._wait_until_known(self.directory.revision)
        return result

    async def run_in_thread(self, call: Callable[[], T]) -> T:
        """Makes a blocking call of the store in the thread, after all earlier changes. Returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def update_directory(self, revision: int, **changes: tuple[object, ...]) -> None:
        """Sets the directory in memory after a write. It does not read the database, which can be
        unavailable.

        `revision`: the result of the store's write. `changes`: the changed fields of the directory. Call it
        only in a function that `apply` calls.
        """
        self._set_directory(replace(self.directory, revision=revision, **changes))  # type: ignore[arg-type]

    def attribute_to(self, actor: Actor) -> ChangeAuthor:
        """Returns the author, time, expected revision and client of a change."""
        return ChangeAuthor(actor.id, self.now(), self.directory.revision, actor.client)

    def make_id(self, noun: str) -> str:
        """Returns a new unique id that starts with `noun`."""
        moment = _encode_base36(self.now_ms())
        return f"{noun}_{moment}" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))

    def now(self) -> int:
        """Returns the time in Unix seconds."""
        return int(self._clock())

    def now_ms(self) -> int:
        """Returns the time in Unix milliseconds."""
        return int(1_000 * self._clock())

    def resolve_switch_time(self, before: int | None, is_on: bool | None) -> int | None:
        """Returns the new value of a field such as `archived`, which holds the Unix seconds since which it is
        on, and None while it is off. `before`: the present value. `is_on`: the requested state; None changes
        nothing."""
        if is_on is None:
            return before
        return (before or self.now()) if is_on else None

    def _apply(self, change: Callable[[], T]) -> T:
        """Calls `change` with the latest directory, and again if the directory changed meanwhile."""
        self._read_if_changed(self._store.load_revision())
        for _ in range(MAX_TRIES):
            try:
                return change()
            except StaleDirectory:
                self._read()
        raise Conflict("other changes happen at the same time: try again")

    def _catch_up(self, revision: int) -> None:
        """Reads the directory if it is not at this revision. Called in the feed's thread. Raises
        StoreUnavailable."""
        try:
            reading = self._thread.submit(self._read_if_changed, revision)
        except RuntimeError:  # this object was closed meanwhile
            return
        reading.result()

    def _read_if_changed(self, revision: int) -> None:
        """Reads the directory if `revision` is not the one in memory."""
        if revision != self.directory.revision:
            self._read()

    def _read(self) -> None:
        """Reads what has changed in the store, and replaces the directory in memory."""
        self._set_directory(self._store.load_directory(self.directory))

    def _set_directory(self, directory: Directory) -> None:
        """Replaces the directory in memory, and passes it to the listeners."""
        self._view = _IndexedDirectory(directory, DirectoryIndex.from_directory(directory))
        for listener in self._listeners:
            listener(directory)


def replace_by_id(items: Iterable[Identified], item: Identified) -> tuple[Identified, ...]:
    """Replaces the item with the same id, or appends the item."""
    by_id = {present.id: present for present in items} | {item.id: item}
    return tuple(by_id.values())


def _encode_base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits.rjust(MOMENT_LENGTH, ALPHABET[0])
