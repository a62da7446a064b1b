"""Log-probabilities: limits their number, collects them for prompts and choices, and ranks candidates by them
(`best_of`)."""

import asyncio
import sys
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from antiphon.domain.events import (
    CandidateTokens,
    Delta,
    Event,
    EventGroup,
    Finished,
    FinishReason,
    PackedScores,
    PromptScored,
    Started,
    TextDelta,
    TokenScore,
)
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import PromptScores, SequenceFinished, Steps, TokenEvent
from antiphon.errors import EngineError, InvalidValue
from antiphon.rendering.choice_decoder import ChoiceDecoder, DecodeOptions
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

    async def insert_scores(
        self, events: AsyncGenerator[EventGroup, None]
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of the choice that scores the prompt, with the scores after Started."""
        async with aclosing(events):
            async for group in events:
                if isinstance(group[0], Started) and self._shown_width is not None:
                    count = len(self._tokens)
                    scores = self.pack_scores(0, count, bytes(count), self._shown_width, with_ranks=True)
                    yield (group[0], PromptScored(self._prompt_index, scores), *group[1:])
                else:
                    yield group

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
            if self._stop_filter.found_stop is not None:
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
        origin = steps.origins[index] if steps.origins else None
        return TokenScore(
            token, self._spelt[token], steps.logprobs[index], alternatives, offset, origin=origin
        )

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
            self.choice,
            reason,
            self._take_unreported(),
            scores if self._scoring.logprobs else None,
            ids,
            self._stop_filter.found_stop,
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
    events: AsyncGenerator[EventGroup, None],
    decoders: Sequence[ScoredDecoder],
    prompt_count: int,
    choice_count: int,
) -> AsyncGenerator[EventGroup, None]:
    """While candidates run, reports their tokens, also those of later winners, as CandidateTokens. Once all
    have ended, yields the events of the `choice_count` best candidates of each prompt, the best first. Equal
    candidates keep their order."""
    candidate_events: list[list[Delta | Finished]] = [[] for _ in decoders]
    async with aclosing(events):
        async for group in events:
            shown_events: list[Event] = []
            for event in group:
                if not isinstance(event, Delta | Finished):
                    shown_events.append(event)
                    continue
                candidate_events[event.choice].append(event)
                if event.tokens:
                    shown_events.append(CandidateTokens(event.tokens))
            if shown_events:
                yield shown_events
    candidate_count = len(decoders) // prompt_count
    for prompt in range(prompt_count):
        candidates = decoders[prompt * candidate_count : (prompt + 1) * candidate_count]
        ranked = sorted(candidates, key=lambda decoder: -decoder.compute_mean_logprob())
        for choice, decoder in enumerate(ranked[:choice_count], start=prompt * choice_count):
            yield [replace(event, choice=choice, tokens=0) for event in candidate_events[decoder.choice]]
