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
from antiphon.limits.frames import (
    TO_KEEPER,
    Ask,
    Asking,
    Extend,
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
        self.channel: Channel[ToKeeper] = Channel(FrameReader(TO_KEEPER), self._receive, self._lost)

    def _receive(self, message: ToKeeper) -> None:
        match message:
            case Hello():
                raise FrameError("the worker said Hello twice")
            case Settle():
                self._settle(message)
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
        if self.channel.unsent > MAX_UNSENT:
            self.channel.cut("the worker has stopped reading")
        else:
            self.channel.put(reply)

    async def _asked(self, asking: Asking) -> tuple[Standing, ...]:
        limiter = self._keeper.limiter
        match asking:
            case Ask(_, limits):
                return await limiter.standing(limits)
            case Extend(_, claim, amounts):
                return await limiter.extend(claim, amounts)
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
        record("worker_left", logging.DEBUG, reason=reason, claims=len(self._claims))
        for claim in tuple(self._claims):
            self._abandon(claim)
        self._keeper.sessions.discard(self)

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
    sessions: set[Session] = field(default_factory=set)

    def session(self) -> Channel[ToKeeper]:
        """The protocol of a new connection."""
        session = Session(self)
        self.sessions.add(session)
        session.channel.greeted.add_done_callback(lambda greeted: self._greet(session, greeted))
        return session.channel

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
