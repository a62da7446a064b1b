"""The limits of a server with one HTTP process, also while another takes its place: one of the two counts,
and the other asks it.

Whoever holds a lock in the server's directory counts, and listens for the other as a keeper does. When it
ends it leaves all that it counted to the other, so that nothing is forgotten and nothing counted twice. Where
it dies, the other begins with the ledger and with what runs in it, as after the death of a keeper.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, Standing
from antiphon.errors import LimitsUnavailable
from antiphon.ipc.frames import Incompatible
from antiphon.ipc.tasks import task_group
from antiphon.keeper.sessions import Keeper, keeping
from antiphon.limits.estate import Estate
from antiphon.limits.local import LocalLimiter
from antiphon.limits.remote import RemoteLimiter, Superseded
from antiphon.telemetry.logs import record

LOCK_SUFFIX = ".lock"

PAUSE_S = 0.05
"""Seconds between two looks at the lock, while nobody counts."""

HEIR_PAUSE_S = 0.005
"""The same for who was left what is counted: whoever left it ends in this moment."""

HEIR_S = 5.0
"""Seconds after which somebody else has the lock."""

BEQUEATHED_S = 1.0
"""Seconds for leaving what was counted: the end of a server is not held up by a process that hangs."""

ORPHANED_S = 10.0
"""Seconds in which a third process, whose claims were left too, connects; else they count as used."""


class Succession:
    """A `Limiter`: this process's own where it is its turn to count, else that of whose turn it is."""

    def __init__(self, path: str, clock: Clock, counting: Callable[[], LocalLimiter]) -> None:
        """`path`: of the socket. `counting` makes the limiter that counts from what the ledger knows."""
        self._path = path
        self._clock = clock
        self._counting = counting
        self._remote = RemoteLimiter(path, clock)
        self._local: LocalLimiter | None = None
        self._over = asyncio.Event()

    @property
    def available(self) -> bool:
        """Whether somebody counts."""
        return self._local is not None or self._remote.available

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[Standing, ...]:
        if self._local is None:
            with suppress(Superseded):
                return await self._remote.reserve(claim, limits, amounts)
        return await self._own().reserve(claim, limits, amounts)

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[Standing, ...]:
        if self._local is None:
            with suppress(Superseded):
                return await self._remote.extend(claim, limits, amounts)
        return await self._own().extend(claim, limits, amounts)

    def settle(self, claim: str, amounts: Amounts) -> None:
        (self._local or self._remote).settle(claim, amounts)

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        if self._local is None:
            with suppress(Superseded):
                return await self._remote.standing(limits)
        return await self._own().standing(limits)

    async def aclose(self) -> None:
        """What was counted is left to another process, where one waits for it."""
        self._over.set()
        await self._remote.aclose()

    async def ready(self, within: float) -> None:
        """Waits until this process counts, or can ask who does; at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self.available:  # noqa: ASYNC110 - either of two
                    await asyncio.sleep(HEIR_PAUSE_S)

    @property
    def counts(self) -> bool:
        """Whether it is this process's turn."""
        return self._local is not None

    async def take_turns(self, lock: int | None) -> None:
        """Asks who counts until it is this process's turn, and then counts until closed. `lock`: descriptor
        of the file whose lock says whose turn it is; None where there can be none."""
        locked = _taken(lock)
        while not locked:
            if self._over.is_set():
                return
            try:
                await self._remote.connection()
            except Incompatible as problem:
                record("keeper_incompatible", logging.ERROR, reason=str(problem))
            except (OSError, TimeoutError):
                pass
            locked = await self._locked(lock)
        estate = self._remote.inherited
        local, began = self._counting(), self._clock.wall()
        if estate is None:
            await self._restored(local, began)
        else:
            for part in estate:
                local.inherit(part)
            began = 0.0  # nothing comes from the ledger: whatever others ended meanwhile has to be told
        self._turn(local)
        try:
            await self._offered(local, began, estate or ())
        except OSError as problem:  # as on a full disk
            said = os.strerror(problem.errno or 0)
            record("limits_not_offered", logging.WARNING, problem=said)

    async def _offered(self, local: LocalLimiter, began: float, estate: Sequence[Estate]) -> None:
        """Counts for whoever connects until closed; then leaves what was counted to the one that did last."""
        async with keeping(local, self._path, began) as keeper:
            if estate:
                keeper.tasks.create_task(self._tidied(keeper, estate))
            await self._over.wait()
            waits = bool(keeper.sessions)
            if await keeper.bequeath(BEQUEATHED_S):
                record("limits_bequeathed", logging.DEBUG)
            elif waits:
                record("limits_not_bequeathed", logging.WARNING)

    async def _locked(self, lock: int | None) -> bool:
        """Whether it is this process's turn now that nobody counts: first that of who was left what was
        counted."""
        if self._remote.inherited is None:
            await asyncio.sleep(PAUSE_S)
            return _taken(lock)
        with suppress(TimeoutError):
            async with asyncio.timeout(HEIR_S):
                while not _taken(lock):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(HEIR_PAUSE_S)
                return True
        return False

    async def _restored(self, local: LocalLimiter, began: float) -> None:
        """Has claims count that stand in this process, after the death of who counted them, and those that
        ended since this moment: the ledger may have been read before they were in it."""
        for id_, claim in tuple(self._remote.claims.items()):
            if id_ in self._remote.claims:
                await local.restore(id_, claim.limits, claim.amounts)
        for each in self._remote.ended:  # others may end meanwhile, and are looked at too
            if each.at >= began:
                await local.restore(each.id, each.claim.limits, each.claim.amounts)

    def _turn(self, local: LocalLimiter) -> None:
        """Counts from now on; what ended while nobody could be told is settled first."""
        for each in self._remote.ended:
            local.settle(each.id, each.used)
        self._local = local
        self._remote.supersede()

    async def _tidied(self, keeper: Keeper, estate: Sequence[Estate]) -> None:
        """Ends claims that were left and that nobody claims: of a third process, which died since."""
        own = set(self._remote.claims)
        others = [claim.id for part in estate for claim in part.claims if claim.id not in own]
        with suppress(TimeoutError):
            async with asyncio.timeout(ORPHANED_S):
                await self._over.wait()
        for claim in () if self._over.is_set() else others:
            if not any(session.holds(claim) for session in keeper.sessions):
                keeper.limiter.abandon(claim)

    def _own(self) -> LocalLimiter:
        if self._local is None:
            raise LimitsUnavailable("the limits are not counted yet; try again", retry_after=1.0)
        return self._local


@contextmanager
def _opened(path: str) -> Iterator[int | None]:
    """A file whose lock may be taken, and is let go of at the end; None where it cannot be made, as on a full
    disk."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as problem:
        record("limits_not_offered", logging.WARNING, problem=os.strerror(problem.errno or 0))
        yield None
        return
    try:
        yield lock
    finally:
        os.close(lock)


def _taken(lock: int | None) -> bool:
    """Whether the file's lock is this process's now."""
    if lock is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@asynccontextmanager
async def succeeding(
    path: Path, clock: Clock, counting: Callable[[], LocalLimiter], within: float
) -> AsyncIterator[Succession]:
    """The limits of this process while the context lasts; afterwards those of the process that has taken its
    place. `within`: seconds that another may take to be asked; then the context begins all the same."""
    limiter = Succession(str(path), clock, counting)
    with _opened(f"{path}{LOCK_SUFFIX}") as lock:
        async with task_group() as group:
            turns = group.create_task(limiter.take_turns(lock))
            try:
                await limiter.ready(within)
                yield limiter
            finally:
                await limiter.aclose()
                await asyncio.wait([turns], timeout=3 * BEQUEATHED_S if limiter.counts else 0)
                turns.cancel()
