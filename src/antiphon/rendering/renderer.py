"""The renderer: an `Engine` over any token engine. Text goes in and out here, tokens below.

A request becomes one sequence for each choice; what the sequences say is told as one stream of events. How a
prompt becomes tokens is in `prompts`, how tokens become text in `voice` and `scored`, how the prompt is said
again in `recital`, which candidates are the best in `candidates`, how streams become one in `streams`.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeVar

from antiphon.domain.constraint import Constraint
from antiphon.domain.context import Clock, Context, SystemClock
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.domain.events import Event, Started
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.load import Load
from antiphon.domain.profile import Profile
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.domain.usage import Usage
from antiphon.engines.base import Constrainable, EngineState, TokenEngine, TokenRequest, TokenSegment
from antiphon.errors import EngineDied, EngineUnavailable, UnsupportedParameter
from antiphon.rendering import prompts
from antiphon.rendering.apart import Helper
from antiphon.rendering.banning import banned
from antiphon.rendering.candidates import best
from antiphon.rendering.embedding import embedded
from antiphon.rendering.facts import Facts, Prove, learn, prove_apart, seen
from antiphon.rendering.ordered import BOUNDS, InTurn
from antiphon.rendering.reasoning.before import held
from antiphon.rendering.recital import repeated, silence
from antiphon.rendering.scored import ScoredVoice, Scoring
from antiphon.rendering.streams import late, merged, timely
from antiphon.rendering.templates import BY_TEMPLATE, Families
from antiphon.rendering.toolcalls.calling import Listener, calling
from antiphon.rendering.turns import Bounds, Places, Shares
from antiphon.rendering.voice import Voice, manner_of
from antiphon.rendering.watching import watching

T = TypeVar("T")

MANY = 10_000
"""Tokens to decode above which a thread does it: about two milliseconds."""


CHECKS = Bounds(at_once=2, queue=65, queue_per_actor=64, usual=0.1, waiting="constraints")
"""Constraints of one actor that are checked at once: an engine checks one after the other as they come, and
may take seconds for each."""


@dataclass(frozen=True, slots=True)
class HouseRules:
    """What the operator decided of a model's requests."""

    projects_share: bool = False
    """Whether a prefix that one project computed serves another, unless a request has a salt."""
    families: Families = BY_TEMPLATE
    """Whose notations the model has."""
    helper: Helper | None = None
    """Renders the templates that requests bring; None: they are refused."""


class Renderer:
    """`Engine`, `Tokenizing`, `TextEmbedding` and `Observable` over a token engine, which it owns."""

    def __init__(
        self,
        engine: TokenEngine,
        *,
        state: Callable[[], EngineState] = lambda: EngineState.READY,
        generation: Callable[[], int] = lambda: 0,
        prove: Prove = prove_apart,
        rules: HouseRules = HouseRules(),
    ) -> None:
        """`state`: where the engine stands. `generation`: grows when the engine comes back, perhaps with
        other weights."""
        self._engine = engine
        self._rules = rules
        self._places = Places(BOUNDS)
        """For long texts that are tokenized."""
        self._checks = Shares(CHECKS)
        """For constraints that are checked."""
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
        return self.adapted(request, context, None)

    def adapted(
        self, request: GenerationRequest, context: Context, adapter: str | None
    ) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """The same, computed with the adapter of that digest."""
        return aclosing(self._events(request, context, adapter))

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        try:
            async with asyncio.timeout(context.remaining()):
                tokens = self._tokens(context.actor, context.clock)
                return await embedded(self._engine, tokens, await self._known(), request, context)
        except TimeoutError:
            raise late() from None

    async def profile(self) -> Profile:
        return (await self._known()).profile

    def state(self) -> EngineState:
        return self._state()

    async def aclose(self) -> None:
        await self._engine.aclose()

    # --- Observable ---

    async def observe(self) -> Load:
        return (await self._engine.info()).load

    # --- Tokenizing ---

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        facts = seen(await self._known(), prompt, self._rules.helper, actor)
        return await prompts.encode(self._tokens(actor, SystemClock()), facts, prompt, SystemClock())

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        facts = seen(await self._known(), conversation, self._rules.helper, actor)
        pieces = await prompts.pieces_of(facts, conversation, SystemClock())
        return "".join(piece.text for piece in pieces)

    async def decode(self, tokens: Sequence[int]) -> str:
        facts = await self._known()
        text = await asyncio.to_thread(_text, tokens, facts) if len(tokens) > MANY else _text(tokens, facts)
        return text.removeprefix(" ") if facts.vocabulary.space_prefix else text

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        facts = await self._known()
        prompts.require_known(tokens, facts, "tokens")
        return tuple(facts.spelt.bytes[token] for token in tokens)

    # --- one request ---

    async def _events(
        self, request: GenerationRequest, context: Context, adapter: str | None
    ) -> AsyncGenerator[Event, None]:
        facts = await self._in_time(self._known(), context)
        facts = seen(facts, request.prompts[0], self._rules.helper, context.actor)
        request = calling(request, facts)
        fitted = await self._in_time(self._fitted(request, facts, context), context)
        listener = Listener(request, facts, context.clock)
        cast = casting(request, listener.facts, fitted)
        one = self._one(request, context, facts, adapter)
        if words := request.output.bad_words:
            found = await self._in_time(banned(self._engine, facts, words), context)
            one = replace(one, sampling=replace(one.sampling, banned=found))
        if context.sizing is not None:
            await self._in_time(context.sizing.sized(*size_of(request, fitted)), context)
        asked = asked_of(request, one, fitted, context.clock)
        spoken = [
            told(listener.heard(voice, each[0].begin, self._speech(voice, *each)), voice.choice, each[0])
            for voice, each in zip(cast.voices, asked, strict=True)
        ]
        ids = tuple(prompt.tokens for prompt in fitted) if request.output.token_ids else ()
        tally = Tally(tuple(len(prompt.tokens) for prompt in fitted), cast.voices, ids)
        started = False
        async with truthful(cast.voices), aclosing(cast.chosen(timely(merged(spoken), context))) as events:
            async for event in events:
                if not isinstance(event, Started):
                    yield event
                elif not started:
                    started = True
                    yield tally.started()
        yield tally.usage()

    async def _in_time(self, work: Awaitable[T], context: Context) -> T:
        """What comes before the first token is within the deadline too."""
        try:
            async with asyncio.timeout(context.remaining()):
                return await work
        except TimeoutError:
            raise late() from None

    async def _fitted(
        self, request: GenerationRequest, facts: Facts, context: Context
    ) -> list[prompts.Fitted]:
        """Every prompt as token ids that fit, with what its choices are held to, before any of them makes a
        token."""
        tokens = self._tokens(context.actor, context.clock)
        with watching() as watch:
            fitted = await prompts.fitted(tokens, facts, request, context.clock)
        context.progress.unread = watch.unread(
            [
                each
                for prompt in request.prompts
                if isinstance(prompt, Conversation)
                for each in prompt.messages
            ]
        )
        pairs = zip(request.prompts, fitted, strict=True)
        fitted = [held(prompt, fits, request.output.constraint, facts) for prompt, fits in pairs]
        for constraint in {fits.constraint for fits in fitted if fits.constraint is not None}:
            async with self._checks.taken(context.actor.caller, context.clock):
                await self._require_constrainable(constraint)
        return fitted

    def _tokens(self, actor: Actor, clock: Clock) -> InTurn:
        return InTurn(self._engine, self._places, actor, clock)

    async def _require_constrainable(self, constraint: Constraint) -> None:
        """Raises the RequestError that says why the constraint cannot be kept."""
        if not isinstance(self._engine, Constrainable):
            raise UnsupportedParameter("this model's engine takes no constraints", param=constraint.field)
        await self._engine.check(constraint)

    def _one(
        self, request: GenerationRequest, context: Context, facts: Facts, adapter: str | None
    ) -> TokenRequest:
        """What the sequences of all prompts and choices have in common."""
        output = request.output
        return TokenRequest(
            segments=(),
            max_tokens=0,
            sampling=request.sampling.settle(facts.profile.sampling, context.clock.seed()),
            stop_token_ids=output.stop_token_ids,
            logprobs=0 if output.logprobs is None and output.best_of else output.logprobs,
            cache_salt=self._salt(request, context),
            adapter=adapter,
            actor=context.actor.caller,
            priority=request.priority,
        )

    def _speech(
        self, voice: Voice, prompt: prompts.Fitted, asked: TokenRequest
    ) -> AsyncGenerator[Event, None]:
        """The events of one choice."""
        sheet = prompt.sheet if asked.prompt_logprobs is not None else None
        works = sheet is not None or asked.max_tokens > 0
        sequence = self._engine.generate(asked) if works else silence(len(prompt.tokens))
        if sheet is not None:
            sequence = sheet.overheard(sequence)
        if prompt.recital is not None:
            events = prompt.recital.speak(voice, sequence)
        else:
            events = voice.speak(sequence)
        return events if sheet is None else sheet.told(events)

    def _salt(self, request: GenerationRequest, context: Context) -> str:
        """Whose prefixes a request may share: its project's under its own salt; everybody's, where that is
        the setting and it has none."""
        if self._rules.projects_share and not request.cache_salt:
            return ""
        project = context.actor.project
        return blake2b(f"{len(project)} {project} {request.cache_salt}".encode(), digest_size=16).hexdigest()

    async def _known(self) -> Facts:
        """What is known of the model, asked again when the engine has come back."""
        generation = self._generation()
        if self._facts is None or self._learnt != generation:
            async with self._learning:
                if self._facts is None or self._learnt != generation:
                    self._facts = await learn(self._engine, self._prove, self._facts, self._rules.families)
                    self._learnt = generation
        return self._facts


def asked_of(
    request: GenerationRequest, one: TokenRequest, fitted: Sequence[prompts.Fitted], clock: Clock
) -> Iterator[tuple[prompts.Fitted, TokenRequest]]:
    """The sequences of all choices; those of one prompt are siblings."""
    candidates = request.output.best_of or request.output.choices
    for prompt in fitted:
        # The caller may have chosen the request's id, so it cannot name the group.
        group = clock.unique() if candidates > 1 else None
        segments = (TokenSegment(prompt.tokens),)
        scored = prompt.sheet.width if prompt.sheet is not None else None
        for choice in range(candidates):
            yield (
                prompt,
                replace(
                    one,
                    segments=segments,
                    max_tokens=prompt.max_tokens,
                    constraint=prompt.constraint,
                    group=group,
                    choice=choice,
                    prompt_logprobs=scored if choice == 0 else None,
                ),
            )


def size_of(request: GenerationRequest, fitted: Sequence[prompts.Fitted]) -> tuple[int, int]:
    """Tokens of all prompts, each counted once, and the most that all candidates together may make."""
    candidates = request.output.best_of or request.output.choices
    most = sum(prompt.max_tokens for prompt in fitted) * candidates
    return sum(len(prompt.tokens) for prompt in fitted), most


@asynccontextmanager
async def truthful(voices: Sequence[Voice]) -> AsyncIterator[None]:
    """Makes one of the engine's end: when any choice was in the batch, the request was, and is not tried
    again."""
    try:
        yield
    except EngineUnavailable as error:
        if any(voice.cached is not None for voice in voices):
            raise EngineDied(error.message, retry_after=error.retry_after, cause=error.cause) from None
        raise


def told(
    events: AsyncGenerator[Event, None], choice: int, prompt: prompts.Fitted
) -> AsyncGenerator[Event, None]:
    """The events of one choice, with what of a conversation is repeated before them: it was said already, so
    it is not read for calls or reasoning."""
    return repeated(choice, prompt.repeated, events) if prompt.repeated else events


def _text(tokens: Sequence[int], facts: Facts) -> str:
    prompts.require_known(tokens, facts, "tokens")
    return facts.pieces.text(tokens)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who speaks in one request, and which of them are heard."""

    voices: Sequence[Voice]
    """Of the candidates, those of the first prompt first."""
    chosen: Callable[[AsyncGenerator[Event, None]], AsyncGenerator[Event, None]]
    """From the events of all candidates to those of the choices."""


def casting(request: GenerationRequest, facts: Facts, fitted: Sequence[prompts.Fitted]) -> Cast:
    """A voice for each candidate; plain ones where nothing is scored."""
    output, manner = request.output, manner_of(request, facts)
    if output.logprobs is None and output.best_of is None:
        plain = [Voice(index, manner) for index in range(len(fitted) * output.choices)]
        return Cast(plain, lambda events: events)
    candidates = output.best_of or output.choices
    scored: list[ScoredVoice] = []
    for prompt in fitted:
        offset = len(prompt.recital.layout.text) if prompt.recital is not None else 0
        scoring = Scoring(output.logprobs is not None, offset)
        scored += [ScoredVoice(len(scored) + index, manner, facts, scoring) for index in range(candidates)]
    if output.best_of is None:
        return Cast(scored, lambda events: events)
    return Cast(scored, lambda events: best(events, scored, len(fitted), output.choices))


@dataclass(frozen=True, slots=True)
class Tally:
    """The counts of one request."""

    prompts: tuple[int, ...]
    """Tokens of each prompt."""
    voices: Sequence[Voice]
    """Of the choices, those of the first prompt first."""
    ids: tuple[tuple[int, ...], ...] = ()
    """Of each prompt, when they are told."""

    def started(self) -> Started:
        waits = [voice.queued for voice in self.voices if voice.queued is not None]
        return Started(sum(self.prompts), self._cached(), self.ids, min(waits, default=None))

    def usage(self) -> Usage:
        made = sum(voice.completion_tokens for voice in self.voices)
        thought = sum(voice.thoughts.tokens for voice in self.voices if voice.thoughts is not None)
        return Usage(sum(self.prompts), made, self._cached(), thought)

    def _cached(self) -> int:
        """A prompt counts once, so its tokens are cached if none of its choices had to compute them."""
        each = len(self.voices) // len(self.prompts)
        groups = (self.voices[begin : begin + each] for begin in range(0, len(self.voices), each))
        return sum(min(voice.cached or 0 for voice in group) for group in groups)
