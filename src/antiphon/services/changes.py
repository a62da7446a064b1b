"""The one thread that makes all changes of projects, users, keys, limits and prices.

It keeps the current directory and passes each new one to the parts that answer requests from memory. A
change is checked against one revision of the directory and written only at that revision. If another
process was faster, the directory is read again and the change is checked again. `services.policy` decides
who may change what.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from antiphon.auth.base import DirectoryIndex
from antiphon.auth.secrets import ALPHABET
from antiphon.domain.identity import Actor
from antiphon.errors import Conflict
from antiphon.services.policy import AccessPolicy, Named
from antiphon.store.base import ChangeAuthor, ChangeFeed, Directory, StaleDirectory, TenancyStore

MOMENT_LENGTH = 9
"""Digits of the time in milliseconds at the start of each id, so ids sort by time."""
RANDOM_LENGTH = 10
TRIES = 20
"""How often a change is tried again because another process was faster."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _View:
    """A directory with its index."""

    directory: Directory
    known: DirectoryIndex


class DirectoryChanges:
    """Makes the changes of one process, one after the other."""

    def __init__(
        self,
        store: TenancyStore,
        listeners: Sequence[Callable[[Directory], None]],
        clock: Callable[[], float],
        feed: ChangeFeed | None = None,
        reached: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`listeners` get each new directory, in the thread. `clock`: Unix seconds. `feed` reports changes by
        other processes. `reached` waits until the other processes of this server know a revision."""
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self._feed = feed
        self._reached = reached
        self._view = _View(Directory(), DirectoryIndex.from_directory(Directory()))
        self._thread = ThreadPoolExecutor(1, "antiphon-store")
        """Runs one change at a time, each to its end, even if the caller has left."""

    @property
    def directory(self) -> Directory:
        """The current directory."""
        return self._view.directory

    @property
    def policy(self) -> AccessPolicy:
        """The rules over the current directory."""
        view = self._view
        return AccessPolicy(view.directory, self.now(), view.known)

    async def load(self) -> None:
        """Reads the directory, then follows changes by others. Raises StoreUnavailable."""
        await self.run_in_thread(lambda: self._set_directory(self._store.directory()))
        if self._feed is not None:
            self._feed.start(self._catch_up)

    def close(self) -> None:
        """Waits for the running change, then closes the store."""
        if self._feed is not None:
            self._feed.close()
        self._thread.shutdown()
        self._store.close()

    async def apply(self, work: Callable[[], T]) -> T:
        """Makes a change and returns the result of `work`, once every process of this server knows the
        change.

        `work` checks against `policy` and `directory`, writes to the store with `attribute_to`, and calls
        `learn`. It runs in the thread, and again if another process was faster, so it has no other effect.

        Raises what `work` raises; StoreUnavailable; Conflict where others are always faster.
        """
        result = await self.run_in_thread(lambda: self._apply(work))
        if (
            self._reached is not None
        ):  # not in the thread: two processes that change something must answer each other
            await self._reached(self.directory.revision)
        return result

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Runs a read of the store, after all earlier changes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def learn(self, revision: int, **changes: tuple[object, ...]) -> None:
        """Updates the directory after a write, without reading the database again: it may be gone.

        `revision`: returned by the store's write. `changes`: the changed parts of the directory. Call it in
        the thread, within `apply`.
        """
        self._set_directory(replace(self.directory, revision=revision, **changes))  # type: ignore[arg-type]

    def attribute_to(self, actor: Actor) -> ChangeAuthor:
        """The author, time and revision of a change, for the store."""
        return ChangeAuthor(actor.id, self.now(), self.directory.revision)

    def make_id(self, noun: str) -> str:
        """A new unique id."""
        moment = _encode_base36(self.now_ms())
        return f"{noun}_{moment}" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))

    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(1_000 * self._clock())

    def resolve_since(self, before: int | None, is_on: bool | None) -> int | None:
        """When a switch was turned on: `before` if it already was, None if it is off."""
        if is_on is None:
            return before
        return (before or self.now()) if is_on else None

    def _apply(self, work: Callable[[], T]) -> T:
        self._require_revision(self._store.revision())
        for _ in range(TRIES):
            try:
                return work()
            except StaleDirectory:
                self._read()
        raise Conflict("others change something at the same time all the while: try again")

    def _catch_up(self, revision: int) -> None:
        """Called in the feed's thread; returns once the revision is known. Raises StoreUnavailable."""
        self._thread.submit(self._require_revision, revision).result()

    def _require_revision(self, revision: int) -> None:
        if revision != self.directory.revision:
            self._read()

    def _read(self) -> None:
        self._set_directory(self._store.directory(self.directory))

    def _set_directory(self, directory: Directory) -> None:
        self._view = _View(directory, DirectoryIndex.from_directory(directory))
        for listener in self._listeners:
            listener(directory)


def replace_by_id(things: Iterable[Named], thing: Named) -> tuple[Named, ...]:
    """Replaces the item with the same id, or appends the item."""
    by_id = {each.id: each for each in things} | {thing.id: thing}
    return tuple(by_id.values())


def _encode_base36(number: int) -> str:
    """In base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits.rjust(MOMENT_LENGTH, ALPHABET[0])
