"""From events to OpenAI's answers: buffered as one object, streamed as chunks.

A chunk of text is the commonest thing that the server writes, so its bytes around the text are made once for
each choice. They are the bytes that encoding the wire type gives; a test compares them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Generic, Protocol, TypedDict, TypeVar

import msgspec

from antiphon.dialects.base import Call, Head
from antiphon.dialects.openai.answers import (
    AssistantMessage,
    CachedTokens,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    Delta,
    FinishName,
    FunctionCall,
    FunctionPart,
    TextChoice,
    ToolCallPart,
    ToolCallShape,
    UsageShape,
)
from antiphon.dialects.openai.errors import encode_error
from antiphon.dialects.openai.logprobs import chat_logprobs, text_logprobs
from antiphon.domain.collect import Choice, Generation
from antiphon.domain.events import (
    Drafted,
    Event,
    Finished,
    FinishReason,
    PromptScored,
    Started,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.scores import Scores
from antiphon.domain.usage import Usage
from antiphon.errors import AntiphonError

CHAT_PREFIX = "chatcmpl-"
TEXT_PREFIX = "cmpl-"

DONE = b"data: [DONE]\n\n"
SPLIT = "\x00"
"""Stands for the text while a chunk's surroundings are made; as JSON it is unmistakable."""

FINISHES: Mapping[FinishReason, FinishName] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}
)

_encode = msgspec.json.Encoder().encode
_SPLIT = _encode(SPLIT)


def chat_answer(head: Head, generation: Generation) -> bytes:
    """A buffered chat completion."""
    choices = [
        ChatChoice(
            index=choice.index,
            message=_message(choice),
            logprobs=None if choice.scores is None else chat_logprobs(choice.scores),
            finish_reason=FINISHES[choice.reason],
        )
        for choice in generation.choices
    ]
    usage = usage_shape(generation.usage)
    return _encode(ChatCompletion(**_names(CHAT_PREFIX, head), choices=choices, usage=usage))


def text_answer(head: Head, call: Call, generation: Generation) -> bytes:
    """A buffered text completion."""
    ranked = bool(call.request.output.logprobs)
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None if choice.scores is None else text_logprobs(choice.scores, ranked),
            finish_reason=FINISHES[choice.reason],
        )
        for choice in generation.choices
    ]
    return _encode(
        Completion(**_names(TEXT_PREFIX, head), choices=choices, usage=usage_shape(generation.usage))
    )


def _message(choice: Choice) -> AssistantMessage:
    calls = [
        ToolCallShape(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in choice.calls
    ]
    content = None if calls and not choice.text else choice.text
    return AssistantMessage(content=content, tool_calls=calls or msgspec.UNSET)


Part = TypeVar("Part")
"""A choice's share of one chunk."""

MaybeUsage = UsageShape | msgspec.UnsetType | None


class Names(TypedDict):
    """What every part of an answer repeats."""

    id: str
    created: int
    model: str


class Form(Protocol[Part]):
    """What a stream's chunks are made of."""

    prefix: str
    """Of the answer's id."""

    def opening(self, choice: int) -> Part | None:
        """What a choice begins with, before any text."""

    def text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        """More text of a choice."""

    def call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        """The beginning of a call, or more of its arguments."""

    def closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        """The end of a choice."""

    def chunk(self, names: Names, choices: list[Part], usage: MaybeUsage) -> msgspec.Struct:
        """One event of the stream."""


class Deltas(Generic[Part]):
    """The form of a chat, by whichever dialect: the role first for each choice, then text, and one finish
    chunk for each."""

    def part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> Part:
        """A choice's share of one chunk."""
        raise NotImplementedError

    def opening(self, choice: int) -> Part:
        return self.part(choice, Delta(role="assistant", content="", refusal=None))

    def text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.part(choice, Delta(content=text), scores)

    def call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        if isinstance(event, ToolCallBegun):
            function = FunctionPart(name=event.name, arguments="")
            call = ToolCallPart(index=event.index, id=event.id, type="function", function=function)
        else:
            call = ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))
        return self.part(event.choice, Delta(tool_calls=[call]), event.scores)

    def closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.part(choice, Delta(), scores, reason)


class ChatForm(Deltas[ChatChunkChoice]):
    """OpenAI's chat."""

    prefix = CHAT_PREFIX

    def part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> ChatChunkChoice:
        logprobs = chat_logprobs(scores) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return ChatChunkChoice(index=choice, delta=delta, logprobs=logprobs, finish_reason=finish)

    def chunk(self, names: Names, choices: list[ChatChunkChoice], usage: MaybeUsage) -> ChatCompletionChunk:
        return ChatCompletionChunk(**names, choices=choices, usage=usage)


class Texts(Generic[Part]):
    """The form of a text completion, by whichever dialect: text, and one finish chunk for each choice."""

    def part(self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None) -> Part:
        """A choice's share of one chunk."""
        raise NotImplementedError

    def opening(self, choice: int) -> Part | None:
        return None

    def text(self, choice: int, text: str, scores: Scores = ()) -> Part:
        return self.part(choice, text, scores)

    def call(self, event: ToolCallBegun | ToolCallDelta) -> Part:
        """A text completion has no tools, so none is called."""
        return self.part(event.choice, "")

    def closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> Part:
        return self.part(choice, "", scores, reason)


class TextForm(Texts[TextChoice]):
    """OpenAI's text completion."""

    prefix = TEXT_PREFIX

    def __init__(self, ranked: bool) -> None:
        """`ranked`: whether the likeliest tokens are given beside each token."""
        self._ranked = ranked

    def part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> TextChoice:
        logprobs = text_logprobs(scores, self._ranked) if scores else None
        finish = None if reason is None else FINISHES[reason]
        return TextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=finish)

    def chunk(self, names: Names, choices: list[TextChoice], usage: MaybeUsage) -> Completion:
        return Completion(**names, choices=choices, usage=usage)


class OpenAIChunks(Generic[Part]):
    """One stream: events to data lines, the usage in a chunk without choices, and the two ways to end."""

    def __init__(self, form: Form[Part], head: Head, call: Call) -> None:
        self._form = form
        self._names = _names(form.prefix, head)
        self._include_usage = call.include_usage
        self._choices = len(call.request.prompts) * call.request.output.choices
        self._around: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, event: Event) -> bytes:
        match event:
            case TextDelta() if event.scores:
                return self._chunk(self._form.text(event.choice, event.text, event.scores))
            case TextDelta():
                before, after = self._around.get(event.choice) or self._surroundings(event.choice)
                return before + _encode(event.text) + after
            case ToolCallBegun() | ToolCallDelta():
                return self._chunk(self._form.call(event))
            case Started():
                openings = map(self._form.opening, range(self._choices))
                return b"".join(self._chunk(opening) for opening in openings if opening is not None)
            case Finished():
                return self.closed(event)
            case Usage():
                return self.counted(event)
            case Drafted() | PromptScored():
                return b""

    def closed(self, event: Finished) -> bytes:
        """The end of one choice."""
        return self._chunk(self._form.closing(event.choice, event.reason, event.scores or ()))

    def counted(self, usage: Usage) -> bytes:
        """What comes after all choices."""
        return self._chunk(None, usage_shape(usage)) if self._include_usage else b""

    def end(self) -> bytes:
        return DONE

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_error(error)

    def _surroundings(self, choice: int) -> tuple[bytes, bytes]:
        before, after = self._chunk(self._form.text(choice, SPLIT)).rsplit(_SPLIT, 1)
        self._around[choice] = before, after
        return before, after

    def _chunk(self, choice: Part | None, usage: UsageShape | None = None) -> bytes:
        choices = [] if choice is None else [choice]
        said: MaybeUsage = usage if self._include_usage else msgspec.UNSET
        return b"data: %b\n\n" % _encode(self._form.chunk(self._names, choices, said))


def _names(prefix: str, head: Head) -> Names:
    return {"id": prefix + head.id, "created": head.created, "model": head.model}


def usage_shape(usage: Usage) -> UsageShape:
    """The usage as OpenAI writes it."""
    cached = CachedTokens(usage.cached_tokens)
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached)
