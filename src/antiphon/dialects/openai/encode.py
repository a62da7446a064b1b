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
    TextLogprobs,
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
    usage = _usage(generation.usage)
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
    return _encode(Completion(**_names(TEXT_PREFIX, head), choices=choices, usage=_usage(generation.usage)))


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


class ChatForm:
    """A chat: the role first for each choice, then text, and one finish chunk for each."""

    prefix = CHAT_PREFIX

    def opening(self, choice: int) -> ChatChunkChoice:
        return ChatChunkChoice(index=choice, delta=Delta(role="assistant", content="", refusal=None))

    def text(self, choice: int, text: str, scores: Scores = ()) -> ChatChunkChoice:
        logprobs = chat_logprobs(scores) if scores else None
        return ChatChunkChoice(index=choice, delta=Delta(content=text), logprobs=logprobs)

    def call(self, event: ToolCallBegun | ToolCallDelta) -> ChatChunkChoice:
        if isinstance(event, ToolCallBegun):
            function = FunctionPart(name=event.name, arguments="")
            part = ToolCallPart(index=event.index, id=event.id, type="function", function=function)
        else:
            part = ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))
        logprobs = chat_logprobs(event.scores) if event.scores else None
        return ChatChunkChoice(index=event.choice, delta=Delta(tool_calls=[part]), logprobs=logprobs)

    def closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> ChatChunkChoice:
        logprobs = chat_logprobs(scores) if scores else None
        return ChatChunkChoice(index=choice, delta=Delta(), logprobs=logprobs, finish_reason=FINISHES[reason])

    def chunk(self, names: Names, choices: list[ChatChunkChoice], usage: MaybeUsage) -> ChatCompletionChunk:
        return ChatCompletionChunk(**names, choices=choices, usage=usage)


class TextForm:
    """A text completion: text, and one finish chunk for each choice."""

    prefix = TEXT_PREFIX

    def __init__(self, ranked: bool) -> None:
        """`ranked`: whether the likeliest tokens are given beside each token."""
        self._ranked = ranked

    def opening(self, choice: int) -> None:
        return None

    def text(self, choice: int, text: str, scores: Scores = ()) -> TextChoice:
        return TextChoice(index=choice, text=text, logprobs=self._logprobs(scores))

    def call(self, event: ToolCallBegun | ToolCallDelta) -> TextChoice:
        """A text completion has no tools, so none is called."""
        return TextChoice(index=event.choice, text="")

    def closing(self, choice: int, reason: FinishReason, scores: Scores = ()) -> TextChoice:
        logprobs = self._logprobs(scores)
        return TextChoice(index=choice, text="", logprobs=logprobs, finish_reason=FINISHES[reason])

    def _logprobs(self, scores: Scores) -> TextLogprobs | None:
        return text_logprobs(scores, self._ranked) if scores else None

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
                return b"".join(self._chunk(self._form.opening(choice)) for choice in range(self._choices))
            case Finished():
                return self._chunk(self._form.closing(event.choice, event.reason, event.scores or ()))
            case Usage():
                return self._closing_usage(event) if self._include_usage else b""
            case Drafted():
                return b""

    def end(self) -> bytes:
        return DONE

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_error(error)

    def _surroundings(self, choice: int) -> tuple[bytes, bytes]:
        before, after = self._chunk(self._form.text(choice, SPLIT)).rsplit(_SPLIT, 1)
        self._around[choice] = before, after
        return before, after

    def _chunk(self, choice: Part | None) -> bytes:
        if choice is None:
            return b""
        return _data(self._form.chunk(self._names, [choice], None if self._include_usage else msgspec.UNSET))

    def _closing_usage(self, usage: Usage) -> bytes:
        return _data(self._form.chunk(self._names, [], _usage(usage)))


def _names(prefix: str, head: Head) -> Names:
    return {"id": prefix + head.id, "created": head.created, "model": head.model}


def _data(chunk: msgspec.Struct) -> bytes:
    return b"data: %b\n\n" % _encode(chunk)


def _usage(usage: Usage) -> UsageShape:
    cached = CachedTokens(usage.cached_tokens)
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached)
