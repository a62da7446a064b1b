"""From events to Empower's answers: buffered as one object, streamed as chunks of one choice each."""

from typing import TypedDict

import msgspec

from antiphon.dialects.base import Call, ResponseMeta
from antiphon.dialects.common.answers import FunctionCall, FunctionPart, ToolCallPart, ToolCallShape
from antiphon.dialects.common.encode import DONE
from antiphon.dialects.common.forms import FINISHES
from antiphon.dialects.empower.answers import (
    AnswerMessage,
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChunkChoice,
    Delta,
    UsageShape,
)
from antiphon.dialects.empower.errors import encode_streamed
from antiphon.domain.collect import Choice, Generation
from antiphon.domain.events import (
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallBegun,
    ToolCallDelta,
)
from antiphon.domain.usage import Usage
from antiphon.errors import AntiphonError

PREFIX = "cmpl-"
"""Of an answer's id, for chats too."""

THINKING, THOUGHT = "<thinking>", "</thinking>"

_encode = msgspec.json.Encoder().encode


class Names(TypedDict):
    """What every part of an answer repeats."""

    id: str
    created: int
    model: str


def chat_answer(head: ResponseMeta, generation: Generation) -> bytes:
    """A buffered answer."""
    choices = [
        ChatChoice(index=choice.index, message=_message(choice), finish_reason=FINISHES[choice.reason])
        for choice in generation.choices
    ]
    return _encode(ChatAnswer(**_names(head), choices=choices, usage=_usage(generation.usage)))


def _message(choice: Choice) -> AnswerMessage:
    calls = [
        ToolCallShape(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in choice.calls
    ]
    thought = f"{THINKING}{choice.reasoning}{THOUGHT}" if choice.reasoning else ""
    content = thought + choice.text
    return AnswerMessage(
        content=None if calls and not content else content, tool_calls=calls or msgspec.UNSET
    )


class EmpowerChunks:
    """One stream. With one prompt each choice's last chunk says what it took; with several, whose parts are
    counted together, the very last chunk says what all took."""

    def __init__(self, head: ResponseMeta, call: Call) -> None:
        self._names = _names(head)
        prompts = len(call.request.prompts)
        self._choices = prompts * call.request.output.choices
        self._is_one = prompts == 1
        self._prompt_tokens = 0
        self._tokens: dict[int, int] = {}
        self._thinks: set[int] = set()
        """The choices whose reasoning is open."""
        self._open = self._choices
        self._last: Finished | None = None
        """The end of the last choice, until the usage is known."""

    def encode(self, event: Event | ReasoningDelta) -> bytes:
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                return b"".join(self._chunk(at, Delta(role="assistant")) for at in range(self._choices))
            case TextDelta() | ReasoningDelta():
                self._count(event.choice, event.tokens)
                return self._chunk(event.choice, Delta(content=self._text(event)))
            case ToolCallBegun() | ToolCallDelta():
                self._count(event.choice, event.tokens)
                return self._thought(event.choice) + self._chunk(event.choice, _call(event))
            case Finished():
                return self._thought(event.choice) + self._finished(event)
            case Usage():
                return self._closed(self._last, _usage(event)) if self._last else b""
        return b""

    def end(self) -> bytes:
        return DONE

    def error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_streamed(error)

    def _count(self, choice: int, tokens: int) -> None:
        self._tokens[choice] = self._tokens.get(choice, 0) + tokens

    def _text(self, event: TextDelta | ReasoningDelta) -> str:
        """The text with what opens or closes the reasoning before it."""
        is_open = event.choice in self._thinks
        if isinstance(event, ReasoningDelta):
            self._thinks.add(event.choice)
            return event.text if is_open else THINKING + event.text
        self._thinks.discard(event.choice)
        return THOUGHT + event.text if is_open else event.text

    def _thought(self, choice: int) -> bytes:
        """Closes the reasoning, where nothing but a call or the end comes after it."""
        if choice not in self._thinks:
            return b""
        self._thinks.remove(choice)
        return self._chunk(choice, Delta(content=THOUGHT))

    def _finished(self, event: Finished) -> bytes:
        self._count(event.choice, event.tokens)
        self._open -= 1
        if self._is_one:
            made = self._tokens[event.choice]
            return self._closed(event, UsageShape(self._prompt_tokens, made, self._prompt_tokens + made))
        if self._open:
            return self._closed(event, msgspec.UNSET)
        self._last = event
        return b""

    def _closed(self, event: Finished, usage: UsageShape | msgspec.UnsetType) -> bytes:
        part = ChunkChoice(index=event.choice, delta=Delta(), finish_reason=FINISHES[event.reason])
        return self._data(part, usage)

    def _chunk(self, choice: int, delta: Delta) -> bytes:
        return self._data(ChunkChoice(index=choice, delta=delta), msgspec.UNSET)

    def _data(self, part: ChunkChoice, usage: UsageShape | msgspec.UnsetType) -> bytes:
        return b"data: %b\n\n" % _encode(ChatChunk(**self._names, choices=[part], usage=usage))


def _call(event: ToolCallBegun | ToolCallDelta) -> Delta:
    """The beginning of a call with its name whole, or more of its arguments."""
    if isinstance(event, ToolCallBegun):
        function = FunctionPart(name=event.name, arguments="")
        return Delta(
            tool_calls=[ToolCallPart(index=event.index, id=event.id, type="function", function=function)]
        )
    return Delta(
        tool_calls=[ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))]
    )


def _names(head: ResponseMeta) -> Names:
    return {"id": PREFIX + head.id, "created": head.created, "model": head.model}


def _usage(usage: Usage) -> UsageShape:
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
