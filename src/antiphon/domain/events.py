"""The events of a generation, its token usage and its log-probabilities.

A stream contains one Started, then deltas and one Finished for each choice, and Usage as the last event. It
also contains one PromptScored for each prompt whose scores the caller requests. A request that retrieves has
References before Started, and UnknownCitations before Usage if there are any.

Started comes with the first token, so a failure before it is an ordinary error. If no token is made
(`max_tokens` 0), Started comes when the first choice is complete. Errors are raised, not yielded.

A stream is an asynchronous iterator of groups of events.
"""

import dataclasses
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from math import isnan
from typing import overload

from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.domain.values import Struct, Value

NO_ID = -1
"""The placeholder for an unknown token id."""


class TokenOrigin(StrEnum):
    """Where a token comes from, if it is not simply drawn."""

    FORCED = "forced"
    """The constraint allowed no other token."""
    DRAFTED = "drafted"
    """The token was computed ahead, from a prediction or from earlier text, and the draw confirmed it."""


class TokenScore(Struct, frozen=True):
    """One token of a text with its log-probability in the model's raw distribution: before bias, penalties,
    temperature and cuts."""

    token: int
    """The token's id; `NO_ID` if a vendor does not tell it. The same holds for alternatives."""
    piece: bytes
    """The bytes of the token, which may be a part of a character. A control token, which adds no text, has
    its name here."""
    logprob: float | None
    """The log-probability; None for the first token of a prompt, which follows no token."""
    alternatives: tuple[tuple[int, bytes, float], ...] = ()
    """The likeliest tokens at this position as (id, piece, log-probability), the likeliest first."""
    offset: int = 0
    """The index, in the choice's text, of the character that contains the token's first byte. For a control
    token at the end it is the text's length."""
    rank: int | None = None
    """The token's rank by probability: 1 for the likeliest. None if the caller does not request ranks, and
    for a prompt's first token."""
    origin: TokenOrigin | None = None
    """None for a token that was drawn, for a prompt's token, and if the engine does not tell."""


Scores = Sequence[TokenScore]
"""The scores of consecutive tokens of one text."""


@dataclasses.dataclass(frozen=True, slots=True)
class PackedScores(Sequence[TokenScore]):
    """Scores in arrays. Reading a score creates a `TokenScore`."""

    tokens: Sequence[int]
    offsets: Sequence[int]
    logprobs: "array[float]"
    """The log-probability of each token; NaN for a token without one."""
    pieces: Sequence[bytes]
    """The bytes of every token of the vocabulary."""
    alternatives_per_token: int = 0
    """The number of alternatives in each `TokenScore`."""
    alternative_ids: "array[int]" = dataclasses.field(default_factory=lambda: array("i"))
    """The alternatives' ids, `stored_per_token` for each token."""
    alternative_logprobs: "array[float]" = dataclasses.field(default_factory=lambda: array("f"))
    stored_per_token: int | None = None
    """The number of alternatives that the arrays contain for each token; None means `alternatives_per_token`.
    A `TokenScore` gets only the first `alternatives_per_token` of them."""
    ranks: "array[int] | None" = None
    """One rank for each token; None if not requested."""

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[TokenScore]:
        return map(self._build_score, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Scores:
        if isinstance(index, slice):
            return tuple(self._build_score(position) for position in range(*index.indices(len(self))))
        return self._build_score(range(len(self))[index])

    def _build_score(self, position: int) -> TokenScore:
        """Builds the score of the token at this index."""
        token, value = self.tokens[position], self.logprobs[position]
        has_logprob = not isnan(value)
        return TokenScore(
            token,
            self.pieces[token],
            value if has_logprob else None,
            self._list_alternatives(position) if has_logprob else (),
            self.offsets[position],
            self.ranks[position] if has_logprob and self.ranks is not None else None,
        )

    def _list_alternatives(self, position: int) -> tuple[tuple[int, bytes, float], ...]:
        """Returns the alternatives of the token at this index."""
        begin = position * (
            self.alternatives_per_token if self.stored_per_token is None else self.stored_per_token
        )
        end = begin + self.alternatives_per_token
        ids = self.alternative_ids[begin:end]
        return tuple(
            (token, self.pieces[token], value)
            for token, value in zip(ids, self.alternative_logprobs[begin:end], strict=True)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedScores(Sequence[TokenScore]):
    """Several sequences of scores as one, without copying them."""

    parts: tuple[Scores, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[TokenScore]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Scores:
        return tuple(self)[index]


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Joins the scores to one sequence, without unpacking packed scores."""
    nonempty = tuple(part for part in parts if part)
    if all(isinstance(part, tuple) for part in nonempty):
        return tuple(chain.from_iterable(nonempty))
    return nonempty[0] if len(nonempty) == 1 else JoinedScores(nonempty)


class UsageSource(StrEnum):
    """Who counted the tokens."""

    ENGINE = "engine"
    """The engine that generated the tokens."""
    REPORTED = "reported"
    """A vendor, in its answer."""
    COUNTED = "counted"
    """This server, with the model's tokenizer."""
    ESTIMATED = "estimated"
    """This server estimated the number, because nobody counted the tokens."""


class Usage(Value, frozen=True):
    """Token counts of one request: each prompt once, and the tokens of every choice. It is also the last
    event of a stream."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that were not computed again, because their KV was cached."""
    reasoning_tokens: int = 0
    """Completion tokens that were spent on reasoning."""
    source: UsageSource = UsageSource.ENGINE
    cache_write_tokens: int = 0
    """Prompt tokens that a vendor wrote into its cache."""
    prompt_audio_tokens: int = 0
    completion_audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    """Tokens of the caller's prediction that are in the completion."""
    rejected_prediction_tokens: int = 0
    """Tokens of the prediction that were computed and are not in the answer. Vendors count them as completion
    tokens; for a local model, a setting decides it."""
    prompt_image_tokens: int = 0
    """Prompt tokens that are cells of images."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """The model's end of turn, a stop string, or a stop token."""
    LENGTH = "length"
    """max_tokens, or the end of the context."""
    TOOL_CALLS = "tool_calls"
    """The model's end of turn, after one or several complete calls."""
    CONTENT_FILTER = "content_filter"
    """A vendor withheld the rest."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first token of any choice has arrived."""

    prompt_tokens: int
    """Tokens of all prompts together."""
    cached_tokens: int = 0
    prompts: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt, if the caller requests them."""
    queued: float | None = field(default=None, compare=False)
    """Seconds until the first choice was in the engine's batch, if the engine reports it."""
    cache_write_tokens: int = 0
    """As in Usage, if a vendor tells it at the beginning."""
    source: UsageSource = UsageSource.ENGINE
    """Who counted the tokens of the prompt. With ESTIMATED the deltas count no tokens, and only Usage
    does."""


class PromptScored(Value, frozen=True):
    """The scores of one prompt's tokens, if the caller requests them. There is one event for each prompt,
    after Started."""

    prompt: int
    scores: Scores
    """The scores of all tokens of the prompt, with their ranks."""


class TextDelta(Value, frozen=True):
    """More text of one choice; never empty, never half a character. With `echo` the first delta is the
    prompt. With `echo` and `logprobs` a long prompt comes in several deltas."""

    choice: int
    text: str
    tokens: int = 0
    """Completion tokens since this choice's last event. Their sum over the events is the choice's usage, so a
    stream that is cut can be billed."""
    scores: Scores = ()
    """Scores of the tokens whose text begins in this delta, and of invisible tokens before them; empty if the
    caller does not request scores."""
    ids: tuple[int, ...] = ()
    """Ids of the tokens in `scores`, if the caller requests them. The ids of all events together are all
    tokens of the choice, except those that a stop string cuts off."""
    is_refusal: bool = False
    """Whether a vendor marked the text as the model's refusal to answer."""


class ReasoningDelta(Value, frozen=True):
    """More reasoning of one choice before its text; never empty."""

    choice: int
    text: str
    tokens: int = 0
    """As in a TextDelta."""
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class ThinkingBlock(Value, frozen=True):
    """A vendor's block of reasoning with its signature, which the vendor needs back unchanged in the next
    request. Its text was already in ReasoningDelta events."""

    choice: int
    block: Mapping[str, object]
    """The block as JSON, in the vendor's own form."""
    tokens: int = 0
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class VendorPart(Value, frozen=True):
    """A part of an answer in the form of its vendor's API, for a caller of the same API. If an answer has
    such parts, they are all of its content, besides the other deltas."""

    choice: int
    part: bytes
    """JSON: in a stream the beginning of a block, or a delta of it; otherwise a complete block."""
    is_delta: bool = False
    tokens: int = 0
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class VendorEnd(Value, frozen=True):
    """How an answer ended, for a caller of the vendor's API."""

    fields: Mapping[str, bytes]
    """Why it ended, as JSON by names."""
    tool_usage: bytes = b"null"
    """What the vendor's own tools did, as JSON."""


class SpeechDelta(Value, frozen=True):
    """More of a spoken answer of one choice. Only requests that ask for speech get it."""

    choice: int
    id: str | None = None
    """The vendor's id of the speech, in one of its deltas. The next request refers to it."""
    data: str = ""
    """More of the recording: the next characters, any number of them, of one base64 text."""
    transcript: str = ""
    """More of the transcript."""
    expires_at: int | None = None
    """The Unix time until which the vendor keeps the speech; in the last delta."""
    tokens: int = 0
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class ToolCallStarted(Value, frozen=True):
    """The next call of one choice; its arguments follow in deltas."""

    choice: int
    index: int
    """The number of the call in its choice, from 0."""
    id: str
    name: str
    tokens: int = 0
    """As in a TextDelta."""
    scores: Scores = ()
    ids: tuple[int, ...] = ()
    signature: str | None = None
    """As in `domain.messages.ToolCall`."""


class ToolCallDelta(Value, frozen=True):
    """More of a call's arguments; never empty."""

    choice: int
    index: int
    arguments: str
    tokens: int = 0
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class Finished(Value, frozen=True):
    """One choice is complete. There is exactly one such event for each choice."""

    choice: int
    reason: FinishReason
    tokens: int = 0
    """Completion tokens without text since this choice's last delta."""
    scores: Scores | None = None
    """Scores of the tokens without text since the last delta, the last token of the choice included; None if
    the caller does not request scores."""
    ids: tuple[int, ...] = ()
    """Ids of the tokens in `scores`, if the caller requests them."""
    stop: str | None = None
    """The caller's stop text that ended the choice; None if none did, or if a vendor does not tell it."""
    vendor_end: VendorEnd | None = None
    """The same, if the choice has `VendorPart`s."""


class CandidateTokens(Value, frozen=True):
    """Counts the tokens of all candidates from which the best choices are selected. The usage contains them.
    So the deltas of the selected choices count no tokens."""

    tokens: int


Delta = (
    TextDelta | ReasoningDelta | ThinkingBlock | VendorPart | SpeechDelta | ToolCallStarted | ToolCallDelta
)
"""More output of a choice."""

RetrievalEvent = References | UnknownCitations
"""The events that retrieval adds to a stream."""

Event = Started | PromptScored | Delta | Finished | CandidateTokens | RetrievalEvent | Usage

EventGroup = Sequence[Event]
"""Events that arrived together: in one network read of a vendor's answer, or in one step of an engine. They
travel together to the caller, and are never empty."""
