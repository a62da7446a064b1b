"""What the chunks of OpenAI's streams are made of: the parts of a chat, and those of a text completion. Other
dialects make theirs by the same forms."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypedDict, TypeVar

import msgspec
from msgspec import UnsetType

from antiphon.dialects.common.answers import (
    ChatChunkChoice,
    ChatCompletionChunk,
    Completion,
    Delta,
    FinishName,
    FunctionPart,
    TextChoice,
    ToolCallPart,
    UsageShape,
)
from antiphon.dialects.common.logprobs import (
    TokenSpelling,
    build_chat_logprobs,
    build_text_logprobs,
    spell_by_text,
)
from antiphon.domain.events import FinishReason, ToolCallBegun, ToolCallDelta
from antiphon.domain.scores import Scores

CHAT_PREFIX = "chatcmpl-"
TEXT_PREFIX = "cmpl-"

FINISHES: Mapping[FinishReason, FinishName] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}
)

Part = TypeVar("Part")
"""A choice's share of one chunk."""

MaybeUsage = UsageShape | UnsetType | None


class MetaFields(TypedDict):
    """What every part of an answer repeats."""

    id: str
    created: int
    model: str


class ChunkBuilder(Protocol[Part]):
    """What a stream's chunks are made of."""

    prefix: str
    """Of the answer's id."""
    prompts_apart: bool
    """Whether the ids of a prompt stand in each of its choices, not beside them."""

    def build_opening(self, choice: int, content: str | None = "") -> Part | None:
        """What a choice begins with; `content`: None where a call or reasoning comes first."""

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """More text of a choice."""

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """More of what a choice thinks before its text."""

    def build_call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        """The beginning of a call, or more of its arguments."""

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        """The end of a choice."""

    def build_chunk(self, names: MetaFields, choices: list[Part], usage: MaybeUsage) -> msgspec.Struct:
        """One event of the stream."""


class BaseChatChunkBuilder(Generic[Part]):
    """The form of a chat, by whichever dialect: the role first for each choice, then text, and one finish
    chunk for each."""

    prompts_apart = False

    def build_part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> Part:
        """A choice's share of one chunk."""
        raise NotImplementedError

    def build_opening(self, choice: int, content: str | None = "") -> Part:
        return self.build_part(choice, Delta(role="assistant", content=content, refusal=None))

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(content=text), scores)

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(reasoning_content=text, reasoning=text), scores)

    def build_call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        if isinstance(event, ToolCallBegun):
            function = FunctionPart(name=event.name, arguments="")
            call = ToolCallPart(index=event.index, id=event.id, type="function", function=function)
        else:
            call = ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))
        return self.build_part(event.choice, Delta(tool_calls=[call]), event.scores)

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.build_part(choice, Delta(), scores, reason)


class ChatChunkBuilder(BaseChatChunkBuilder[ChatChunkChoice]):
    """OpenAI's chat."""

    prefix = CHAT_PREFIX

    def __init__(self, spell: TokenSpelling = spell_by_text) -> None:
        """`spell`: how log-probabilities call tokens."""
        self._spell = spell

    def part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> ChatChunkChoice:
        logprobs = build_chat_logprobs(scores, self._spell) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return ChatChunkChoice(index=choice, delta=delta, logprobs=logprobs, finish_reason=finish)

    def build_chunk(
        self, names: MetaFields, choices: list[ChatChunkChoice], usage: MaybeUsage
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(**names, choices=choices, usage=usage)


class BaseTextChunkBuilder(Generic[Part]):
    """The form of a text completion, by whichever dialect: text, and one finish chunk for each choice."""

    prompts_apart = True

    def build_part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> Part:
        """A choice's share of one chunk."""
        raise NotImplementedError

    def build_opening(self, choice: int, content: str | None = "") -> Part | None:
        return None

    def build_text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.build_part(choice, text, scores)

    def build_reasoning(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """A raw prompt's text is not read for reasoning; if it were, it would be text."""
        return self.build_part(choice, text, scores)

    def build_call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        """A text completion has no tools, so none is called."""
        return self.build_part(event.choice, "")

    def build_closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.build_part(choice, "", scores, reason)


class TextChunkBuilder(BaseTextChunkBuilder[TextChoice]):
    """OpenAI's text completion."""

    prefix = TEXT_PREFIX

    def __init__(self, ranked: bool, spell: TokenSpelling = spell_by_text) -> None:
        """`ranked`: whether the likeliest tokens are given beside each token. `spell`: how log-probabilities
        call tokens."""
        self._ranked = ranked
        self._spell = spell

    def part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> TextChoice:
        logprobs = build_text_logprobs(scores, self._ranked, self._spell) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return TextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=finish)

    def build_chunk(self, names: MetaFields, choices: list[TextChoice], usage: MaybeUsage) -> Completion:
        return Completion(**names, choices=choices, usage=usage)
