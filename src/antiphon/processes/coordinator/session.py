"""The coordinator's side of one HTTP process: its claims, known revisions and metrics.

The end of a session ends only the claims that this process reserved. Requests about one claim are handled in
order.
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
    ChainReply,
    CompletedReply,
    Ended,
    Extend,
    FindChain,
    FindItems,
    FindResponse,
    ItemsReply,
    KeepResponse,
    KnownRevision,
    LimitsReply,
    Ping,
    Publish,
    Refused,
    ReleasePlace,
    RemoveResponse,
    Reply,
    Report,
    Reserve,
    ResponseQuestion,
    ResponseReply,
    Restore,
    Settle,
    ToCoordinator,
    Topic,
    TotalsReply,
)
from antiphon.processes.ipc import Frame, FrameError, Hello
from antiphon.services.response_memory import ResponseMemory
from antiphon.telemetry.exposition import Totals
from antiphon.telemetry.logs import record

# --- to the coordinator -------------------------------------------------------------------------------------


# --- from the coordinator -----------------------------------------------------------------------------------


MAX_UNSENT = 16 * 1024 * 1024
"""The most bytes that wait for an HTTP process to read. A process with more is stuck."""

ROOM_FOR_CHAIN = 1024 * 1024
"""The most unsent bytes before a reply with kept responses. Such a reply has up to 12 MiB, so a process that
asks for several at once gets one after another."""

ROOM_PAUSE_S = 0.005
"""Seconds between two looks at the unsent bytes."""

RESTORE_PAUSE_S = 0.2
"""Seconds between attempts to read the ledger while claims are repeated."""

NOTHING = Amounts()

LimitsRequest = Reserve | Extend | AskLimits


class Link(Protocol):
    """The link to a process: a `Channel`, or calls in the same process."""

    unsent: int

    def put(self, message: Frame) -> None: ...
    def cut(self, reason: str) -> None: ...


class Owner(Protocol):
    """The attributes of the coordinator that a session uses."""

    tasks: asyncio.TaskGroup
    started_ms: int
    unclaimed: set[str]
    has_snapshot: bool
    responses: ResponseMemory | None

    @property
    def counts_limits(self) -> bool: ...
    @property
    def limiter(self) -> LocalLimiter:
        """Raises LimitsUnavailable if limits are not counted here."""

    async def publish(self, revision: int, names: bytes, change: bytes = b"") -> bool: ...
    async def announce(self, revision: int, sender: "ProcessSession") -> None: ...
    def sum_other_metrics(self, session: "ProcessSession") -> tuple[int, Totals]: ...
    def note_change(self) -> None: ...
    def remove_session(self, session: "ProcessSession") -> None: ...


class ProcessSession:
    """The session of one HTTP process: it begins with the connection and ends with it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self.link: Link
        """Set before the session receives a message."""
        self.known_revisions: dict[Topic, int] = {}
        """The revision of each topic that the process uses."""
        self.totals = Totals()
        self._claims: set[str] = set()
        """The unsettled claims of the process."""
        self._pending: dict[str, asyncio.Task[None]] = {}
        """Claims with a running task, such as a read of the ledger."""
        self._restoring: set[asyncio.Task[None]] = set()
        """Tasks that count repeated claims. Other requests wait for them."""
        self.is_over = False

    async def wait_restored(self) -> None:
        """Waits until all repeated claims are counted."""
        while self._restoring:
            await asyncio.wait(tuple(self._restoring))

    def receive(self, message: ToCoordinator) -> None:
        """Handles a message of the process. Raises FrameError for a second Hello."""
        match message:
            case Hello():
                raise FrameError("the process sent Hello twice")
            case Settle(claim, amounts):
                self._settle(claim, amounts)
            case ReleasePlace(claim):
                self._release_place(claim)
            case Reserve() | Extend() | AskLimits():
                self._handle_limits_request(message)
            case Restore():
                self._restore(message)
            case Ended():
                self._restore_ended(message)
            case _:
                self._receive_other(message)

    def _receive_other(
        self, message: KnownRevision | Report | AskTotals | Ping | Publish | Announce | ResponseQuestion
    ) -> None:
        """Handles a message that is not about limits."""
        match message:
            case KnownRevision(topic, revision):
                self.known_revisions[topic] = revision
                self._owner.note_change()
            case Report(totals):
                self.totals = totals
            case AskTotals(call):
                self._reply(TotalsReply(call, *self._owner.sum_other_metrics(self)))
            case Ping(call):
                self._owner.tasks.create_task(self._answer_ping(call))
            case Publish() | Announce():
                self._owner.tasks.create_task(self._inform_processes(message))
            case _:
                self._owner.tasks.create_task(self._answer_about_responses(message))

    async def _answer_about_responses(self, question: ResponseQuestion) -> None:
        """Answers a question about kept responses. A large reply waits until the process has read most of the
        earlier ones. If responses are not kept here, none is found."""
        if not isinstance(question, KeepResponse | RemoveResponse):  # these two stay in their order
            while self.link.unsent > ROOM_FOR_CHAIN and not self.is_over:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(ROOM_PAUSE_S)
        memory = self._owner.responses or ResponseMemory(0)
        match question:
            case KeepResponse(call, kept, now):
                self._reply(CompletedReply(call, await memory.add(kept, now)))
            case RemoveResponse(call, project, id_):
                self._reply(CompletedReply(call, await memory.remove(project, id_)))
            case FindResponse(call, project, id_, now):
                self._reply(ResponseReply(call, await memory.find(project, id_, now)))
            case FindChain(call, project, id_, now, max_bytes):
                self._reply(ChainReply(call, await memory.find_chain(project, id_, now, max_bytes)))
            case FindItems(call, project, ids, now, max_bytes):
                self._reply(ItemsReply(call, dict(await memory.find_items(project, ids, now, max_bytes))))

    async def _answer_ping(self, call: int) -> None:
        """Replies whether limits can be read. Then reads again what could not be read, for the next ping: a
        database can take longer to answer than a ping has time."""
        if self._owner.counts_limits:
            reader = self._owner.limiter.seed_reader
            self._reply(CompletedReply(call, reader.can_read))
            await reader.retry()
        else:
            self._reply(CompletedReply(call))

    def close(self, reason: str) -> None:
        """Ends the session of a process that has ended. Its unsettled claims count as used."""
        self.is_over = True
        record("worker_left", logging.DEBUG, reason=reason, claims=len(self._claims))
        for claim in tuple(self._claims):
            self._abandon(claim)
        self._owner.remove_session(self)

    # --- limits ---------------------------------------------------------------------------------------------

    def _handle_limits_request(self, request: LimitsRequest) -> None:
        """Replies immediately, unless the request must wait for repeated claims, for an earlier request about
        the claim, or for counters from the ledger."""
        claim = "" if isinstance(request, AskLimits) else request.claim
        try:
            limiter, must_wait = self._owner.limiter, bool(self._restoring) or claim in self._pending
            is_seeded = not must_wait and limiter.is_seeded(request.limits)
        except AntiphonError as error:
            self._reply(build_refusal(request.call, error))
            return
        if is_seeded:
            self._apply_and_reply(request)
        else:
            self._add_pending(
                claim, self._owner.tasks.create_task(self._seed_and_reply(request, self._pending.get(claim)))
            )

    async def _seed_and_reply(self, request: LimitsRequest, earlier_task: asyncio.Task[None] | None) -> None:
        """Reads the counters of a request from the ledger, after the earlier task of its claim, and
        replies."""
        await _wait_done(earlier_task)
        await self.wait_restored()
        try:
            await self._owner.limiter.seed(request.limits)
        except AntiphonError as error:
            self._reply(build_refusal(request.call, error))
        else:
            self._apply_and_reply(request)

    def _apply_and_reply(self, request: LimitsRequest) -> None:
        """Replies with the status of the limits, or with the error that refuses the request."""
        try:
            self._reply(LimitsReply(request.call, self._apply(request)))
        except AntiphonError as error:
            self._reply(build_refusal(request.call, error))

    def _apply(self, request: LimitsRequest) -> tuple[LimitStatus, ...]:
        """Applies a request to the limiter, which has read its counters. Returns the status of each limit."""
        limiter = self._owner.limiter
        match request:
            case AskLimits(_, limits):
                return limiter.read_status_seeded(limits)
            case Extend(_, claim, limits, amounts):
                return limiter.extend_seeded(claim, limits, amounts)
            case Reserve(_, claim, limits, amounts):
                if (
                    claim in self._owner.unclaimed
                ):  # an earlier coordinator reserved it, but its reply was lost
                    self._owner.unclaimed.discard(claim)
                    limiter.settle(claim, NOTHING)
                statuses = limiter.reserve_seeded(claim, limits, amounts)
                self._claims.add(claim)
                return statuses

    def _restore(self, message: Restore | Ended) -> None:
        """Starts a task that counts a repeated claim. Other requests wait for it."""
        task = self._owner.tasks.create_task(self._restore_claim(message, self._pending.get(message.claim)))
        self._restoring.add(task)
        task.add_done_callback(self._restoring.discard)
        self._add_pending(message.claim, task)

    async def _restore_claim(self, message: Restore | Ended, earlier_task: asyncio.Task[None] | None) -> None:
        """Counts a repeated claim. Tries again while the ledger cannot be read."""
        await _wait_done(earlier_task)
        self._owner.unclaimed.discard(message.claim)
        while not self.is_over:
            try:
                await self._owner.limiter.restore(message.claim, message.limits, message.amounts)
            except LimitsUnavailable:
                await asyncio.sleep(RESTORE_PAUSE_S)  # other requests wait meanwhile
            else:
                self._claims.add(message.claim)
                return

    def _restore_ended(self, message: Ended) -> None:
        """Counts a repeated settled claim, unless the counters already include it."""
        is_unclaimed = message.claim in self._owner.unclaimed
        has_ended_since_start = message.ended_ms is not None and message.ended_ms >= self._owner.started_ms
        if is_unclaimed or (has_ended_since_start and not self._owner.has_snapshot):
            self._restore(message)
            self._settle(message.claim, message.used)

    def _settle(self, claim: str, amounts: Amounts) -> None:
        """Ends a claim with the used amounts. If a task about the claim runs, waits for its end."""
        if (pending := self._pending.get(claim)) is not None:
            pending.add_done_callback(lambda _: self._settle(claim, amounts))
        elif claim in self._claims:
            self._claims.discard(claim)
            self._owner.limiter.settle(claim, amounts)

    def _release_place(self, claim: str) -> None:
        """Ends what a claim counts in limits of concurrent requests. If a task about the claim runs, waits
        for its end."""
        if (pending := self._pending.get(claim)) is not None:
            pending.add_done_callback(lambda _: self._release_place(claim))
        elif claim in self._claims:
            self._owner.limiter.release_place(claim)

    def _abandon(self, claim: str) -> None:
        """Counts an unsettled claim as used, unless a task about it runs."""
        if claim in self._claims and claim not in self._pending:
            self._claims.discard(claim)
            self._owner.limiter.abandon(claim)

    def _add_pending(self, claim: str, task: asyncio.Task[None]) -> None:
        """Makes later requests about the claim wait for the task."""
        if claim:
            self._pending[claim] = task
            task.add_done_callback(lambda _: self._finish_task(claim, task))

    def _finish_task(self, claim: str, task: asyncio.Task[None]) -> None:
        """Removes a finished task of a claim. Abandons the claim if the session is closed."""
        if self._pending.get(claim) is task:
            del self._pending[claim]
        if self.is_over:
            self._abandon(claim)

    # --- state that all processes share ------------------------------------------------------------------

    async def _inform_processes(self, message: Publish | Announce) -> None:
        """Publishes names or announces a revision, and replies when the processes have read it."""
        try:
            if isinstance(message, Publish):
                is_published = await self._owner.publish(message.revision, message.names, message.change)
                self._reply(CompletedReply(message.call, is_published))
            else:
                await self._owner.announce(message.revision, self)
                self._reply(CompletedReply(message.call))
        except AntiphonError as error:
            self._reply(build_refusal(message.call, error))

    def _reply(self, reply: Reply) -> None:
        """Sends a reply. Ends the connection if the process has stopped reading."""
        if self.link.unsent > MAX_UNSENT:
            self.link.cut("the process has stopped reading")
        else:
            self.link.put(reply)


async def _wait_done(task: asyncio.Task[None] | None) -> None:
    """Waits until a task is done, cancelled or failed."""
    if task is not None:
        await asyncio.wait([task])


def build_refusal(call: int, error: AntiphonError) -> Refused:
    """Converts an error and its limits to a message."""
    report = ErrorReport.from_error(error)
    if not isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        return Refused(call, report)
    statuses = tuple(status for status in error.statuses if isinstance(status, LimitStatus))
    return Refused(call, report, error.limit, statuses)
