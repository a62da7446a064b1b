"""A token engine that generates scripted tokens, without weights, processes or threads.

It satisfies the contract of `TokenEngine` and the semantics of sampling, so it passes `check_token_engine`. A
script can make it wait, hold at a token, fail at a token, or continue without end. Its queue is bounded.
Prefixes are reused inside a group only. A scripted continuation does not depend on the sampling;
log-probabilities are the toy model's.
"""

import asyncio
import sys
from array import array
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from itertools import chain, cycle, repeat

from antiphon.domain.context import Clock, SystemClock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.models import Load
from antiphon.domain.request import SamplingOptions
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import (
    Counts,
    EngineInfo,
    LoadSpec,
    PromptScores,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenEvent,
    TokenRequest,
    Vocabulary,
)
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    EngineUnavailable,
    InvalidValue,
    Overloaded,
    UnsupportedParameter,
)
from antiphon_testing.toy_model import (
    ScriptedAdapters,
    ToySampler,
    ToyTokenizer,
    build_vocabulary,
    find_rank,
    list_best,
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

BOUNDS = LoadSpec("scripted")


class Failure(Struct, frozen=True):
    """An error raised at a point of the sequence."""

    error: AntiphonError
    after: int | None = 0
    """The number of tokens before the error; None fails while queued, 0 after the prompt."""


class Hold(Struct, frozen=True):
    """A point at which the sequence waits until the event is set."""

    event: asyncio.Event
    after: int | None = 0
    """The number of tokens before the wait; None waits in the middle of the prompt."""


class Script(Struct, frozen=True):
    """The answer to a prompt. Without text and tokens, the toy model answers by the requested sampling."""

    text: str | bytes | None = None
    """The continuation; the end-of-sequence token follows."""
    tokens: tuple[int, ...] | None = None
    """The continuation as ids; the end-of-sequence token follows, unless one of these ends the sequence."""
    endless: bool = False
    """Whether the continuation repeats after its end."""
    burst: int = 1
    """The most tokens in one Steps event."""
    prefill: float = 0.0
    """Seconds that the prompt takes."""
    pace: float | None = 0.0
    """Seconds before each Steps event. 0 only lets other tasks run; None does not even do that."""
    hold: Hold | None = None
    failure: Failure | None = None


Scripts = Script | Callable[[TokenRequest], Script]
TOY = Script()


def scripted_info(
    context_length: int = 2048,
    sequences: int = 4,
    chat_template: str | None = CHATML,
    takes_predictions: bool = False,
) -> EngineInfo:
    """Returns the facts of an imaginary model."""
    return EngineInfo(
        architecture="scripted",
        parameters=1000,
        size=1000,
        quantization="none",
        trained_context=context_length,
        context_length=context_length,
        vocabulary=0,
        sequences=sequences,
        threads=1,
        exact=True,
        library="scripted",
        library_path="",
        cpu_features=(),
        chat_template=chat_template,
        sampling=SamplingOptions(),
        takes_predictions=takes_predictions,
    )


class _SiblingGroup(Struct):
    """Siblings. The first sibling that takes the lock computes the prompt, and the other siblings share
    it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_computed: bool = False
    """Whether the prompt is computed."""
    members: int = 0
    """The number of queued and running siblings."""


class _Sequence(Struct):
    """One running sequence: its tokens, and why it ended."""

    request: TokenRequest
    script: Script
    prompt: tuple[int, ...]
    group: _SiblingGroup
    max_tokens: int
    cached_tokens: int = 0
    past: tuple[int, ...] = ()
    """The last tokens of the prompt and the output."""
    output_tokens: int = 0
    cells: int = 0
    is_running: bool = False
    cause: StopCause | None = None


class ScriptedTokenEngine:
    """`TokenEngine` without a model. `requests` contains every request in order. `ended_count` counts the
    finished requests."""

    def __init__(
        self,
        script: Scripts = TOY,
        *,
        info: EngineInfo | None = None,
        vocabulary: Vocabulary | None = None,
        clock: Clock | None = None,
        spec: LoadSpec = BOUNDS,
    ) -> None:
        """Only the queue's limits and the size of a prefill chunk of `spec` are used."""
        self.script = script
        self.requests: list[TokenRequest] = []
        self.ended_count = 0
        self.is_closed = False
        self.table = vocabulary or build_vocabulary()
        self.tokenizer = ToyTokenizer(self.table)
        self._facts = replace(info or scripted_info(), vocabulary=len(self.table.pieces))
        self.adapters = ScriptedAdapters(self.table)
        self._clock = clock or SystemClock()
        self._slots = FairSemaphore(QueueLimits(self._facts.sequences, sys.maxsize, sys.maxsize))
        self._counters = Load(free_sequences=self._facts.sequences)
        self._groups: dict[str, _SiblingGroup] = {}
        self._spec = spec
        self._waiting: Counter[str] = Counter()

    # --- TokenEngine ---

    async def load(self, spec: LoadSpec) -> EngineInfo:
        return await self.info()

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        return self.tokenizer.encode(pieces, add_bos)

    async def vocabulary(self) -> Vocabulary:
        return self.table

    async def info(self) -> EngineInfo:
        return replace(self._facts, load=self._counters)

    async def add_adapter(self, digest: str, path: str) -> None:
        self.adapters.add(digest, path)

    async def remove_adapter(self, digest: str) -> None:
        self.adapters.remove(digest)

    async def aclose(self) -> None:
        self.is_closed = True

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        with self.adapters.use(request.adapter):
            async with aclosing(self._generate(request)) as events:
                async for event in events:
                    yield event

    async def _generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        """Yields the events of one sequence as scripted. Raises the errors that the contract requires."""
        if request.constraint is not None:
            raise UnsupportedParameter("a script follows no constraint", param=request.constraint.field)
        sequence = self._accept(request)
        self._require_queue_space(request, sequence.group)
        script, started = sequence.script, self._clock.monotonic()
        self.requests.append(request)
        sequence.group.members += 1
        try:
            await self._queue(sequence)
            async with sequence.group.lock:
                self._admit(sequence)
                yield SequenceStarted(
                    len(sequence.prompt), sequence.cached_tokens, self._clock.monotonic() - started
                )
                await self._prefill(sequence)
            for scores in self._score_prompt(sequence):
                yield scores
            token_source = self._iterate_tokens(sequence)
            while sequence.cause is None:
                await self._hold_or_fail(script, sequence.output_tokens)
                if script.pace is not None:
                    await asyncio.sleep(script.pace)
                yield self._step(sequence, token_source)
            self._release(sequence)
            yield SequenceFinished(
                sequence.cause, Counts(len(sequence.prompt), sequence.output_tokens, sequence.cached_tokens)
            )
        finally:
            self._release(sequence)
            sequence.group.members -= 1
            if not sequence.group.members and request.group is not None:
                self._groups.pop(request.group, None)
            self.ended_count += 1

    # --- one sequence ---

    def _read_prompt(self, prompt: PromptTokens) -> tuple[int, ...]:
        """Returns the token ids of a prompt. Raises InvalidValue for an id outside the vocabulary."""
        size = len(self.table.pieces)
        for token in prompt.ids:
            if not 0 <= token < size:
                raise InvalidValue(f"token id {token} is outside the vocabulary of {size} tokens")
        return prompt.ids

    def _accept(self, request: TokenRequest) -> _Sequence:
        """Checks a request and makes its sequence. Raises an error if the engine is closed or the request is
        impossible."""
        prompt = self._read_prompt(request.prompt)
        free_tokens = self._facts.context_length - len(prompt)
        if self.is_closed:
            raise EngineUnavailable("the scripted engine is closed")
        min_max_tokens = 1 if request.prompt_logprobs is None else 0
        if not prompt or request.max_tokens < min_max_tokens:
            raise InvalidValue("a sequence needs a prompt, and max_tokens of at least 1 unless it is scored")
        if free_tokens < min(1, request.max_tokens):
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._facts.context_length} tokens. "
                f"However, your prompt has {len(prompt)} tokens."
            )
        script = self.script(request) if callable(self.script) else self.script
        group = (
            _SiblingGroup()
            if request.group is None
            else self._groups.setdefault(request.group, _SiblingGroup())
        )
        free_tokens = min(free_tokens, request.max_tokens)
        cause = None if free_tokens else StopCause.LENGTH
        return _Sequence(request, script, prompt, group, free_tokens, past=prompt, cause=cause)

    def _require_queue_space(self, request: TokenRequest, group: _SiblingGroup) -> None:
        """Raises EngineBusy or Overloaded if the queue is full. Never refuses a sibling of a queued or
        running sequence."""
        if group.members or self._slots.has_room(request.actor):
            return
        refusal: AntiphonError | None = None
        if self._counters.queued >= self._spec.queue:
            refusal = EngineBusy("the queue is full; try again", retry_after=1.0)
        elif self._waiting[request.actor] >= self._spec.queue_per_actor:
            refusal = Overloaded("too many of your requests are waiting; try again", retry_after=1.0)
        if refusal is not None:
            self._groups.pop(request.group or "", None)
            raise refusal

    async def _queue(self, sequence: _Sequence) -> None:
        """Waits in the queue for a place. Raises the scripted error if it is due while the sequence is
        queued."""
        failure, actor = sequence.script.failure, sequence.request.actor
        self._count(queued=1)
        self._waiting[actor] += 1
        try:
            if failure is not None and failure.after is None:
                raise failure.error
            await self._slots.acquire(actor, self._clock, sequence.request.priority)
        finally:
            self._count(queued=-1)
            self._waiting[actor] -= 1
        sequence.is_running = True
        self._count(running=1, free_sequences=-1)

    def _admit(self, sequence: _Sequence) -> None:
        """Counts the sequence's cells, and its cached tokens if a sibling has computed the prompt."""
        shared = sequence.group.is_computed and sequence.request.prompt_logprobs is None
        sequence.cached_tokens = len(sequence.prompt) - 1 if shared else 0
        sequence.cells = len(sequence.prompt)
        self._count(cells_used=sequence.cells)

    async def _prefill(self, sequence: _Sequence) -> None:
        """Waits as long as the prompt takes, unless it is cached, and counts its tokens."""
        hold = sequence.script.hold
        if hold is not None and hold.after is None:
            await hold.event.wait()
        if not sequence.cached_tokens:
            await asyncio.sleep(sequence.script.prefill)
        sequence.group.is_computed = True
        self._count(prefill_tokens=len(sequence.prompt) - sequence.cached_tokens, steps=1)

    def _release(self, sequence: _Sequence) -> None:
        """Frees the sequence's resources. Later calls do nothing."""
        if sequence.is_running:
            sequence.is_running = False
            self._count(running=-1, free_sequences=1, cells_used=-sequence.cells)
            self._slots.release(sequence.request.actor, self._clock)

    @staticmethod
    async def _hold_or_fail(script: Script, output_tokens: int) -> None:
        """Waits or fails after this number of tokens if the script requires it."""
        if script.hold is not None and script.hold.after == output_tokens:
            await script.hold.event.wait()
        if script.failure is not None and script.failure.after == output_tokens:
            raise script.failure.error

    def _iterate_tokens(self, sequence: _Sequence) -> Iterator[int]:
        """Yields the tokens of this sequence. The sequence's `past` must contain the earlier tokens."""
        script, request = sequence.script, sequence.request
        tokens = script.tokens if script.text is None else self.tokenizer.encode_plain(script.text)
        if tokens is not None:
            eos = self.table.eos_id if self.table.eos_id is not None else 0
            return cycle(tokens) if script.endless else chain(tokens, repeat(eos))
        ends = frozenset((*self._list_ends(request), *request.stop_token_ids))
        sampler = ToySampler(request.sampling, request.choice, sequence.prompt, ends)
        toy = self.adapters.get_model(request.adapter)
        return iter(lambda: sampler.draw_next(toy.logprobs(sequence.past)), -1)

    def _list_ends(self, request: TokenRequest) -> tuple[int, ...]:
        """Lists the end tokens of the model; none if the request ignores them."""
        return () if request.sampling.ignore_eos else self.table.end_ids

    def _score_prompt(self, sequence: _Sequence) -> Iterator[PromptScores]:
        """Scores the prompt in chunks, as an engine computes them; the first token gets no score."""
        logprobs, prompt = sequence.request.prompt_logprobs, sequence.prompt
        if logprobs is None:
            return
        chunk = self._spec.get_prefill_chunk()
        for start in range(1, len(prompt), chunk):
            places = range(start, min(start + chunk, len(prompt)))
            toy = self.adapters.get_model(sequence.request.adapter)
            rows = [toy.logprobs(prompt[:position]) for position in places]
            likeliest = [pair for row in rows for pair in list_best(row, logprobs)]
            yield PromptScores(
                start,
                array(
                    "f", [row[prompt[position]] for row, position in zip(rows, places, strict=True)]
                ).tobytes(),
                array("i", [token for token, _ in likeliest]).tobytes(),
                array("f", [value for _, value in likeliest]).tobytes(),
                array(
                    "i", [find_rank(row, prompt[index]) for row, index in zip(rows, places, strict=True)]
                ).tobytes(),
            )

    def _step(self, sequence: _Sequence, token_source: Iterator[int]) -> Steps:
        """Takes the tokens of the next Steps event. If the sequence ends with them, stores the cause."""
        script, logprobs = sequence.script, sequence.request.logprobs
        pause_points = {mark.after for mark in (script.hold, script.failure) if mark is not None}
        tokens: list[int] = []
        past_tokens = sequence.past
        for token in token_source:
            tokens.append(token)
            sequence.past = (*sequence.past[-8:], token)
            sequence.output_tokens += 1
            sequence.cause = self._find_cause(token, sequence)
            if (
                sequence.cause is not None
                or len(tokens) >= script.burst
                or sequence.output_tokens in pause_points
            ):
                break
        sequence.cells += len(tokens)
        self._count(decoded_tokens=len(tokens), steps=1, cells_used=len(tokens))
        return (
            Steps(tuple(tokens))
            if logprobs is None
            else self._score_steps(sequence, past_tokens, tokens, logprobs)
        )

    def _find_cause(self, token: int, sequence: _Sequence) -> StopCause | None:
        """Returns why the sequence ends with this token; None if it goes on."""
        if token in sequence.request.stop_token_ids:
            return StopCause.STOP_TOKEN
        if token in self._list_ends(sequence.request):
            return StopCause.END
        return StopCause.LENGTH if sequence.output_tokens >= sequence.max_tokens else None

    def _score_steps(
        self, sequence: _Sequence, past_tokens: tuple[int, ...], tokens: list[int], alternatives: int
    ) -> Steps:
        """Builds Steps with the toy model's log-probabilities of the tokens."""
        toy = self.adapters.get_model(sequence.request.adapter)
        rows = [toy.logprobs(past_tokens + tuple(tokens[:index])) for index in range(len(tokens))]
        chosen = tuple(row[token] for row, token in zip(rows, tokens, strict=True))
        if listed_ids := sequence.request.logprob_token_ids:
            return Steps(
                tuple(tokens),
                chosen,
                tuple(tuple((position, row[position]) for position in listed_ids) for row in rows),
            )
        return Steps(
            tuple(tokens), chosen, tuple(list_best(row, alternatives) for row in rows) if alternatives else ()
        )

    def _count(self, **changes: int) -> None:
        """Adds the changes to the load counters."""
        self._counters = replace(
            self._counters,
            **{name: getattr(self._counters, name) + change for name, change in changes.items()},
        )
