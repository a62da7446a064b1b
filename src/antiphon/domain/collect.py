"""Collects a stream of events into one complete answer. A request without streaming runs as a stream too."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence

from antiphon.domain.events import (
    CandidateTokens,
    Delta,
    EventGroup,
    Finished,
    FinishReason,
    PromptScored,
    ReasoningDelta,
    Scores,
    SpeechDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallStarted,
    Usage,
    VendorEnd,
    VendorPart,
    join_scores,
)
from antiphon.domain.messages import ToolCall
from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.domain.values import Value


class Speech(Value, frozen=True):
    """The spoken answer of one choice."""

    id: str | None
    """The vendor's id, by which the next request refers to it."""
    data: str
    """The recording in base64."""
    transcript: str
    expires_at: int | None
    """The Unix time until which the vendor keeps the speech."""


def join_speech(deltas: Sequence[SpeechDelta]) -> Speech:
    """Joins the parts of a spoken answer."""
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
    stop: str | None = None
    """The caller's stop text that ended the choice, as in `Finished`."""
    refusal: str = ""
    """The model's refusal to answer, if a vendor marked it. `text` does not contain it."""
    vendor_parts: tuple[bytes, ...] = ()
    """The blocks of the answer in the form of the vendor's API, if the caller speaks it."""
    vendor_end: VendorEnd | None = None
    """As in `Finished`."""


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
        "refusal",
        "scores",
        "speech",
        "started_calls",
        "text",
        "vendor_parts",
    )

    def __init__(self) -> None:
        self.text: list[str] = []
        self.refusal: list[str] = []
        self.reasoning: list[str] = []
        self.started_calls: list[ToolCallStarted] = []
        self.arguments: dict[int, list[str]] = {}
        """The parts of each call's arguments, by the call's number."""
        self.blocks: list[Mapping[str, object]] = []
        self.vendor_parts: list[bytes] = []
        self.speech: list[SpeechDelta] = []
        self.scores: list[Scores] = []
        self.ids: list[int] = []
        self.end: Finished | None = None

    def add(self, event: Delta | Finished) -> None:
        """Adds the next event."""
        if isinstance(event, TextDelta):
            (self.refusal if event.is_refusal else self.text).append(event.text)
        elif isinstance(event, Finished):
            self.end = event
        elif isinstance(event, ReasoningDelta):
            self.reasoning.append(event.text)
        elif isinstance(event, ToolCallStarted):
            self.started_calls.append(event)
        elif isinstance(event, ThinkingBlock):
            self.blocks.append(event.block)
        elif isinstance(event, VendorPart):
            self.vendor_parts.append(event.part)
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
        calls: list[ToolCall] = []
        for call in self.started_calls:
            arguments = "".join(self.arguments.get(call.index, ()))
            calls.append(ToolCall(call.id, call.name, arguments, call.signature))
        text, reasoning = "".join(self.text), "".join(self.reasoning)
        speech = join_speech(self.speech) if self.speech else None
        ids, blocks = tuple(self.ids), tuple(self.blocks)
        return CollectedChoice(
            index,
            text,
            end.reason,
            scores,
            tuple(calls),
            reasoning,
            ids,
            blocks,
            speech,
            end.stop,
            "".join(self.refusal),
            tuple(self.vendor_parts),
            end.vendor_end,
        )


async def collect(groups: AsyncIterator[EventGroup]) -> CollectedGeneration:
    """Collects a whole stream. Raises the errors of the stream, and ValueError if the events are in a wrong
    order."""
    choices: defaultdict[int, _ChoiceCollector] = defaultdict(_ChoiceCollector)
    usage: Usage | None = None
    prompts: tuple[tuple[int, ...], ...] = ()
    prompt_scores: dict[int, Scores] = {}
    references: References | None = None
    unknown_citations: tuple[int, ...] = ()
    async for group in groups:
        for event in group:
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
            elif not isinstance(event, CandidateTokens):
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
        tuple([scores for _, scores in sorted(prompt_scores.items())]) if prompt_scores else (),
        references,
        unknown_citations,
    )
