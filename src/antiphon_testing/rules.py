"""Shared parts of the conformance kits: checking a rule, waiting for a condition, measuring a close, opening
a stream.

`TokenProbe` is the basis of the token engine's rules: the engine, its facts, and the result of one sequence.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from antiphon.domain.context import Context
from antiphon.domain.events import Event, EventGroup
from antiphon.domain.models import Load
from antiphon.domain.request import GenerationRequest, Sampling
from antiphon.domain.values import Struct, field
from antiphon.engines.base import (
    Counts,
    Engine,
    EngineInfo,
    PromptScores,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEngine,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.errors import AntiphonError

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a kit waits where the contract says "at once". The contract promises one second."""


def require(is_satisfied: object, rule: str) -> None:
    """Raises AssertionError with the rule's sentence unless `is_satisfied` is true. It is a function, because
    `python -O` removes `assert` statements."""
    if not is_satisfied:
        raise AssertionError(rule)


async def require_soon(
    condition: Callable[[], Awaitable[bool]], rule: str, patience: float = PATIENCE
) -> None:
    """Requires a condition to become true within `patience` seconds."""
    deadline = time.monotonic() + patience
    while not await condition():
        require(time.monotonic() < deadline, rule)
        await asyncio.sleep(0.005)


async def require_end(work: Awaitable[T], rule: str, patience: float = PATIENCE) -> T:
    """Requires some work to end within `patience` seconds, and returns its result."""
    try:
        async with asyncio.timeout(patience):
            return await work
    except TimeoutError:
        raise AssertionError(rule) from None


async def require_error(
    work: Awaitable[object], expected: type[Exception], rule: str, patience: float = PATIENCE
) -> None:
    """Requires some work to raise `expected`, and no other error, within `patience` seconds."""
    try:
        async with asyncio.timeout(patience):
            await work
    except expected:
        return
    except (AntiphonError, TimeoutError, ValueError, RuntimeError) as error:
        raise AssertionError(f"{rule} (raised {error!r})") from error
    raise AssertionError(f"{rule} (nothing was raised)")


async def interrupt(work: Awaitable[object], delay_s: float) -> None:
    """Starts some work and cancels it after `delay_s` seconds, unless the work has ended before."""
    try:
        async with asyncio.timeout(delay_s):
            await work
    except TimeoutError:
        pass


@asynccontextmanager
async def run_beside(*work: Coroutine[None, None, T]) -> AsyncGenerator[list[asyncio.Task[T]], None]:
    """Runs all work beside the block, and cancels the unfinished work when the block is left. If work
    fails, raises its error without a group around it."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield tasks
            for task in tasks:
                task.cancel()
    except BaseExceptionGroup as failures:
        failure: BaseException = failures
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None


@asynccontextmanager
async def open_stream(
    engine: Engine, request: GenerationRequest, context: Context
) -> AsyncGenerator[AsyncIterator[EventGroup], None]:
    """Yields the groups of events of a request. The work ends when the block is left."""
    prepared = await engine.prepare(request, context)
    async with prepared.stream(context) as groups:
        yield groups


async def flatten(groups: AsyncIterator[EventGroup]) -> AsyncGenerator[Event, None]:
    """Yields each event of the groups. Requires that no group is empty."""
    async for group in groups:
        require(group, "no group of events is empty")
        for event in group:
            yield event


GREEDY = Sampling(temperature=0.0)
UNTIL_CLOSED = 100_000
"""max_tokens of a sequence that runs until it is closed."""


class SequenceRun(Struct, frozen=True):
    """The result of one complete sequence."""

    started: SequenceStarted
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...]
    cause: StopCause
    counts: Counts
    scores: tuple[PromptScores, ...] = ()


class TokenProbe(Struct):
    """The engine under test, its facts, and the options of the kit."""

    engine: TokenEngine
    info: EngineInfo
    vocabulary: Vocabulary
    tolerance: float
    patience: float
    idle_load: Load
    """The counters while nothing runs."""
    prompts: tuple[tuple[int, ...], ...] = ()
    queue: int | None = None
    """The most sequences that may wait; None if unknown."""
    queue_per_actor: int | None = None
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The paths of adapters to test, by digest."""

    @staticmethod
    async def create(engine: TokenEngine, tolerance: float, patience: float) -> "TokenProbe":
        info = await engine.info()
        return TokenProbe(engine, info, await engine.vocabulary(), tolerance, patience, info.load)

    def build_request(
        self,
        prompt_index: int = 0,
        *,
        max_tokens: int = UNTIL_CLOSED,
        sampling: Sampling = GREEDY,
        logprobs: int | None = None,
        stop: tuple[int, ...] = (),
    ) -> TokenRequest:
        return TokenRequest(PromptTokens(self.prompts[prompt_index]), max_tokens, sampling, stop, logprobs)

    async def run(self, request: TokenRequest) -> SequenceRun:
        """Runs a sequence to its end."""
        steps: list[Steps] = []
        scores: list[PromptScores] = []
        started: SequenceStarted | None = None
        finished: SequenceFinished | None = None
        async with aclosing(self.engine.generate(request)) as events:
            async for event in events:
                require(finished is None, "nothing comes after SequenceFinished")
                match event:
                    case SequenceStarted():
                        require(
                            started is None and not steps,
                            "there is one SequenceStarted, before the first token",
                        )
                        started = event
                    case PromptScores():
                        require(started and not steps, "PromptScores come before the first Steps")
                        scores.append(event)
                    case Steps():
                        allowed = (0, len(event.tokens)) if request.logprobs is not None else (0,)
                        require(
                            len(event.origins) in allowed,
                            "with logprobs each token has an origin, or none has",
                        )
                        steps.append(event)
                    case SequenceFinished():
                        finished = event
        if started is None or finished is None:
            raise AssertionError("a sequence that raises nothing is admitted and finished")
        return SequenceRun(
            started,
            tuple(token for step in steps for token in step.tokens),
            tuple(value for step in steps for value in step.logprobs),
            tuple(row for step in steps for row in step.alternatives),
            finished.cause,
            finished.counts,
            tuple(scores),
        )

    async def run_all(self, requests: list[TokenRequest]) -> list[SequenceRun]:
        """Runs several sequences at once."""
        return list(await asyncio.gather(*(self.run(request) for request in requests)))

    async def get_load(self) -> Load:
        return (await self.engine.info()).load

    async def require_idle(self, rule: str) -> None:
        """Requires the load counters to equal those at the beginning."""

        async def is_idle() -> bool:
            now, expected = await self.get_load(), self.idle_load
            usage = (now.running, now.queued, now.free_sequences, now.cells_used)
            return usage == (expected.running, expected.queued, expected.free_sequences, expected.cells_used)

        await require_soon(is_idle, rule, self.patience)

    async def close(self, events: AsyncGenerator[TokenEvent, None], rule: str) -> None:
        await require_end(events.aclose(), rule, self.patience)

    async def close_while_waiting(
        self, events: AsyncGenerator[TokenEvent, None], delay_s: float, rule: str
    ) -> None:
        """Cancels a reader that has waited `delay_s` seconds for the next event, and closes the sequence."""
        await require_end(interrupt(anext(events, None), delay_s), rule, delay_s + self.patience)
        await self.close(events, rule)
