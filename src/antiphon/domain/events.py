"""The events of a generation, its token usage and log-probabilities, and the complete answer that `collect`
makes.

A stream contains one Started, then deltas and one Finished for each choice, and Usage as the last event. It
also contains one PromptScored for each prompt whose scores the caller requests. A request that retrieves has
References before Started, and UnknownCitations before Usage if there are any.

Started comes with the first token, so a failure before it is an ordinary error. If no token is made
(`max_tokens` 0), Started comes when the first choice is complete. Errors are raised, not yielded.
"""

import dataclasses
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from math import isnan
from typing import overload

from antiphon.domain.messages import ToolCall
from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.domain.values import Struct, Value

NO_ID = -1
"""The placeholder for an unknown token id."""


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
    """Tokens of the prediction that are not in the answer, but count as completion tokens."""

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


class DiscardedTokens(Value, frozen=True):
    """Counts the tokens of all candidates from which the best choices are selected. The usage contains them.
    So the deltas of the selected choices count no tokens."""

    tokens: int


Delta = TextDelta | ReasoningDelta | ThinkingBlock | SpeechDelta | ToolCallStarted | ToolCallDelta
"""More output of a choice."""

RetrievalEvent = References | UnknownCitations
"""The events that retrieval adds to a stream."""

Event = Started | PromptScored | Delta | Finished | DiscardedTokens | RetrievalEvent | Usage


class Speech(Value, frozen=True):
    """The spoken answer of one choice."""

    id: str | None
    """The vendor's id, by which the next request refers to it."""
    data: str
    """The recording in base64."""
    transcript: str
    expires_at: int | None
    """The Unix time until which the vendor keeps the speech."""


def join_speech(deltas: Sequence[SpeechDelta]) -> Speech | None:
    """Joins the parts of a spoken answer; None if there are none."""
    if not deltas:
        return None
    return Speech(
        next((delta.id for delta in deltas if delta.id is not None), None),
        "".join([delta.data for delta in deltas]),
        "".join([delta.transcript for delta in deltas]),
        next((delta.expires_at for delta in deltas if delta.expires_at is not None), None),
    )


class CollectedChoice(Value, frozen=True):
    """One complete choice."""

    index: int
    text: str
    reason: FinishReason
    scores: Scores | None = None
    """Log-probabilities of the choice's tokens; None if the caller does not request them."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls in the order in which they began."""
    reasoning: str = ""
    """The reasoning before the text, where the model shows it."""
    ids: tuple[int, ...] = ()
    """Token ids, as many as `scores`, if the caller requests them."""
    thinking_blocks: tuple[Mapping[str, object], ...] = ()
    """The vendor's blocks of reasoning, which the vendor needs back."""
    speech: Speech | None = None
    """The spoken answer, if the caller requests one."""


class CollectedGeneration(Value, frozen=True):
    """Everything in a stream that has ended."""

    choices: tuple[CollectedChoice, ...]
    usage: Usage
    prompts: tuple[tuple[int, ...], ...] = ()
    """The token ids of each prompt, if the caller requests them."""
    prompt_scores: tuple[Scores, ...] = ()
    """The scores of each prompt's tokens, if the caller requests them."""
    references: References | None = None
    """The chunks found in a knowledge table, if the request retrieves."""
    unknown_citations: tuple[int, ...] = ()
    """The numbers that the model cited, and that are the number of no chunk in `references`."""


class _ChoiceCollector:
    """Collects the parts of one choice."""

    __slots__ = (
        "arguments",
        "blocks",
        "end",
        "ids",
        "reasoning",
        "scores",
        "speech",
        "started_calls",
        "text",
    )

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.started_calls: list[ToolCallStarted] = []
        self.arguments: dict[int, list[str]] = {}
        """The parts of each call's arguments, by the call's number."""
        self.blocks: list[Mapping[str, object]] = []
        self.speech: list[SpeechDelta] = []
        self.scores: list[Scores] = []
        self.ids: list[int] = []
        self.end: Finished | None = None

    def add(self, event: Delta | Finished) -> None:
        """Adds the next event."""
        if isinstance(event, TextDelta):
            self.text.append(event.text)
        elif isinstance(event, Finished):
            self.end = event
        elif isinstance(event, ReasoningDelta):
            self.reasoning.append(event.text)
        elif isinstance(event, ToolCallStarted):
            self.started_calls.append(event)
        elif isinstance(event, ThinkingBlock):
            self.blocks.append(event.block)
        elif isinstance(event, SpeechDelta):
            self.speech.append(event)
        else:
            self.arguments.setdefault(event.index, []).append(event.arguments)
        if event.scores:
            self.scores.append(event.scores)
        if event.ids:
            self.ids.extend(event.ids)

    def build_choice(self, index: int, end: Finished) -> CollectedChoice:
        """Builds the complete choice from the collected parts."""
        scores = None if end.scores is None else join_scores(self.scores)
        calls = tuple(
            [
                ToolCall(call.id, call.name, "".join(self.arguments.get(call.index, ())), call.signature)
                for call in self.started_calls
            ]
        )
        text, reasoning = "".join(self.text), "".join(self.reasoning)
        ids, blocks, speech = tuple(self.ids), tuple(self.blocks), join_speech(self.speech)
        return CollectedChoice(index, text, end.reason, scores, calls, reasoning, ids, blocks, speech)


async def collect(events: AsyncIterator[Event]) -> CollectedGeneration:
    """Collects a whole stream. Raises the errors of the stream, and ValueError if the events are in a wrong
    order."""
    choices: defaultdict[int, _ChoiceCollector] = defaultdict(_ChoiceCollector)
    usage: Usage | None = None
    prompts: tuple[tuple[int, ...], ...] = ()
    prompt_scores: dict[int, Scores] = {}
    references: References | None = None
    unknown_citations: tuple[int, ...] = ()
    async for event in events:
        if isinstance(event, TextDelta):  # tested first, since it is the most frequent event
            choices[event.choice].add(event)
        elif isinstance(event, Usage):
            usage = event
        elif isinstance(event, Started):
            prompts = event.prompts
        elif isinstance(event, PromptScored):
            prompt_scores[event.prompt] = event.scores
        elif isinstance(event, References):
            references = event
        elif isinstance(event, UnknownCitations):
            unknown_citations = event.numbers
        elif not isinstance(event, DiscardedTokens):
            choices[event.choice].add(event)
    if usage is None:
        raise ValueError("the stream ended without usage")
    collected = [
        choice.build_choice(index, choice.end) for index, choice in sorted(choices.items()) if choice.end
    ]
    return CollectedGeneration(
        tuple(collected),
        usage,
        prompts,
        tuple(scores for _, scores in sorted(prompt_scores.items())),
        references,
        unknown_citations,
    )
