"""The renderer: an `Engine` over any token engine. Text goes in and out here, tokens below.

A request becomes one sequence for each choice; what the sequences say is told as one stream of events. How a
prompt becomes tokens is in `prompts`, how tokens become text in `voice`, how streams become one in `streams`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass

from antiphon.domain.context import Context, SystemClock
from antiphon.domain.events import Event, Started
from antiphon.domain.profile import Profile
from antiphon.domain.request import GenerationRequest, Prompt
from antiphon.domain.usage import Usage
from antiphon.engines.base import EngineState, TokenEngine, TokenRequest, TokenSegment
from antiphon.errors import EngineDied, EngineUnavailable
from antiphon.rendering import prompts
from antiphon.rendering.facts import Facts, Prove, learn, prove_apart
from antiphon.rendering.stops import StopStrings
from antiphon.rendering.streams import late, merged, timely
from antiphon.rendering.voice import Voice

MANY = 10_000
"""Tokens to decode above which a thread does it: about two milliseconds."""


class Renderer:
    """`Engine` and `Tokenizing` over a token engine, which it owns."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        state: Callable[[], EngineState] = lambda: EngineState.READY,
        generation: Callable[[], int] = lambda: 0,
        prove: Prove = prove_apart,
    ) -> None:
        """`state`: where the engine stands. `generation`: grows when the engine comes back, perhaps with
        other weights."""
        self._engine = engine
        self._state = state
        self._generation = generation
        self._prove = prove
        self._facts: Facts | None = None
        self._learnt = 0
        """The generation that the facts are of."""
        self._learning = asyncio.Lock()

    # --- Engine ---

    def stream(
        self, request: GenerationRequest, context: Context
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        return aclosing(self._events(request, context))

    async def profile(self) -> Profile:
        return (await self._known()).profile

    def state(self) -> EngineState:
        return self._state()

    async def aclose(self) -> None:
        await self._engine.aclose()

    # --- Tokenizing ---

    async def encode(self, prompt: Prompt, add_special: bool = True) -> tuple[int, ...]:
        return await prompts.encode(self._engine, await self._known(), prompt, SystemClock(), add_special)

    async def decode(self, tokens: Sequence[int]) -> str:
        facts = await self._known()
        text = await asyncio.to_thread(_text, tokens, facts) if len(tokens) > MANY else _text(tokens, facts)
        return text.removeprefix(" ") if facts.vocabulary.space_prefix else text

    # --- one request ---

    async def _events(self, request: GenerationRequest, context: Context) -> AsyncGenerator[Event, None]:
        facts, fitted = await self._prepared(request, context)
        stops = StopStrings(request.output.stop)
        voices = [Voice(index, facts, stops) for index in range(len(fitted) * request.output.choices)]
        asked = self._asked(request, context, facts, fitted)
        spoken = [voice.speak(self._engine.generate(each)) for voice, each in zip(voices, asked, strict=True)]
        tally = Tally(tuple(len(prompt.tokens) for prompt in fitted), voices)
        started = False
        async with truthful(voices), aclosing(timely(merged(spoken), context)) as events:
            async for event in events:
                if not isinstance(event, Started):
                    yield event
                elif not started:
                    started = True
                    yield tally.started()
        yield tally.usage()

    async def _prepared(
        self, request: GenerationRequest, context: Context
    ) -> tuple[Facts, list[prompts.Fitted]]:
        """Every prompt as token ids that fit, before any of them makes a token."""
        try:
            async with asyncio.timeout(context.remaining()):
                facts = await self._known()
                prompts.require_known(request.output.stop_token_ids, facts, "stop_token_ids")
                fitted = [
                    prompts.fit(
                        prompt,
                        await prompts.encode(self._engine, facts, prompt, context.clock),
                        request.output,
                        facts,
                    )
                    for prompt in request.prompts
                ]
        except TimeoutError:
            raise late() from None
        return facts, fitted

    def _asked(
        self, request: GenerationRequest, context: Context, facts: Facts, fitted: Sequence[prompts.Fitted]
    ) -> Iterator[TokenRequest]:
        """The sequences of all choices; those of one prompt are siblings."""
        sampling = request.sampling.settle(facts.profile.sampling, context.clock.seed())
        for prompt in fitted:
            # The caller may have chosen the request's id, so it cannot name the group.
            group = context.clock.unique() if request.output.choices > 1 else None
            for choice in range(request.output.choices):
                yield TokenRequest(
                    segments=(TokenSegment(prompt.tokens),),
                    max_tokens=prompt.max_tokens,
                    sampling=sampling,
                    stop_token_ids=request.output.stop_token_ids,
                    group=group,
                    choice=choice,
                )

    async def _known(self) -> Facts:
        """What is known of the model, asked again when the engine has come back."""
        generation = self._generation()
        if self._facts is None or self._learnt != generation:
            async with self._learning:
                if self._facts is None or self._learnt != generation:
                    self._facts = await learn(self._engine, self._prove, self._facts)
                    self._learnt = generation
        return self._facts


@asynccontextmanager
async def truthful(voices: Sequence[Voice]) -> AsyncIterator[None]:
    """Makes one of the engine's end: when any choice was in the batch, the request was, and is not tried
    again."""
    try:
        yield
    except EngineUnavailable as error:
        if any(voice.cached is not None for voice in voices):
            raise EngineDied(error.message, retry_after=error.retry_after) from None
        raise


def _text(tokens: Sequence[int], facts: Facts) -> str:
    prompts.require_known(tokens, facts, "tokens")
    return facts.pieces.text(tokens)


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of one request."""

    prompts: tuple[int, ...]
    """Tokens of each prompt."""
    voices: Sequence[Voice]
    """Of the choices, those of the first prompt first."""

    def started(self) -> Started:
        return Started(sum(self.prompts), self._cached())

    def usage(self) -> Usage:
        made = sum(voice.completion_tokens for voice in self.voices)
        return Usage(sum(self.prompts), made, self._cached())

    def _cached(self) -> int:
        """A prompt counts once, so its tokens are cached if none of its choices had to compute them."""
        each = len(self.voices) // len(self.prompts)
        groups = (self.voices[begin : begin + each] for begin in range(0, len(self.voices), each))
        return sum(min(voice.cached or 0 for voice in group) for group in groups)
