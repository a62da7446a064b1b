"""Log-probabilities of prompts and choices, and the echo of the prompt.

Limits the number of log-probabilities, collects them, and ranks candidates by them (`best_of`). `PromptEcho`
repeats the prompt at the beginning of its choices, with log-probabilities if the caller requests them. The
engine scores a prompt once, for the first of its choices. The other choices wait for the scores
(`PromptLogprobs`).
"""

import asyncio
import sys
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import NamedTuple

from antiphon.domain.events import (
    Delta,
    DiscardedTokens,
    Event,
    Finished,
    FinishReason,
    PackedScores,
    PromptScored,
    Scores,
    Started,
    TextDelta,
    TokenScore,
    join_scores,
)
from antiphon.domain.request import Conversation, GenerationRequest, RawPrompt
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Counts, PromptScores, SequenceFinished, Steps, StopCause, TokenEvent
from antiphon.errors import EngineError, InvalidValue
from antiphon.rendering.choice_decoder import ChoiceDecoder, DecodeOptions
from antiphon.rendering.detokenizer import Detokenizer, Pieces
from antiphon.rendering.model_info import ModelInfo


class PromptLogprobs:
    """The log-probabilities of one prompt, packed. The sequence of the prompt's first choice writes them, and
    any choice reads them."""

    def __init__(
        self,
        prompt_index: int,
        tokens: tuple[int, ...],
        pieces: Sequence[bytes],
        width: int,
        shown_width: int | None,
    ) -> None:
        """`prompt_index`: the prompt's index in the request. `pieces`: the bytes of every token of the
        vocabulary. `width`: number of alternatives of each token that the engine computes. `shown_width`:
        number of alternatives in the event PromptScored; None if the request sets no `prompt_logprobs`."""
        self.width = width
        self._prompt_index = prompt_index
        self._shown_width = shown_width
        self._tokens = tokens
        self._pieces = pieces
        self._logprobs = array("f", [float("nan")])
        self._alternative_ids = array("i", [0] * width)
        self._alternative_logprobs = array("f", [0.0] * width)
        self._ranks = array("i", [0])
        self._all_scored = asyncio.Event()

    async def wait_until_scored(self) -> None:
        """Waits until the engine has scored the whole prompt."""
        await self._all_scored.wait()

    async def collect_scores(
        self, sequence: AsyncGenerator[TokenEvent, None]
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yields the events of the sequence that scores the prompt. Raises EngineError when the scores are
        incomplete."""
        async with aclosing(sequence) as events:
            async for event in events:
                if isinstance(event, PromptScores):
                    self._add(event)
                elif isinstance(event, Steps | SequenceFinished) and not self._all_scored.is_set():
                    self._complete()
                yield event

    async def insert_scores(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """Yields the events of the choice that scores the prompt, with the scores after Started."""
        async with aclosing(events):
            async for event in events:
                yield event
                if isinstance(event, Started) and self._shown_width is not None:
                    count = len(self._tokens)
                    scores = self.pack_scores(0, count, bytes(count), self._shown_width, with_ranks=True)
                    yield PromptScored(self._prompt_index, scores)

    def pack_scores(
        self, begin: int, end: int, offsets: Sequence[int], width: int, *, with_ranks: bool = False
    ) -> PackedScores:
        """Returns the scores of the tokens from `begin` to `end`. `offsets`: the position of each token.
        `width`: alternatives of each token; it is cut to the number that exists. `with_ranks`: whether to
        include the ranks."""
        alternatives = slice(begin * self.width, end * self.width)
        return PackedScores(
            self._tokens[begin:end],
            offsets,
            self._logprobs[begin:end],
            self._pieces,
            width,
            self._alternative_ids[alternatives],
            self._alternative_logprobs[alternatives],
            self.width,
            self._ranks[begin:end] if with_ranks else None,
        )

    def _add(self, scores: PromptScores) -> None:
        """Appends scores. Raises EngineError if they do not begin where the previous scores ended."""
        if scores.start != len(self._logprobs):
            raise EngineError("the engine's scores of the prompt do not follow on each other")
        _unpack(self._logprobs, scores.logprobs)
        _unpack(self._alternative_ids, scores.alternative_ids)
        _unpack(self._alternative_logprobs, scores.alternative_logprobs)
        _unpack(self._ranks, scores.ranks)

    def _complete(self) -> None:
        """Wakes the choices that wait for the scores. Raises EngineError if scores are missing."""
        count = len(self._tokens)
        lengths = (
            len(self._logprobs),
            len(self._alternative_ids),
            len(self._alternative_logprobs),
            len(self._ranks),
        )
        if lengths != (count, count * self.width, count * self.width, count):
            raise EngineError("the engine did not score the whole prompt")
        self._all_scored.set()


def _unpack(values: "array[int] | array[float]", chunk: bytes) -> None:
    """Appends packed numbers, which are little-endian, to `values`."""
    if sys.byteorder == "big":
        swapped = array(values.typecode, chunk)
        swapped.byteswap()
        chunk = swapped.tobytes()
    values.frombytes(chunk)


class ScoreOptions(Struct, frozen=True):
    """What a choice reports about its tokens, besides their text."""

    logprobs: bool
    """Whether the choice reports log-probabilities."""
    offset: int = 0
    """The number of characters of the choice's text before its first token."""
    ids: bool = False
    """Whether the choice reports token ids."""
    selected: tuple[int, ...] = ()
    """Tokens whose log-probabilities replace the likeliest alternatives."""


class PendingToken(NamedTuple):
    """A token whose text is not shown yet."""

    token: int
    offset: int
    """The index in the choice's text of the character that contains the token's first byte."""
    has_text: bool
    """Whether the token adds to the text."""
    score: TokenScore | None


class ScoredDecoder(ChoiceDecoder):
    """A choice decoder that reports each token's log-probability or id together with the token's text.

    The stop filter holds back tokens together with their text. If it cuts all text of a token, the token is
    dropped. So a choice reports scores and ids of the same tokens.
    """

    __slots__ = (
        "_decoded_length",
        "_logprob_sum",
        "_pending_tokens",
        "_pieces",
        "_scoring",
        "_shown_length",
        "_spelt",
    )

    def __init__(
        self,
        choice: int,
        options: DecodeOptions,
        model_info: ModelInfo,
        scoring: ScoreOptions = ScoreOptions(True),
    ) -> None:
        super().__init__(choice, options)
        self._scoring = scoring
        self._pieces, self._spelt = options.pieces.bytes, model_info.named_pieces.bytes
        self._logprob_sum = 0.0
        self._decoded_length = scoring.offset
        """Number of characters of the decoded text. The stop filter can hold some of them back."""
        self._shown_length = scoring.offset
        self._pending_tokens: deque[PendingToken] = deque()

    def compute_mean_logprob(self) -> float:
        """Returns the mean log-probability of the completion tokens; 0 if there are none."""
        return self._logprob_sum / self.completion_tokens if self.completion_tokens else 0.0

    def _decode_steps(self, steps: Steps) -> str:
        """Returns the text of these tokens that the stop filter lets through. Counts the tokens up to a stop
        string, and adds their log-probabilities."""
        text = ""
        for index, token in enumerate(steps.tokens):
            self.completion_tokens += 1
            self._unreported_tokens += 1
            if steps.logprobs:
                self._logprob_sum += steps.logprobs[index]
            piece = self._decode_token(token, steps, index)
            text += self._stop_filter.add(piece) if self.completion_tokens > self._min_tokens else piece
            if self._stop_filter.has_stopped:
                break
        return text

    def _decode_token(self, token: int, steps: Steps, index: int) -> str:
        """Returns the decoded text after a token. The token waits in `_pending_tokens` until this text is
        shown."""
        is_silent = token in self._silent_tokens
        offset = self._decoded_length + (not is_silent and self._detokenizer.breaks_character(token))
        score = self._build_score(token, steps, index, offset) if self._scoring.logprobs else None
        self._pending_tokens.append(
            PendingToken(token, offset, not is_silent and bool(self._pieces[token]), score)
        )
        text = "" if is_silent else self._detokenizer.add(token)
        self._decoded_length += len(text)
        if self.reasoning_counter is not None:
            self.reasoning_counter.add_token(len(text))
        return text

    def _build_score(self, token: int, steps: Steps, index: int, offset: int) -> TokenScore:
        """Builds the score of one token, with the alternatives that the caller requests."""
        row = steps.alternatives[index] if steps.alternatives else ()
        if self._scoring.selected:
            row = ((token, steps.logprobs[index]), *(pair for pair in row if pair[0] != token))
        alternatives = tuple((other, self._spelt[other], value) for other, value in row)
        return TokenScore(token, self._spelt[token], steps.logprobs[index], alternatives, offset)

    def _build_delta(self, text: str) -> TextDelta:
        """Builds a delta with the scores and ids of all tokens whose text is now shown."""
        self._shown_length += len(text)
        scores, ids = self._collect_scores(list(self._pop_shown_tokens()))
        return TextDelta(self.choice, text, self._take_unreported(), scores, ids)

    def _pop_shown_tokens(self) -> Iterator[PendingToken]:
        """Removes and yields the pending tokens whose text is now shown."""
        while self._pending_tokens and self._pending_tokens[0].offset < self._shown_length:
            yield self._pending_tokens.popleft()

    def _build_finished(self, reason: FinishReason) -> Finished:
        """Builds the last event, with pending tokens that have no text, for example the end of the turn.
        Tokens whose text is cut are dropped."""
        remaining = [
            token
            for token in self._pending_tokens
            if not token.has_text and token.offset <= self._shown_length
        ]
        scores, ids = self._collect_scores(remaining)
        return Finished(
            self.choice, reason, self._take_unreported(), scores if self._scoring.logprobs else None, ids
        )

    def _collect_scores(self, tokens: list[PendingToken]) -> tuple[tuple[TokenScore, ...], tuple[int, ...]]:
        """Returns the requested scores and ids of these tokens."""
        scores = tuple(each.score for each in tokens if each.score is not None)
        return scores, tuple(each.token for each in tokens) if self._scoring.ids else ()


WHOLE_VOCABULARY = -1
"""Requests and the setting use this value for all tokens of the vocabulary."""


def settle_widths(request: GenerationRequest, model_info: ModelInfo, maximum: int) -> GenerationRequest:
    """Replaces -1 by the size of the vocabulary. Raises InvalidValue if the request asks for more than
    `maximum` alternatives."""
    output, vocabulary_size = request.output, model_info.info.vocabulary
    if output.logprobs is None and output.prompt_logprobs is None:
        return request
    most_alternatives = vocabulary_size if maximum == WHOLE_VOCABULARY else maximum
    is_chat = any(isinstance(prompt, Conversation) for prompt in request.prompts)
    field = "top_logprobs" if is_chat else "logprobs"
    logprobs = _settle_width(output.logprobs, vocabulary_size, most_alternatives, field)
    prompt_logprobs = _settle_width(
        output.prompt_logprobs, vocabulary_size, most_alternatives, "prompt_logprobs"
    )
    return replace(request, output=replace(output, logprobs=logprobs, prompt_logprobs=prompt_logprobs))


def _settle_width(
    requested: int | None, vocabulary_size: int, most_alternatives: int, field: str
) -> int | None:
    """Returns the number of alternatives for one field; None if none are requested. Raises InvalidValue above
    `most_alternatives`."""
    if requested is None:
        return None
    width = vocabulary_size if requested == WHOLE_VOCABULARY else requested
    if width > most_alternatives:
        received = f"got {requested}"
        if requested == WHOLE_VOCABULARY:
            received = f"-1 means all {vocabulary_size} tokens of the vocabulary"
        raise InvalidValue(
            f"{field} must be at most {most_alternatives} on this server (ANTIPHON_MAX_LOGPROBS); {received}",
            param=field,
        )
    return min(width, vocabulary_size)


async def choose_best(
    events: AsyncGenerator[Event, None],
    decoders: Sequence[ScoredDecoder],
    prompt_count: int,
    choice_count: int,
) -> AsyncGenerator[Event, None]:
    """Yields the events of the `choice_count` best candidates of each prompt, the best first, after all
    candidates have ended. Equal candidates keep their order. Until then, reports the candidates' tokens as
    DiscardedTokens."""
    candidate_events: list[list[Delta | Finished]] = [[] for _ in decoders]
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, Delta | Finished):
                yield event
                continue
            candidate_events[event.choice].append(event)
            if event.tokens:
                yield DiscardedTokens(event.tokens)
    candidate_count = len(decoders) // prompt_count
    for prompt in range(prompt_count):
        candidates = decoders[prompt * candidate_count : (prompt + 1) * candidate_count]
        ranked = sorted(candidates, key=lambda decoder: -decoder.compute_mean_logprob())
        for choice, decoder in enumerate(ranked[:choice_count], start=prompt * choice_count):
            for event in candidate_events[decoder.choice]:
                yield replace(event, choice=choice, tokens=0)


DELTA_TOKENS = 256
"""The number of tokens in one delta of a scored prompt. A delta with all alternatives takes seven
milliseconds to encode. After each delta, other requests run."""

MANY_TOKENS = 10_000
"""For more tokens than this, a thread computes the layout. This many tokens take about ten milliseconds."""


class PromptLayout(Struct, frozen=True):
    """The positions of a prompt's tokens in its text."""

    text: str
    offsets: Sequence[int]
    """For each token, the index of the character that contains the token's first byte."""
    incomplete: bytes = b""
    """The bytes of an incomplete character at the end of the prompt. The completion can complete the
    character."""


async def compute_layout(prompt: RawPrompt, tokens: tuple[int, ...], model_info: ModelInfo) -> PromptLayout:
    """Returns the layout of a prompt. Its text is the caller's text, or the text of the caller's token
    ids."""
    if len(tokens) > MANY_TOKENS:
        return await asyncio.to_thread(_compute_layout, prompt, tokens, model_info)
    return _compute_layout(prompt, tokens, model_info)


def _compute_layout(prompt: RawPrompt, tokens: tuple[int, ...], model_info: ModelInfo) -> PromptLayout:
    """Computes the layout; `compute_layout` chooses the thread."""
    if not prompt.text:
        return _detokenize(tokens, model_info.pieces)
    text, vocabulary = prompt.text, model_info.vocabulary
    bos_name = vocabulary.names.get(-1 if vocabulary.bos_id is None else vocabulary.bos_id)
    added_tokens = int(tokens[:1] == (vocabulary.bos_id,) and not (bos_name and text.startswith(bos_name)))
    decoded_layout = _detokenize(tokens[added_tokens:], model_info.named_pieces)
    # The tokenizer can have added a space at the start. If it normalises texts, the offsets are those of the
    # decoded tokens.
    added_spaces = int(decoded_layout.text != text and decoded_layout.text.startswith(f" {text[0]}"))
    offsets = array("q", [0] * added_tokens)
    offsets.extend(min(max(offset - added_spaces, 0), len(text)) for offset in decoded_layout.offsets)
    return PromptLayout(text, offsets)


def _detokenize(tokens: Sequence[int], pieces: Pieces) -> PromptLayout:
    """Returns the text of the tokens, with the position of each token in the text."""
    detokenizer, parts, offsets, length = Detokenizer(pieces), [], array("q"), 0
    for token in tokens:
        offsets.append(length + detokenizer.breaks_character(token))
        parts.append(text := detokenizer.add(token))
        length += len(text)
    return PromptLayout("".join(parts), offsets, detokenizer.get_pending())


class PromptEcho:
    """One prompt, repeated by each of its choices."""

    def __init__(self, layout: PromptLayout, logprobs: PromptLogprobs | None = None, width: int = 0) -> None:
        """`logprobs`: log-probabilities of the prompt's tokens; None if the choices report none. `width`:
        number of alternatives of each token."""
        self.layout = layout
        self._logprobs = logprobs
        self._width = width

    def decode(
        self, decoder: ChoiceDecoder, sequence: AsyncGenerator[TokenEvent, None]
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of a choice, with the prompt before the choice's own text."""
        decoder.resume(self.layout.incomplete)
        return self._insert_prompt(decoder.choice, decoder.decode(sequence))

    async def _insert_prompt(
        self, choice: int, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of a choice with the prompt after Started. Waits until the engine has scored the
        prompt."""
        carried_scores: list[Scores] = []
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Started) and self._logprobs is not None:
                    await self._logprobs.wait_until_scored()
                for expanded in self._expand_event(event, choice, carried_scores):
                    yield expanded
                    await _pause_after_prompt(is_prompt=expanded is not event)

    def _expand_event(self, event: Event, choice: int, carried_scores: list[Scores]) -> Iterator[Event]:
        """Yields the event, and the prompt after Started. `carried_scores`: scores without text; they are
        added to the next event."""
        if carried_scores and isinstance(event, TextDelta | Finished):
            yield replace(event, scores=join_scores((*carried_scores, event.scores or ())))
            carried_scores.clear()
        else:
            yield event
        if isinstance(event, Started):
            for text, scores in self._split_parts():
                if text:
                    yield TextDelta(choice, text, 0, scores)
                elif scores:
                    carried_scores.append(scores)

    def _split_parts(self) -> Iterator[tuple[str, Scores]]:
        """Yields the parts of the prompt's text with their scores. The last part can have scores but no
        text."""
        if self._logprobs is None:
            yield self.layout.text, ()
            return
        text, offsets = self.layout.text, self.layout.offsets
        for begin, end in pairwise(self._find_cuts()):
            end_offset = len(text) if end == len(offsets) else offsets[end]
            yield text[offsets[begin] if begin else 0 : end_offset], self._pack_scores(begin, end)

    def _find_cuts(self) -> Iterator[int]:
        """Yields the index of each part's first token, and last the number of tokens. A part begins only at a
        token that begins a new character, so only the last part can be without text."""
        token_count, offsets = len(self.layout.offsets), self.layout.offsets
        yield 0
        begin = 0
        for target in range(DELTA_TOKENS, token_count, DELTA_TOKENS):
            cut = next(
                (index for index in range(target, begin, -1) if offsets[index - 1] < offsets[index]), begin
            )
            if cut > begin:
                yield (begin := cut)
        yield token_count

    def _pack_scores(self, begin: int, end: int) -> Scores:
        """Returns the scores of the tokens from `begin` to `end`; none if the prompt has no
        log-probabilities."""
        if self._logprobs is None:
            return ()
        return self._logprobs.pack_scores(begin, end, self.layout.offsets[begin:end], self._width)


async def repeat_prompt(
    choice: int, text: str, events: AsyncGenerator[Event, None]
) -> AsyncGenerator[Event, None]:
    """Yields the events of a choice with a text before the choice's own text."""
    async with aclosing(events):
        async for event in events:
            yield event
            if text and isinstance(event, Started):
                yield TextDelta(choice, text)


async def generate_nothing(prompt_tokens: int) -> AsyncGenerator[TokenEvent, None]:
    """Yields the end of a sequence without tokens, for a choice that only repeats its prompt."""
    yield SequenceFinished(StopCause.LENGTH, Counts(prompt_tokens, 0))


async def _pause_after_prompt(is_prompt: bool) -> None:
    """After a part of the prompt, lets other tasks run once, because many such parts follow each other
    without waiting."""
    if is_prompt:
        await asyncio.sleep(0)
