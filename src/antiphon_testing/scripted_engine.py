"""An engine at the level of events: it answers with given texts at a given pace, or fails as scripted.

It has no tokens of its own: each delta counts as one token, whose log-probability decreases by one at each
place, and `encode` returns UTF-8 bytes. It satisfies the contract of `Engine` and supports `max_tokens`,
`choices`, `echo` and `logprobs`. It ranks no candidates, as all are equal. It records every stream and its
ending. `FakeClock` moves only when a test advances it, with countable ids and seeds.
"""

import asyncio
import math
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from enum import StrEnum
from functools import partial
from hashlib import blake2b
from itertools import chain, count, cycle, islice

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import (
    CandidateTokens,
    Event,
    EventGroup,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    TokenScore,
    Usage,
)
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.models import Profile, TokenizerInfo
from antiphon.domain.request import (
    Conversation,
    EmbeddingFacts,
    EmbedRequest,
    GenerationRequest,
    Output,
    Pooling,
    Prompt,
    Vectors,
)
from antiphon.domain.values import Struct, field, replace
from antiphon.domain.vendor_fields import list_unused, require_local
from antiphon.engines.base import (
    EngineState,
    LoadSpec,
    PairFrame,
    PreparedRequest,
    RequestSize,
    SequenceStarted,
    TokenEvent,
    TokenRequest,
)
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    DeadlineExceeded,
    EngineBusy,
    EngineUnavailable,
    InvalidValue,
    UnsupportedParameter,
)
from antiphon_testing.scripted_token_engine import BOUNDS, ScriptedTokenEngine, scripted_info
from antiphon_testing.toy_model import build_vocabulary

DIMENSIONS = 8

SCRIPTED_CONTEXT = 2048
SCRIPTED_VOCABULARY = 256

SCRIPTED_PROFILE = Profile(
    architecture="scripted",
    parameters=1000,
    size=1000,
    quantization="none",
    context_length=SCRIPTED_CONTEXT,
    vocabulary=SCRIPTED_VOCABULARY,
    chat=True,
    exact=True,
    sequences=1000,
    engine="scripted",
)

OpenStream = Callable[[Context], AbstractAsyncContextManager[AsyncIterator[EventGroup]]]


class FakeClock:
    """A `Clock` that tests control: equal calls in equal order give equal values."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._ids = count(1)
        self._seeds = count(1)

    def advance(self, seconds: float) -> None:
        """Moves both times forward."""
        self._monotonic += seconds
        self._wall += seconds

    def set_forward(self, seconds: float) -> None:
        """Moves the wall time alone, as somebody who sets the machine's clock."""
        self._wall += seconds

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def unique(self) -> str:
        return f"{next(self._ids):032x}"

    def seed(self) -> int:
        return next(self._seeds)


class EmbeddingScript(Struct, frozen=True):
    """How a `ScriptedEmbeddingEngine` processes requests."""

    hold: asyncio.Event | None = None
    """Each request waits before its second text until this is set."""
    error: AntiphonError | None = None
    error_after: int | None = 1
    """The number of texts before the error; None raises it while the request is queued."""


class ScriptedEmbeddingEngine(ScriptedTokenEngine):
    """`TokenEngine` and `EmbeddingEngine`. `asked` contains every request in order. `ended_count` counts
    the finished requests. With the pooling RANK it is a reranker."""

    def __init__(
        self,
        script: EmbeddingScript = EmbeddingScript(),
        *,
        context_length: int = 512,
        sequences: int = 4,
        spec: LoadSpec = BOUNDS,
        pooling: Pooling = Pooling.MEAN,
        rerank_template: str | None = None,
    ) -> None:
        """Only the queue's limits of `spec` are used."""
        table = build_vocabulary()
        frame_start, frame_end = () if table.bos_id is None else (table.bos_id,), (table.eos_id or 0,)
        info = replace(
            scripted_info(context_length, sequences, None),
            embedding=EmbeddingFacts(1 if pooling is Pooling.RANK else DIMENSIONS, pooling),
            rerank_template=rerank_template,
        )
        framed_table = replace(
            table,
            embedding_frame=(frame_start, frame_end),
            pair_frame=PairFrame(frame_start, frame_end, frame_end),
        )
        super().__init__(info=info, vocabulary=framed_table, spec=spec)
        self.behaviour = script
        self.asked: list[EmbedRequest] = []

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        raise UnsupportedParameter("this model makes vectors of texts, and no tokens", param="model")
        yield  # makes this a generator, as the interface requires

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[SequenceStarted | Vectors, None]:
        self._require_texts(request)
        if self._counters.queued >= self._spec.queue + self._facts.sequences:
            raise EngineBusy("the queue is full; try again", retry_after=1.0)
        self.asked.append(request)
        self._count(queued=1)
        try:
            await asyncio.sleep(0)
            self._fail(None)
            yield SequenceStarted(sum(map(len, request.texts)))
            for index, text in enumerate(request.texts):
                self._fail(index)
                if index and self.behaviour.hold is not None:
                    await self.behaviour.hold.wait()
                await asyncio.sleep(0)
                self._count(prefill_tokens=len(text), steps=1, admitted=1)
                ranks = self._facts.embedding is not None and self._facts.embedding.ranks
                yield Vectors(index, make_score(text) if ranks else make_vector(text))
        finally:
            self._count(queued=-1)
            self.ended_count += 1

    def _fail(self, texts: int | None) -> None:
        """Raises the scripted error if it is due after this number of texts. None means before the first
        text."""
        if self.behaviour.error is not None and self.behaviour.error_after == texts:
            raise self.behaviour.error

    def _require_texts(self, request: EmbedRequest) -> None:
        """Raises an error if the engine is closed, or if a text is empty, too long, or has an unknown token
        id."""
        if self.is_closed:
            raise EngineUnavailable("the scripted engine is closed")
        if not request.texts or not all(request.texts):
            raise InvalidValue("a text has no tokens", param="input")
        size = len(self.table.pieces)
        if any(not 0 <= token < size for text in request.texts for token in text):
            raise InvalidValue(f"token ids go from 0 to {size - 1}", param="input")
        if max(map(len, request.texts)) > self._facts.context_length:
            raise ContextLengthExceeded(
                "a text is longer than this model's maximum context length", param="input"
            )


def make_score(text: tuple[int, ...]) -> bytes:
    """Returns the score that the scripted reranker gives to these token ids. It is larger for shorter
    texts."""
    return array("f", [10.0 - len(text)]).tobytes()


def make_vector(text: tuple[int, ...]) -> bytes:
    """Returns the vector that the scripted engine makes of these token ids."""
    digest = blake2b(repr(text).encode(), digest_size=DIMENSIONS * 2).digest()
    numbers = [
        int.from_bytes(digest[index : index + 2], "little") - 32767.5 for index in range(0, len(digest), 2)
    ]
    length = math.sqrt(math.fsum(number * number for number in numbers))
    return array("f", [number / length for number in numbers]).tobytes()


class ScriptedAnswer(Struct, frozen=True):
    """The answer to one request."""

    texts: tuple[str, ...] = ("Hello", " world", "!")
    """The deltas of every choice; one token each."""
    wait: float = 0.0
    """Seconds before Started."""
    pace: float | None = 0.0
    """Seconds before each delta. 0 only lets other tasks run; None does not even do that."""
    endless: bool = False
    """Whether the texts repeat after the last text."""
    error: AntiphonError | None = None
    error_after: int | None = None
    """The number of deltas before the error; None fails before Started."""
    gate: asyncio.Event | None = None
    """Awaited before Started, so that a test decides when the answer begins."""
    reason: FinishReason = FinishReason.STOP
    """The finish reason of a choice after its last text."""


class StreamEnding(StrEnum):
    """How a stream of the scripted engine ended."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    LEFT = "left"
    """Closed by its reader before the end."""


class StreamRecord(Struct):
    """One stream: the request, the number of sent deltas, and the ending."""

    request: GenerationRequest
    context: Context
    events: int = 0
    ending: StreamEnding = StreamEnding.OPEN
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the stream has ended for any reason."""


ScriptedAnswers = ScriptedAnswer | Callable[[GenerationRequest], ScriptedAnswer]


class ScriptedRequest(Struct, frozen=True):
    """A `PreparedRequest`. `open_stream` opens its streams."""

    size: RequestSize
    open_stream: OpenStream
    report: EngineReport = field(default_factory=EngineReport)

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[EventGroup]]:
        return self.open_stream(context)


class ScriptedEngine:
    """`Engine` and `TokenizerEngine` without tokens. `streams` contains a record of each stream, in order of
    entering."""

    def __init__(
        self,
        answer: ScriptedAnswers = ScriptedAnswer(),
        *,
        profile: Profile = SCRIPTED_PROFILE,
        state: EngineState = EngineState.READY,
    ) -> None:
        self.answer = answer
        self.streams: list[StreamRecord] = []
        self.prepared = 0
        """The number of requests to `prepare`."""
        self.is_closed = False
        self.engine_state = state
        """The value of `state`; a test may set it."""
        self._profile = profile
        self._context_length = profile.context_length or SCRIPTED_CONTEXT

    async def prepare(self, request: GenerationRequest, context: Context) -> PreparedRequest:
        self.prepared += 1
        self._require_ready()
        require_local(request)
        if (constraint := request.output.constraint) is not None:
            raise UnsupportedParameter("a script follows no constraint", param=constraint.field)
        if any(isinstance(prompt, Conversation) and prompt.tools for prompt in request.prompts):
            raise UnsupportedParameter("a script calls no tools", param="tools")
        if request.output.prompt_logprobs is not None:
            raise UnsupportedParameter("a script ranks no tokens", param="prompt_logprobs")
        if request.output.logprob_token_ids:
            raise UnsupportedParameter("a script knows no token ids", param="logprob_token_ids")
        counts = [len(_encode_prompt(prompt)) for prompt in request.prompts]
        if max(counts) >= self._context_length:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._context_length} tokens. "
                f"However, your prompt has {max(counts)} tokens."
            )
        candidates = len(counts) * (request.output.best_of or request.output.choices)
        size = RequestSize(sum(counts), self._count_max_tokens(request, sum(counts)) * candidates)
        return ScriptedRequest(size, partial(self.stream, request), EngineReport(list_unused(request)))

    @asynccontextmanager
    async def stream(
        self, request: GenerationRequest, context: Context
    ) -> AsyncGenerator[AsyncIterator[EventGroup], None]:
        """Streams a prepared request."""
        record = StreamRecord(request, context)
        self.streams.append(record)
        events = self._generate_stream(record)
        try:
            yield events
        finally:
            await events.aclose()
            record.ending = StreamEnding.LEFT if record.ending is StreamEnding.OPEN else record.ending
            record.over.set()

    async def profile(self) -> Profile:
        self._require_ready()
        return self._profile

    def state(self) -> EngineState:
        return self.engine_state

    async def aclose(self) -> None:
        self.is_closed = True
        self.engine_state = EngineState.FAILED

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        self._require_ready()
        return _tokenize_prompt(prompt)

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        self._require_ready()
        return bytes(_tokenize_prompt(conversation)).decode()

    async def decode(self, tokens: Sequence[int]) -> str:
        self._require_ready()
        for token in tokens:
            if not 0 <= token < SCRIPTED_VOCABULARY:
                raise InvalidValue(
                    f"token id {token} is outside the vocabulary of {SCRIPTED_VOCABULARY} tokens"
                )
        return bytes(tokens).decode(errors="replace")

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        self._require_ready()
        return tuple(bytes((token,)) for token in tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        self._require_ready()
        return TokenizerInfo(self._context_length, {})

    def _require_ready(self) -> None:
        """Raises EngineUnavailable unless the engine's state is READY."""
        if self.engine_state is not EngineState.READY:
            raise EngineUnavailable(f"the scripted engine is {self.engine_state}", retry_after=1.0)

    async def _generate_stream(self, record: StreamRecord) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of one stream as scripted, each alone, and records how the stream ended."""
        context = record.context
        now, deadline = context.clock.monotonic, math.inf if context.deadline is None else context.deadline
        try:
            answer, prompt_tokens = await self._wait_for_start(record.request, context)
            pace = answer.pace
            for event in self._generate_events(answer, record.request, prompt_tokens):
                if pace is not None and isinstance(event, TextDelta):
                    await asyncio.sleep(pace)
                if now() >= deadline:
                    raise TimeoutError
                record.events += 1
                yield (event,)
            record.ending = StreamEnding.COMPLETE
        except AntiphonError:
            record.ending = StreamEnding.FAILED
            raise
        except TimeoutError:
            record.ending = StreamEnding.FAILED
            raise DeadlineExceeded("the deadline passed before the answer was complete") from None

    async def _wait_for_start(
        self, request: GenerationRequest, context: Context
    ) -> tuple[ScriptedAnswer, int]:
        """Waits as scripted before Started. Returns the answer and the number of prompt tokens. Raises the
        scripted error if it is due, or TimeoutError at the deadline."""
        self._require_ready()
        answer = self.answer(request) if callable(self.answer) else self.answer
        if answer.wait or answer.gate is not None:
            async with asyncio.timeout(context.remaining()):
                await asyncio.sleep(answer.wait)
                if answer.gate is not None:
                    await answer.gate.wait()
        else:
            await asyncio.sleep(0)
        if answer.error is not None and answer.error_after is None:
            raise answer.error
        return answer, sum([len(_encode_prompt(prompt)) for prompt in request.prompts])

    def _generate_events(
        self, answer: ScriptedAnswer, request: GenerationRequest, prompt_tokens: int
    ) -> Iterator[Event]:
        """Yields Started, the deltas and the ends of all choices, and Usage."""
        output = request.output
        scripted_choices = [
            _ScriptedChoice(prompt, output) for prompt in request.prompts for _ in range(output.choices)
        ]
        candidates = len(request.prompts) * (output.best_of or output.choices)
        token_limit = self._count_max_tokens(request, prompt_tokens)
        texts = cycle(answer.texts) if answer.endless else iter(answer.texts)
        is_cut = answer.endless or len(answer.texts) > token_limit
        sent_tokens = 0
        yield Started(
            prompt_tokens, prompts=tuple(map(_tokenize_prompt, request.prompts)) if output.token_ids else ()
        )
        yield from (
            scripted_choice.echo(choice)
            for choice, scripted_choice in enumerate(scripted_choices)
            if output.echo
        )
        for sent_tokens, text in enumerate(islice(texts, token_limit), start=1):
            if answer.error is not None and answer.error_after == sent_tokens - 1:
                raise answer.error
            if output.best_of is not None:
                yield CandidateTokens(candidates)
            for choice, scripted_choice in enumerate(scripted_choices):
                yield scripted_choice.write(choice, text)
        if answer.error is not None:
            raise answer.error
        scores = None if output.logprobs is None else ()
        reason = FinishReason.LENGTH if is_cut else answer.reason
        yield from (Finished(choice, reason, scores=scores) for choice in range(len(scripted_choices)))
        yield Usage(prompt_tokens, sent_tokens * candidates)

    def _count_max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        """Returns the most tokens of one choice."""
        max_tokens = request.output.max_tokens
        return self._context_length - prompt_tokens if max_tokens is None else max_tokens


class _ScriptedChoice:
    """One choice: the position in its text, and the scores of its tokens."""

    def __init__(self, prompt: Prompt, output: Output) -> None:
        self._prompt = prompt
        self._output = output
        self._sent_length = 0
        self._token_count = 0

    def echo(self, choice: int) -> TextDelta:
        """Returns the prompt as the first text of the choice, with scores for its characters."""
        text = bytes(_tokenize_prompt(self._prompt)).decode(errors="replace")
        scores = tuple(chain.from_iterable(self._build_scores(character) for character in text))
        return TextDelta(choice, text, 0, scores)

    def write(self, choice: int, text: str) -> TextDelta:
        ids = (self._token_count,) if self._output.token_ids else ()
        return TextDelta(choice, text, 0 if self._output.best_of else 1, self._build_scores(text), ids)

    def _build_scores(self, text: str) -> tuple[TokenScore, ...]:
        """Returns the scores of one delta if log-probabilities are requested, and moves on in the text."""
        logprobs, offset, place = self._output.logprobs, self._sent_length, self._token_count
        self._sent_length, self._token_count = offset + len(text), place + 1
        if logprobs is None:
            return ()
        is_first = self._output.echo and place == 0
        value, piece = -float(place), text.encode()
        best = tuple((other, b"%d" % other if other else piece, value - other) for other in range(logprobs))
        return (TokenScore(0, piece, None if is_first else value, () if is_first else best, offset),)


def _encode_prompt(prompt: Prompt) -> bytes | tuple[int, ...]:
    """Returns the tokens of a prompt: the bytes of its text, or its own token ids."""
    if isinstance(prompt, Conversation):
        return "\n".join([message.text for message in prompt.messages]).encode(errors="replace")
    return prompt.tokens if prompt.tokens is not None else (prompt.text or "").encode(errors="replace")


def _tokenize_prompt(prompt: Prompt) -> tuple[int, ...]:
    """Returns the scripted token ids of a prompt."""
    return tuple(_encode_prompt(prompt))
