"""The limits of a node with several HTTP processes: asked of the keeper, which counts for all of them.

It connects by itself, and again after the keeper's process died; then it tells which claims stand. While the
keeper is away a request waits a moment for it. What is settled is told in order and waits for nothing.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon.domain.context import Clock
from antiphon.domain.limits import Amounts, Limit, Standing
from antiphon.errors import AntiphonError, BudgetExceeded, LargerThanLimit, LimitsUnavailable, RateLimited
from antiphon.ipc.channel import Channel
from antiphon.ipc.frames import FrameError, FrameReader, Hello, Incompatible
from antiphon.ipc.tasks import task_group
from antiphon.limits.estate import Estate
from antiphon.limits.frames import (
    TO_WORKER,
    Ask,
    Asking,
    Bequest,
    Extend,
    Farewell,
    Leave,
    Left,
    Refused,
    Reply,
    Reserve,
    Restore,
    Settle,
    Since,
    Stand,
    ToWorker,
)
from antiphon.telemetry.logs import record

PATIENCE = 3.0
"""Seconds that a request waits for a keeper that is away: it is back within one or two."""

PAUSE = 0.05
"""Seconds between attempts to connect; one on a local socket costs microseconds."""

GREETING_DEADLINE = 5.0
"""Seconds for the keeper's greeting."""

RETRY_AFTER = 1.0
"""Seconds; what callers are told to wait."""

NOTHING = Amounts()


@dataclass(slots=True)
class Claim:
    """What this process reserved and has not settled."""

    limits: tuple[Limit, ...]
    amounts: Amounts

    def add(self, more: Amounts) -> None:
        """What was reserved beyond it."""
        self.amounts = Amounts(
            self.amounts.requests + more.requests,
            self.amounts.input_tokens + more.input_tokens,
            self.amounts.output_tokens + more.output_tokens,
            self.amounts.cost + more.cost,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A claim that was settled while the keeper was away."""

    id: str
    claim: Claim
    used: Amounts
    at: float
    """Unix seconds."""


class Superseded(Exception):
    """Nobody is asked any more: this process counts by itself from now on."""


class RemoteLimiter:
    """A `Limiter` over the keeper's socket. `keep_connected` must run beside it, in a task group."""

    def __init__(self, path: str, clock: Clock, patience: float = PATIENCE) -> None:
        """`patience`: seconds that a request waits for a keeper that is away."""
        self._path = path
        self._clock = clock
        self._patience = patience
        self._channel: Channel[ToWorker] | None = None
        self._there = asyncio.Event()
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Reply | None]] = {}
        """What is waited for; None: the connection ended."""
        self._claims: dict[str, Claim] = {}
        self._ended: list[Ended] = []
        self._current: Channel[ToWorker] | None = None
        """The connection, also where the keeper wants to hear nothing more."""
        self._closed = self._superseded = False
        self._inherited: list[Estate] = []
        self._is_heir = False

    @property
    def available(self) -> bool:
        """Whether the keeper can be asked now."""
        return self._channel is not None

    async def connected(self) -> None:
        """Waits until the keeper is there."""
        await self._there.wait()

    @property
    def claims(self) -> Mapping[str, Claim]:
        """What this process reserved and has not settled."""
        return self._claims

    @property
    def ended(self) -> Sequence[Ended]:
        """What it settled and could tell nobody."""
        return self._ended

    @property
    def inherited(self) -> Sequence[Estate] | None:
        """What a keeper that ended left to this process, in parts; None where it left nothing."""
        return self._inherited if self._is_heir else None

    def supersede(self) -> None:
        """Has whoever still asks get Superseded: it is not connected any more, nor will be."""
        self._superseded = self._closed = True
        self._there.set()

    # --- the seam -------------------------------------------------------------------------------------------

    async def reserve(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[Standing, ...]:
        asked = tuple(limits)
        try:
            standings = await self._ask(lambda call: Reserve(call, claim, asked, amounts))
        except (asyncio.CancelledError, LimitsUnavailable):
            self._put(Settle(claim, NOTHING))  # it may have been reserved meanwhile
            raise
        self._claims[claim] = Claim(asked, amounts)
        return standings

    async def extend(self, claim: str, limits: Sequence[Limit], amounts: Amounts) -> tuple[Standing, ...]:
        asked = tuple(limits)
        standings = await self._ask(lambda call: Extend(call, claim, asked, amounts))
        if (held := self._claims.get(claim)) is not None:
            held.add(amounts)
        return standings

    def settle(self, claim: str, amounts: Amounts) -> None:
        held = self._claims.pop(claim, None)
        if held is None:
            return
        if self._channel is None:
            self._ended.append(Ended(claim, held, amounts, self._clock.wall()))
        else:
            self._put(Settle(claim, amounts))

    async def standing(self, limits: Sequence[Limit]) -> tuple[Standing, ...]:
        asked = tuple(limits)
        return await self._ask(lambda call: Ask(call, asked))

    async def aclose(self) -> None:
        """Ends the connection after what was put into it; the keeper ends the claims that still stand."""
        self._closed = True
        if self._channel is not None:
            self._channel.finish()

    # --- calls ----------------------------------------------------------------------------------------------

    async def _ask(self, asking: Callable[[int], Asking]) -> tuple[Standing, ...]:
        """Asks until there is an answer, or patience is over. What was asked of a keeper that went away is
        asked again: it took what it counted with it."""
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._answered(asking)
        except TimeoutError:
            raise LimitsUnavailable(
                "the process that keeps the limits is away; try again", retry_after=RETRY_AFTER
            ) from None
        if isinstance(reply, Refused):
            raise _error(reply)
        return reply.standings

    async def _answered(self, asking: Callable[[int], Asking]) -> Reply:
        """What a keeper that did not go away meanwhile says."""
        while True:
            await self._there.wait()
            if self._superseded:
                raise Superseded
            if (reply := await self._sent(asking)) is not None:
                return reply

    async def _sent(self, asking: Callable[[int], Asking]) -> Reply | None:
        number = next(self._numbers)
        answer: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            self._put(asking(number))
            return await answer
        finally:
            self._calls.pop(number, None)

    def _put(self, message: Settle | Asking | Left) -> None:
        if self._channel is not None:
            self._channel.put(message)

    # --- the connection -------------------------------------------------------------------------------------

    async def keep_connected(self) -> None:
        """Connects, and connects again when the connection is lost, until closed."""
        while not self._closed:
            try:
                await self.connection()
            except Incompatible as problem:
                record("keeper_incompatible", logging.ERROR, reason=str(problem))
                return
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(PAUSE)

    async def connection(self) -> None:
        """One connection from greeting to end. Raises OSError, TimeoutError or Incompatible when there is
        none."""
        self._inherited, self._is_heir = [], False
        over, since = asyncio.Event(), asyncio.get_running_loop().create_future()

        def received(message: ToWorker) -> None:
            if isinstance(message, Since):
                since.set_result(message.at)
            else:
                self._receive(message)

        def ended(reason: str) -> None:
            over.set()
            if not since.done():
                since.set_exception(ConnectionAbortedError(reason))
                since.exception()
            if self._current is channel:
                self._drop(reason)

        channel: Channel[ToWorker] = Channel(FrameReader(TO_WORKER), received, ended)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, self._path)
        try:
            async with asyncio.timeout(GREETING_DEADLINE):
                await channel.greeted
                began = await since
            self._begin(channel, began)
            await over.wait()
        finally:
            channel.cut("this side closed")

    def _begin(self, channel: Channel[ToWorker], began: float) -> None:
        """Tells a keeper that began at that moment what stands, before anything else is asked of it."""
        self._channel = self._current = channel
        for id_, claim in self._claims.items():
            channel.put(Restore(id_, claim.limits, claim.amounts))
        ended, self._ended = self._ended, []
        for each in ended:
            if each.at >= began:  # what was settled before is in the ledger, which it reads
                channel.put(Restore(each.id, each.claim.limits, each.claim.amounts))
                channel.put(Settle(each.id, each.used))
        self._there.set()
        record("keeper_connected", logging.DEBUG, claims=len(self._claims))

    def _drop(self, reason: str) -> None:
        self._channel = self._current = None
        self._there.clear()
        calls, self._calls = self._calls, {}
        level = logging.DEBUG if self._closed else logging.WARNING
        record("keeper_lost", level, reason=reason, claims=len(self._claims))
        for answer in calls.values():
            if not answer.done():
                answer.set_result(None)

    def _receive(self, message: Hello | Reply | Farewell) -> None:
        match message:
            case Hello():
                raise FrameError("the keeper said Hello twice")
            case Leave():
                self._leave()
            case Bequest(estate, is_last):
                self._inherited.append(estate)
                self._is_heir = is_last
            case Stand() | Refused():
                self._answer(message)

    def _leave(self) -> None:
        """Says nothing more: what is settled from now on the next keeper is told."""
        self._put(Left())
        self._channel = None
        self._there.clear()

    def _answer(self, message: Reply) -> None:
        answer = self._calls.get(message.call)
        if answer is not None and not answer.done():
            answer.set_result(message)


def _error(refused: Refused) -> AntiphonError:
    """The error as the keeper raised it."""
    error = refused.error.exception()
    if isinstance(error, RateLimited | BudgetExceeded | LargerThanLimit):
        error.limit, error.standings = refused.limit, refused.standings
    return error


@asynccontextmanager
async def remote_limiter(path: str, clock: Clock) -> AsyncIterator[RemoteLimiter]:
    """The keeper's limits, kept connected while the context lasts."""
    limiter = RemoteLimiter(path, clock)
    async with task_group() as group:
        keeping = group.create_task(limiter.keep_connected())
        try:
            yield limiter
        finally:
            await limiter.aclose()
            keeping.cancel()
