"""The basis of the token engine's rules: the engine, its facts, and the result of one sequence."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from antiphon.domain.models import Load
from antiphon.domain.sampling import Sampling
from antiphon.domain.values import Struct, field
from antiphon.engines.base import (
    Counts,
    EngineInfo,
    PromptScores,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenEngine,
    TokenEvent,
    TokenRequest,
    TokenSegment,
    Vocabulary,
)
from antiphon.testing.rules import interrupt, require, require_end, require_soon

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
        return TokenRequest((TokenSegment(self.prompts[prompt_index]),), max_tokens, sampling, stop, logprobs)

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
