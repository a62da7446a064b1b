"""The keeper's side of its socket: one limiter for every HTTP process that connects.

Each connection is a session; its end ends the claims that were reserved over it and no others. What a session
asks is done in its order as far as one claim is concerned.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from antiphon.domain.limits import Standing
from antiphon.error_reports import ErrorReport
from antiphon.errors import AntiphonError, BudgetExceeded, LargerThanLimit, RateLimited
from antiphon.ipc.channel import Channel
from antiphon.ipc.frames import FrameError, FrameReader, Hello
from antiphon.ipc.sockets import bind_private, remove
from antiphon.ipc.tasks import task_group
from antiphon.limits.estate import Estate
from antiphon.limits.frames import (
    TO_KEEPER,
    Ask,
    Asking,
    Bequest,
    Extend,
    Leave,
    Left,
    Refused,
    Reply,
    Reserve,
    Restore,
    Settle,
    Since,
    Stand,
    ToKeeper,
)
from antiphon.limits.local import LocalLimiter
from antiphon.telemetry.logs import record

BACKLOG = 64
"""Connections that may wait to be accepted; an HTTP process opens one."""

PART = 200
"""Counters or claims of one message: a counter of a minute has at most a thousand numbers."""

LOOK_S = 0.002

MAX_UNSENT = 16 * 1024 * 1024
"""Bytes that may wait for an HTTP process to read; one that is this far behind has stood still for long."""


class Session:
    """One HTTP process's connection, and the claims that it holds."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._claims: set[str] = set()
        self._pending: dict[str, asyncio.Task[None]] = {}
        """What is still being done for a claim: only a limit that was never seen before takes time."""
        self._is_over = False
        self._leaving = False
        self.left = asyncio.Event()
        """The worker says nothing more, or is gone."""
        self.channel: Channel[ToKeeper] = Channel(FrameReader(TO_KEEPER), self._receive, self._lost)

    def _receive(self, message: ToKeeper) -> None:
        match message:
            case Hello():
                raise FrameError("the worker said Hello twice")
            case Settle():
                self._settle(message)
            case Left():
                self.left.set()
            case Ask():
                self._keeper.tasks.create_task(self._answer(message))
            case Restore(claim):
                self._for_claim(claim, self._restore(message))
            case Reserve(_, claim) | Extend(_, claim):
                self._for_claim(claim, self._answer(message))

    def _for_claim(self, claim: str, doing: Coroutine[None, None, None]) -> None:
        task = self._keeper.tasks.create_task(_after(self._pending.get(claim), doing))
        self._pending[claim] = task
        task.add_done_callback(lambda _: self._done(claim, task))

    def _done(self, claim: str, task: asyncio.Task[None]) -> None:
        if self._pending.get(claim) is task:
            del self._pending[claim]
        if self._is_over:
            self._abandon(claim)

    async def _restore(self, message: Restore) -> None:
        await self._keeper.limiter.restore(message.claim, message.limits, message.amounts)
        self._claims.add(message.claim)

    async def _answer(self, asking: Asking) -> None:
        try:
            reply: Reply = Stand(asking.call, await self._asked(asking))
        except AntiphonError as error:
            reply = refused(asking.call, error)
        if self._leaving:
            return  # what it took now nobody would know of: the worker asks again elsewhere
        if self.channel.unsent > MAX_UNSENT:
            self.channel.cut("the worker has stopped reading")
        else:
            self.channel.put(reply)

    async def _asked(self, asking: Asking) -> tuple[Standing, ...]:
        limiter = self._keeper.limiter
        match asking:
            case Ask(_, limits):
                return await limiter.standing(limits)
            case Extend(_, claim, limits, amounts):
                return await limiter.extend(claim, limits, amounts)
            case Reserve(_, claim, limits, amounts):
                standings = await limiter.reserve(claim, limits, amounts)
                self._claims.add(claim)
                return standings

    def _settle(self, message: Settle) -> None:
        if (pending := self._pending.get(message.claim)) is not None:
            pending.add_done_callback(lambda _: self._settle(message))
        elif message.claim in self._claims:
            self._claims.discard(message.claim)
            self._keeper.limiter.settle(message.claim, message.amounts)

    def _lost(self, reason: str) -> None:
        self._is_over = True
        self.left.set()
        record("worker_left", logging.DEBUG, reason=reason, claims=len(self._claims))
        for claim in tuple(self._claims):
            self._abandon(claim)
        self._keeper.sessions.pop(self, None)

    @property
    def has_left(self) -> bool:
        """Whether the worker is there, and says nothing more."""
        return self.left.is_set() and not self._is_over

    def holds(self, claim: str) -> bool:
        """Whether a claim was reserved or restored over it, and stands."""
        return claim in self._claims

    async def leave(self) -> None:
        """Has the worker say nothing more, and waits until all that it said is done."""
        self.channel.put(Leave())
        await self.left.wait()
        while self._pending and not self._is_over:
            await asyncio.wait(tuple(self._pending.values()))

    async def bequeath(self, estate: Estate) -> None:
        """Leaves all that was counted to the worker, and waits until it has it."""
        self._leaving = True
        for part in estate.parts(PART):
            self.channel.put(Bequest(part))
        self.channel.put(Bequest(Estate(), is_last=True))
        while self.channel.unsent and not self._is_over:  # noqa: ASYNC110 - the kernel's buffer
            await asyncio.sleep(LOOK_S)
        self.channel.finish()
        while not self._is_over:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)

    def _abandon(self, claim: str) -> None:
        """What a process reserved and cannot settle any more counts as used."""
        if claim in self._claims and claim not in self._pending:
            self._claims.discard(claim)
            self._keeper.limiter.abandon(claim)


async def _after(before: asyncio.Task[None] | None, doing: Coroutine[None, None, None]) -> None:
    """One thing of a claim after the other."""
    if before is not None:
        await asyncio.wait([before])
    await doing


def refused(call: int, error: AntiphonError) -> Refused:
    """The error with what it says of limits."""
    report = ErrorReport.of(error)
    if not isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        return Refused(call, report)
    standings = tuple(each for each in error.standings if isinstance(each, Standing))
    return Refused(call, report, error.limit, standings)


@dataclass(slots=True)
class Keeper:
    """Every session of one limiter."""

    limiter: LocalLimiter
    tasks: asyncio.TaskGroup
    began: float
    """Unix seconds: what was settled before is known from the ledger."""
    sessions: dict[Session, None] = field(default_factory=dict)
    """The oldest first."""

    def session(self) -> Channel[ToKeeper]:
        """The protocol of a new connection."""
        session = Session(self)
        self.sessions[session] = None
        session.channel.greeted.add_done_callback(lambda greeted: self._greet(session, greeted))
        return session.channel

    async def bequeath(self, within: float) -> bool:
        """Has every worker say nothing more, and leaves what was counted to the one that came last; whether
        one has it. `within`: seconds for each of the two."""
        sessions = tuple(self.sessions)
        leaving = [self.tasks.create_task(session.leave()) for session in sessions]
        if leaving:
            _, late = await asyncio.wait(leaving, timeout=within)
            for task in late:
                task.cancel()
        heirs = [session for session in sessions if session.has_left]
        if not heirs:
            return False
        giving = self.tasks.create_task(heirs[-1].bequeath(self.limiter.estate()))
        await asyncio.wait([giving], timeout=within)
        return giving.done() or not giving.cancel()

    def _greet(self, session: Session, greeted: asyncio.Future[None]) -> None:
        if not greeted.cancelled() and greeted.exception() is None:
            session.channel.put(Since(self.began))


@asynccontextmanager
async def keeping(limiter: LocalLimiter, path: str, began: float) -> AsyncIterator[Keeper]:
    """Offers a limiter on a socket that only this user may open; afterwards the path is gone.

    `began`: Unix seconds before which all that was settled is in the ledger that the limiter is seeded from.
    """
    sock = bind_private(path)
    async with task_group() as tasks:
        keeper = Keeper(limiter, tasks, began)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(keeper.session, sock=sock, backlog=BACKLOG)
        try:
            yield keeper
        finally:
            server.close()
            for session in tuple(keeper.sessions):
                session.channel.cut("the keeper is stopping")
            remove(path)
