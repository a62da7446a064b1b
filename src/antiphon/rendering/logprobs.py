"""Log-probabilities: limits their number, collects them for prompts and choices, and ranks candidates by them
(`best_of`)."""

import asyncio
import sys
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.domain.events import (
    Delta,
    DiscardedTokens,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    Started,
    TextDelta,
)
from antiphon.domain.logprobs import PackedScores, TokenScore
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import changed
from antiphon.engines.base import PromptScores, SequenceFinished, Steps, TokenEvent
from antiphon.errors import EngineError, InvalidValue
from antiphon.rendering.decode.choice_decoder import ChoiceDecoder, DecodeOptions
from antiphon.rendering.model_info import ModelInfo


class PromptLogprobs:
    """The log-probabilities of one prompt, packed. The sequence of the prompt's first choice writes them, and
    any choice reads them."""

    def __init__(
        self,
        prompt: int,
        tokens: tuple[int, ...],
        pieces: Sequence[bytes],
        width: int,
        shown_width: int | None,
    ) -> None:
        """`prompt`: the prompt's index in the request. `pieces`: the bytes of every token of the vocabulary.
        `width`: alternatives of each token. `shown_width`: alternatives in the answer's own list of
        prompt log-probabilities; None if the request does not ask for this list."""
        self.width = width
        self._prompt = prompt
        self._shown_width = shown_width
        self._tokens = tokens
        self._pieces = pieces
        self._logprobs = array("f", [float("nan")])
        self._ids = array("i", [0] * width)
        self._values = array("f", [0.0] * width)
        self._ranks = array("i", [0])
        self._scored = asyncio.Event()

    async def wait_until_scored(self) -> None:
        """Waits until the engine has scored the whole prompt."""
        await self._scored.wait()

    async def collect_scores(
        self, sequence: AsyncGenerator[TokenEvent, None]
    ) -> AsyncGenerator[TokenEvent, None]:
        """Yields the events of the sequence that scores the prompt. Raises EngineError when the scores are
        incomplete."""
        async with aclosing(sequence) as events:
            async for event in events:
                if isinstance(event, PromptScores):
                    self._add(event)
                elif isinstance(event, Steps | SequenceFinished) and not self._scored.is_set():
                    self._complete()
                yield event

    async def insert_scores(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """Yields the events of the choice that scores the prompt, with the scores after Started."""
        async with aclosing(events):
            async for event in events:
                yield event
                if isinstance(event, Started) and self._shown_width is not None:
                    count = len(self._tokens)
                    scores = self.pack_scores(0, count, bytes(count), self._shown_width, ranked=True)
                    yield PromptScored(self._prompt, scores)

    def pack_scores(
        self, begin: int, end: int, offsets: Sequence[int], width: int, *, ranked: bool = False
    ) -> PackedScores:
        """Returns the scores of the tokens from `begin` to `end`. `offsets`: the position of each token.
        `width`: alternatives of each token; it is cut to the number that exists."""
        alternatives = slice(begin * self.width, end * self.width)
        return PackedScores(
            self._tokens[begin:end],
            offsets,
            self._logprobs[begin:end],
            self._pieces,
            width,
            self._ids[alternatives],
            self._values[alternatives],
            self.width,
            self._ranks[begin:end] if ranked else None,
        )

    def _add(self, scores: PromptScores) -> None:
        """Appends scores. Raises EngineError if they do not begin where the last ones ended."""
        if scores.start != len(self._logprobs):
            raise EngineError("the engine's scores of the prompt do not follow on each other")
        _unpack(self._logprobs, scores.logprobs)
        _unpack(self._ids, scores.alternative_ids)
        _unpack(self._values, scores.alternative_logprobs)
        _unpack(self._ranks, scores.ranks)

    def _complete(self) -> None:
        """Wakes the choices that wait for the scores. Raises EngineError if scores are missing."""
        count = len(self._tokens)
        lengths = (len(self._logprobs), len(self._ids), len(self._values), len(self._ranks))
        if lengths != (count, count * self.width, count * self.width, count):
            raise EngineError("the engine did not score the whole prompt")
        self._scored.set()


def _unpack(numbers: "array[int] | array[float]", chunk: bytes) -> None:
    """Appends packed numbers, which are little-endian, to `numbers`."""
    if sys.byteorder == "big":
        swapped = array(numbers.typecode, chunk)
        swapped.byteswap()
        chunk = swapped.tobytes()
    numbers.frombytes(chunk)


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """The data that a choice reports about its tokens."""

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
    shows: bool
    """Whether the token adds to the text."""
    score: TokenScore | None


class ScoredDecoder(ChoiceDecoder):
    """A choice decoder that reports each token's log-probability or id together with the token's text.

    The stop filter holds back tokens together with their text. If it cuts all text of a token, the token is
    dropped. So a choice reports scores and ids of the same tokens.
    """

    __slots__ = ("_certain_length", "_pending", "_pieces", "_scoring", "_shown_length", "_spelt", "_total")

    def __init__(
        self,
        choice: int,
        options: DecodeOptions,
        model_info: ModelInfo,
        scoring: ScoreOptions = ScoreOptions(True),
    ) -> None:
        super().__init__(choice, options)
        self._scoring = scoring
        self._pieces, self._spelt = options.pieces.bytes, model_info.spelt.bytes
        self._total = 0.0
        self._certain_length = scoring.offset
        """Number of characters of the decoded text. The stop filter can hold some of them back."""
        self._shown_length = scoring.offset
        self._pending: deque[PendingToken] = deque()

    def mean_logprob(self) -> float:
        """Returns the mean log-probability of the completion tokens; 0 if there are none."""
        return self._total / self.completion_tokens if self.completion_tokens else 0.0

    def _decode_steps(self, steps: Steps) -> str:
        """Returns the text of these tokens that the stop filter lets through. Counts the tokens up to a stop
        string, and adds their log-probabilities."""
        text = ""
        for index, token in enumerate(steps.tokens):
            self.completion_tokens += 1
            self._unreported += 1
            if steps.logprobs:
                self._total += steps.logprobs[index]
            piece = self._decode_token(token, steps, index)
            text += self._filter.add(piece) if self.completion_tokens > self._min_tokens else piece
            if self._filter.has_stopped:
                break
        return text

    def _decode_token(self, token: int, steps: Steps, index: int) -> str:
        """Returns the decoded text after a token. The token waits in `_pending` until this text is shown."""
        is_silent = token in self._silent
        offset = self._certain_length + (not is_silent and self._detokenizer.breaks_character(token))
        score = self._score(token, steps, index, offset) if self._scoring.logprobs else None
        self._pending.append(PendingToken(token, offset, not is_silent and bool(self._pieces[token]), score))
        text = "" if is_silent else self._detokenizer.add(token)
        self._certain_length += len(text)
        if self.reasoning_counter is not None:
            self.reasoning_counter.add_token(len(text))
        return text

    def _score(self, token: int, steps: Steps, index: int, offset: int) -> TokenScore:
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
        while self._pending and self._pending[0].offset < self._shown_length:
            yield self._pending.popleft()

    def _build_finished(self, reason: FinishReason) -> Finished:
        """Builds the last event, with pending tokens that have no text, for example the end of the turn.
        Tokens whose text is cut are dropped."""
        remaining = [
            token for token in self._pending if not token.shows and token.offset <= self._shown_length
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
    output, size = request.output, model_info.info.vocabulary
    if output.logprobs is None and output.prompt_logprobs is None:
        return request
    bound = size if maximum == WHOLE_VOCABULARY else maximum
    is_chat = any(isinstance(prompt, Conversation) for prompt in request.prompts)
    name = "top_logprobs" if is_chat else "logprobs"
    logprobs = _settle_width(output.logprobs, size, bound, name)
    scored = _settle_width(output.prompt_logprobs, size, bound, "prompt_logprobs")
    return changed(request, output=changed(output, logprobs=logprobs, prompt_logprobs=scored))


def _settle_width(requested: int | None, size: int, bound: int, field: str) -> int | None:
    """Returns the number of alternatives for one field; None if none are requested. Raises InvalidValue above
    `bound`."""
    if requested is None:
        return None
    width = size if requested == WHOLE_VOCABULARY else requested
    if width > bound:
        received = f"got {requested}"
        if requested == WHOLE_VOCABULARY:
            received = f"-1 means all {size} tokens of the vocabulary"
        raise InvalidValue(
            f"{field} must be at most {bound} on this server (ANTIPHON_MAX_LOGPROBS); {received}", param=field
        )
    return min(width, size)


async def choose_best(
    events: AsyncGenerator[Event, None], decoders: Sequence[ScoredDecoder], prompts: int, choices: int
) -> AsyncGenerator[Event, None]:
    """Yields the events of the `choices` best candidates of each prompt, the best first, after all candidates
    have ended. Equal candidates keep their order. Until then, reports the candidates' tokens as
    DiscardedTokens."""
    deltas: list[list[Delta | Finished]] = [[] for _ in decoders]
    async with aclosing(events):
        async for event in events:
            if not isinstance(event, Delta | Finished):
                yield event
                continue
            deltas[event.choice].append(event)
            if event.tokens:
                yield DiscardedTokens(event.tokens)
    count = len(decoders) // prompts
    for prompt in range(prompts):
        candidates = decoders[prompt * count : (prompt + 1) * count]
        ranked = sorted(candidates, key=lambda decoder: -decoder.mean_logprob())
        for choice, decoder in enumerate(ranked[:choices], start=prompt * choices):
            for event in deltas[decoder.choice]:
                yield changed(event, choice=choice, tokens=0)
