"""What all changes of projects, users, keys, limits and prices share: the one thread in which they are made,
and the directory as it is known, of which everybody is told who answers requests from memory.

A change is checked against the directory of one revision, and written only while the store is at that
revision still: where another process wrote something, the directory is read again and the change checked
again. Holds no rule of who may do what; `services.policy` does.
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
from antiphon.services.policy import Named, Policy
from antiphon.store.base import ChangeAuthor, ChangeFeed, Directory, StaleDirectory, TenancyStore

MOMENT_LENGTH = 9
"""Digits of a moment in milliseconds, which ids begin with: what is listed by them comes in order."""
RANDOM_LENGTH = 10
TRIES = 20
"""How often a change is begun again because others were faster; each time one of them has got on."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _View:
    """A directory, and the same as it is asked."""

    directory: Directory
    known: DirectoryIndex


class DirectoryChanges:
    """The changes of one process, one after the other."""

    def __init__(
        self,
        store: TenancyStore,
        listeners: Sequence[Callable[[Directory], None]],
        clock: Callable[[], float],
        feed: ChangeFeed | None = None,
        reached: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`listeners` are told each new directory, in the thread. `clock`: Unix seconds. `feed` tells what
        other processes change. `reached` waits until the other processes of this server know a revision."""
        self._store = store
        self._listeners = listeners
        self._clock = clock
        self._feed = feed
        self._reached = reached
        self._view = _View(Directory(), DirectoryIndex.of(Directory()))
        self._thread = ThreadPoolExecutor(1, "antiphon-store")
        """One change at a time; and each to its end, whether or not the caller still waits."""

    @property
    def directory(self) -> Directory:
        """As it is known."""
        return self._view.directory

    @property
    def policy(self) -> Policy:
        """The rules as of now."""
        view = self._view
        return Policy(view.directory, self.now(), view.known)

    async def load(self) -> None:
        """Learns what the store holds, and from then on what others change of it. Raises StoreUnavailable."""
        await self.run_in_thread(lambda: self._set_directory(self._store.directory()))
        if self._feed is not None:
            self._feed.start(self._catch_up)

    def close(self) -> None:
        """Waits for the change that is being made, and lets go of the store."""
        if self._feed is not None:
            self._feed.close()
        self._thread.shutdown()
        self._store.close()

    async def apply(self, work: Callable[[], T]) -> T:
        """Makes a change: `work` checks it against `policy` and `directory`, has the store write it as `by`
        says, tells `learn`, and returns what is answered. It runs in the thread, and once more from its
        beginning where another process was faster, so it changes nothing else. What it answers holds in
        every process of this server.

        Raises what `work` raises; StoreUnavailable; Conflict where others are always faster.
        """
        made = await self.run_in_thread(lambda: self._apply(work))
        if self._reached is not None:  # not in the thread: two that change something must hear each other
            await self._reached(self.directory.revision)
        return made

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Runs what only asks the store, after the changes that were asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def learn(self, revision: int, **changes: tuple[object, ...]) -> None:
        """What was written is known from now on, without asking the database again: it may be gone.
        `revision`: what the store answered to the write; `changes`: the parts of the directory that are
        others now. In the thread, within `apply`."""
        self._set_directory(replace(self.directory, revision=revision, **changes))  # type: ignore[arg-type]

    def attribute_to(self, actor: Actor) -> ChangeAuthor:
        """Who changes something now, and what was known then."""
        return ChangeAuthor(actor.id, self.now(), self.directory.revision)

    def make_id(self, noun: str) -> str:
        """An id that nobody has."""
        moment = _encode_base36(self.now_ms())
        return f"{noun}_{moment}" + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))

    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    def now_ms(self) -> int:
        """Unix milliseconds."""
        return int(1_000 * self._clock())

    def resolve_since(self, before: int | None, is_on: bool | None) -> int | None:
        """Since when something holds that may be switched on and off."""
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
        """In the feed's thread; returns when the revision is known. Raises StoreUnavailable."""
        self._thread.submit(self._require_revision, revision).result()

    def _require_revision(self, revision: int) -> None:
        if revision != self.directory.revision:
            self._read()

    def _read(self) -> None:
        self._set_directory(self._store.directory(self.directory))

    def _set_directory(self, directory: Directory) -> None:
        self._view = _View(directory, DirectoryIndex.of(directory))
        for listener in self._listeners:
            listener(directory)


def replace_by_id(things: Iterable[Named], thing: Named) -> tuple[Named, ...]:
    """The same with one in the place of the one of its id, or at the end."""
    by_id = {each.id: each for each in things} | {thing.id: thing}
    return tuple(by_id.values())


def _encode_base36(number: int) -> str:
    """In base 36."""
    digits = ""
    while number:
        number, digit = divmod(number, len(ALPHABET))
        digits = ALPHABET[digit] + digits
    return digits.rjust(MOMENT_LENGTH, ALPHABET[0])
