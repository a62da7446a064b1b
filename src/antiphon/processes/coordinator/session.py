"""The coordinator's side of one HTTP process: its claims, known revisions and totals.

The end of a session ends the claims that were reserved over it, and no others. Requests about one claim are
handled in order.
"""

import asyncio
import logging
from typing import Protocol

from antiphon.domain.limits import Amounts, LimitStatus
from antiphon.errors import (
    AntiphonError,
    BudgetExceeded,
    ErrorReport,
    LargerThanLimit,
    LimitsUnavailable,
    RateLimited,
)
from antiphon.limits.local import LocalLimiter
from antiphon.processes.coordinator.frames import (
    Announce,
    AskLimits,
    AskTotals,
    CompletedReply,
    Ended,
    Extend,
    KnownRevision,
    LimitsReply,
    Ping,
    Publish,
    Refused,
    Reply,
    Report,
    Reserve,
    Restore,
    Settle,
    ToCoordinator,
    Topic,
    TotalsReply,
)
from antiphon.processes.ipc import Frame, FrameError, Hello
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.logs import record

MAX_UNSENT = 16 * 1024 * 1024
"""Most bytes that wait for an HTTP process to read. A process this far behind is stuck."""

AGAIN_S = 0.2
"""Seconds until an unreadable ledger is asked again while claims are restated."""

NOTHING = Amounts()

AskingLimits = Reserve | Extend | AskLimits


class Link(Protocol):
    """The link to a process: a `Channel`, or a call in the same process."""

    unsent: int

    def put(self, message: Frame) -> None: ...
    def cut(self, reason: str) -> None: ...


class Owner(Protocol):
    """The part of the coordinator that a session uses."""

    tasks: asyncio.TaskGroup
    began: int
    unclaimed: set[str]
    is_loaded: bool

    @property
    def limiter(self) -> LocalLimiter:
        """Raises LimitsUnavailable where limits are not counted here."""

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool: ...
    async def announce(self, revision: int, by: "ProcessSession") -> None: ...
    def sum_others(self, session: "ProcessSession") -> tuple[int, Totals]: ...
    def note_change(self) -> None: ...
    def forget(self, session: "ProcessSession") -> None: ...


class ProcessSession:
    """One HTTP process's connection."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.link: Link
        """Set by the maker of the session before it receives anything."""
        self.known: dict[Topic, int] = {}
        """Revisions that the process answers by, of topics that it has read."""
        self.totals = Totals()
        self._claims: set[str] = set()
        self._pending: dict[str, asyncio.Task[None]] = {}
        """Claims whose limits are being read from the ledger."""
        self._restoring: set[asyncio.Task[None]] = set()
        """Restated claims; they are counted before any other request."""
        self.is_over = False

    async def wait_restored(self) -> None:
        """Waits until all restated claims are counted."""
        while self._restoring:
            await asyncio.wait(tuple(self._restoring))

    def receive(self, message: ToCoordinator) -> None:
        match message:
            case Hello():
                raise FrameError("the process said Hello twice")
            case Settle(claim, amounts):
                self._settle(claim, amounts)
            case Reserve() | Extend() | AskLimits():
                self._count(message)
            case Restore():
                self._restore(message)
            case Ended():
                self._end(message)
            case _:
                self._receive_other(message)

    def _receive_other(self, message: KnownRevision | Report | AskTotals | Ping | Publish | Announce) -> None:
        match message:
            case KnownRevision(topic, revision):
                self.known[topic] = revision
                self._owner.note_change()
            case Report(totals):
                self.totals = totals
            case AskTotals(call):
                self._reply(TotalsReply(call, *self._owner.sum_others(self)))
            case Ping(call):
                self._reply(CompletedReply(call))
            case Publish() | Announce():
                self._owner.tasks.create_task(self._inform_processes(message))

    def lose(self, reason: str) -> None:
        """Ends the session of a process that is gone. Its unsettled claims count as used."""
        self.is_over = True
        record("worker_left", logging.DEBUG, reason=reason, claims=len(self._claims))
        for claim in tuple(self._claims):
            self._abandon(claim)
        self._owner.forget(self)

    # --- limits ---------------------------------------------------------------------------------------------

    def _count(self, asking: AskingLimits) -> None:
        """Answers at once, unless a counter must first be read from the ledger."""
        claim = "" if isinstance(asking, AskLimits) else asking.claim
        try:
            limiter, waits = self._owner.limiter, bool(self._restoring) or claim in self._pending
            seeded = not waits and limiter.is_seeded(asking.limits)
        except AntiphonError as error:
            self._reply(make_refusal(asking.call, error))
            return
        if seeded:
            self._answer(asking)
        else:
            self._pend(claim, self._owner.tasks.create_task(self._seed(asking, self._pending.get(claim))))

    async def _seed(self, asking: AskingLimits, before: asyncio.Task[None] | None) -> None:
        await _wait_done(before)
        await self.wait_restored()
        try:
            await self._owner.limiter.seed(asking.limits)
        except AntiphonError as error:
            self._reply(make_refusal(asking.call, error))
        else:
            self._answer(asking)

    def _answer(self, asking: AskingLimits) -> None:
        try:
            self._reply(LimitsReply(asking.call, self._ask(asking)))
        except AntiphonError as error:
            self._reply(make_refusal(asking.call, error))

    def _ask(self, asking: AskingLimits) -> tuple[LimitStatus, ...]:
        limiter = self._owner.limiter
        match asking:
            case AskLimits(_, limits):
                return limiter.read_status_seeded(limits)
            case Extend(_, claim, limits, amounts):
                return limiter.extend_seeded(claim, limits, amounts)
            case Reserve(_, claim, limits, amounts):
                if claim in self._owner.unclaimed:  # it was answered, but the answer was lost
                    self._owner.unclaimed.discard(claim)
                    limiter.settle(claim, NOTHING)
                standings = limiter.reserve_seeded(claim, limits, amounts)
                self._claims.add(claim)
                return standings

    def _restore(self, message: Restore | Ended) -> None:
        task = self._owner.tasks.create_task(self._restate(message, self._pending.get(message.claim)))
        self._restoring.add(task)
        task.add_done_callback(self._restoring.discard)
        self._pend(message.claim, task)

    async def _restate(self, message: Restore | Ended, before: asyncio.Task[None] | None) -> None:
        await _wait_done(before)
        self._owner.unclaimed.discard(message.claim)
        while not self.is_over:
            try:
                await self._owner.limiter.restore(message.claim, message.limits, message.amounts)
            except LimitsUnavailable:
                await asyncio.sleep(AGAIN_S)  # other requests wait meanwhile
            else:
                self._claims.add(message.claim)
                return

    def _end(self, message: Ended) -> None:
        """Makes later requests about the claim wait for the task."""
        stands = message.claim in self._owner.unclaimed
        ended_since = message.at is not None and message.at >= self._owner.began
        if stands or (ended_since and not self._owner.is_loaded):
            self._restore(message)
            self._settle(message.claim, message.used)

    def _settle(self, claim: str, amounts: Amounts) -> None:
        if (pending := self._pending.get(claim)) is not None:
            pending.add_done_callback(lambda _: self._settle(claim, amounts))
        elif claim in self._claims:
            self._claims.discard(claim)
            self._owner.limiter.settle(claim, amounts)

    def _abandon(self, claim: str) -> None:
        if claim in self._claims and claim not in self._pending:
            self._claims.discard(claim)
            self._owner.limiter.abandon(claim)

    def _pend(self, claim: str, task: asyncio.Task[None]) -> None:
        """Has later requests about the claim wait for the task."""
        if claim:
            self._pending[claim] = task
            task.add_done_callback(lambda _: self._finish_task(claim, task))

    def _finish_task(self, claim: str, task: asyncio.Task[None]) -> None:
        if self._pending.get(claim) is task:
            del self._pending[claim]
        if self.is_over:
            self._abandon(claim)

    # --- state that all processes share ------------------------------------------------------------------

    async def _inform_processes(self, message: Publish | Announce) -> None:
        try:
            if isinstance(message, Publish):
                published = await self._owner.publish(message.revision, message.names, message.change)
                self._reply(CompletedReply(message.call, published))
            else:
                await self._owner.announce(message.revision, self)
                self._reply(CompletedReply(message.call))
        except AntiphonError as error:
            self._reply(make_refusal(message.call, error))

    def _reply(self, reply: Reply) -> None:
        if self.link.unsent > MAX_UNSENT:
            self.link.cut("the process has stopped reading")
        else:
            self.link.put(reply)


async def _wait_done(task: asyncio.Task[None] | None) -> None:
    """Waits until a task is done, however it ends."""
    if task is not None:
        await asyncio.wait([task])


def make_refusal(call: int, error: AntiphonError) -> Refused:
    """Converts an error with its limits to a message."""
    report = ErrorReport.from_error(error)
    if not isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        return Refused(call, report)
    standings = tuple(each for each in error.statuses if isinstance(each, LimitStatus))
    return Refused(call, report, error.limit, standings)
