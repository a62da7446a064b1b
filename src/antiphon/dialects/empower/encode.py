"""Encodes answers and errors in Empower's form. A chunk belongs to one choice."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.chunks import DONE
from antiphon.dialects.common.encode import (
    FINISH_NAMES,
    build_calls,
    build_extras,
    build_meta,
    get_error_type,
)
from antiphon.dialects.common.response_types import FunctionPart, ToolCallPart
from antiphon.dialects.empower.wire_types import (
    AnswerMessage,
    ChatAnswer,
    ChatChunk,
    ChunkChoice,
    EmpowerChatChoice,
    EmpowerDelta,
    EmpowerUsageShape,
    FlatError,
    StreamedError,
)
from antiphon.dialects.http_types import StreamEncoder
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    Event,
    Finished,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.errors import AntiphonError

ID_PREFIX = "cmpl-"
"""The prefix of an answer's id, also for chats."""

THINKING, END_THINKING = "<thinking>", "</thinking>"

_encode = msgspec.json.Encoder().encode


def encode_chat(meta: ResponseMeta, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered answer."""
    choices = [
        EmpowerChatChoice(
            index=choice.index, message=_build_message(choice), finish_reason=FINISH_NAMES[choice.reason]
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatAnswer(**build_meta(ID_PREFIX, meta), choices=choices, usage=_build_usage(generation.usage))
    )


def _build_message(choice: CollectedChoice) -> AnswerMessage:
    """Builds the message of a choice. The reasoning precedes the text, between two markers."""
    calls = build_calls(choice)
    reasoning = f"{THINKING}{choice.reasoning}{END_THINKING}" if choice.reasoning else ""
    content = reasoning + choice.text + choice.refusal
    return AnswerMessage(
        content=None if calls and not content else content,
        tool_calls=calls or msgspec.UNSET,
        thinking_blocks=list(choice.thinking_blocks) or msgspec.UNSET,
    )


class EmpowerStreamEncoder(StreamEncoder):
    """Encodes one stream. With one prompt, the last chunk of each choice contains the choice's usage. With
    several prompts or a vendor, only the last chunk of the stream contains the usage, for all choices
    together. A vendor reports the usage only at the end."""

    def __init__(self, meta: ResponseMeta, call: GenerationCall) -> None:
        self._meta = build_meta(ID_PREFIX, meta)
        prompt_count = len(call.request.prompts)
        self._choice_count = prompt_count * call.request.output.choices
        self._knows_choice_tokens = prompt_count == 1
        """Whether the tokens of each choice are known."""
        self._prompt_tokens = 0
        self._choice_tokens: dict[int, int] = {}
        self._reasoning_choices: set[int] = set()
        """The choices whose reasoning is not closed yet."""
        self._thinking_blocks: dict[int, list[Mapping[str, Any]]] = {}
        self._open_choice_count = self._choice_count
        self._last_finish: Finished | None = None
        """The end of the last choice, until the usage is known."""

    def encode(self, event: Event | ReasoningDelta) -> bytes:
        match event:
            case Started():
                self._prompt_tokens = event.prompt_tokens
                self._knows_choice_tokens &= event.source is not UsageSource.ESTIMATED
                return b"".join(
                    self._encode_delta(choice, EmpowerDelta(role="assistant"))
                    for choice in range(self._choice_count)
                )
            case TextDelta() | ReasoningDelta():
                self._add_tokens(event.choice, event.tokens)
                return self._encode_delta(event.choice, EmpowerDelta(content=self._mark_reasoning(event)))
            case ToolCallStarted() | ToolCallDelta():
                self._add_tokens(event.choice, event.tokens)
                return self._close_reasoning(event.choice) + self._encode_delta(
                    event.choice, _build_call_delta(event)
                )
            case ThinkingBlock():
                self._thinking_blocks.setdefault(event.choice, []).append(event.block)
            case Finished():
                return (
                    self._close_reasoning(event.choice)
                    + self._encode_blocks(event.choice)
                    + self._encode_finish(event)
                )
            case Usage():
                return (
                    self._encode_last_chunk(self._last_finish, _build_usage(event))
                    if self._last_finish
                    else b""
                )
        return b""

    def end(self) -> bytes:
        return DONE

    def encode_error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_streamed_error(error)

    def _add_tokens(self, choice: int, tokens: int) -> None:
        """Adds to the number of tokens of a choice."""
        self._choice_tokens[choice] = self._choice_tokens.get(choice, 0) + tokens

    def _mark_reasoning(self, event: TextDelta | ReasoningDelta) -> str:
        """Returns the event's text, with a marker before it if the reasoning starts or ends here."""
        is_open = event.choice in self._reasoning_choices
        if isinstance(event, ReasoningDelta):
            self._reasoning_choices.add(event.choice)
            return event.text if is_open else THINKING + event.text
        self._reasoning_choices.discard(event.choice)
        return END_THINKING + event.text if is_open else event.text

    def _close_reasoning(self, choice: int) -> bytes:
        """Returns a chunk that closes the choice's reasoning; empty if it is not open."""
        if choice not in self._reasoning_choices:
            return b""
        self._reasoning_choices.remove(choice)
        return self._encode_delta(choice, EmpowerDelta(content=END_THINKING))

    def _encode_blocks(self, choice: int) -> bytes:
        """Returns a chunk with the choice's blocks of reasoning; empty if there are none."""
        blocks = self._thinking_blocks.pop(choice, None)
        return self._encode_delta(choice, EmpowerDelta(thinking_blocks=blocks)) if blocks else b""

    def _encode_finish(self, event: Finished) -> bytes:
        """Encodes the end of a choice. If the tokens of each choice are unknown, the end of the last choice
        waits for the usage."""
        self._add_tokens(event.choice, event.tokens)
        self._open_choice_count -= 1
        if self._knows_choice_tokens:
            tokens = self._choice_tokens[event.choice]
            return self._encode_last_chunk(
                event, EmpowerUsageShape(self._prompt_tokens, tokens, self._prompt_tokens + tokens)
            )
        if self._open_choice_count:
            return self._encode_last_chunk(event, msgspec.UNSET)
        self._last_finish = event
        return b""

    def _encode_last_chunk(self, event: Finished, usage: EmpowerUsageShape | msgspec.UnsetType) -> bytes:
        """Encodes the last chunk of a choice."""
        part = ChunkChoice(index=event.choice, delta=EmpowerDelta(), finish_reason=FINISH_NAMES[event.reason])
        return self._encode_chunk(part, usage)

    def _encode_delta(self, choice: int, delta: EmpowerDelta) -> bytes:
        """Encodes a chunk with this delta."""
        return self._encode_chunk(ChunkChoice(index=choice, delta=delta), msgspec.UNSET)

    def _encode_chunk(self, part: ChunkChoice, usage: EmpowerUsageShape | msgspec.UnsetType) -> bytes:
        """Encodes one chunk as a data line."""
        return b"data: %b\n\n" % _encode(ChatChunk(**self._meta, choices=[part], usage=usage))


def _build_call_delta(event: ToolCallStarted | ToolCallDelta) -> EmpowerDelta:
    """Builds the delta that starts a call with the whole name, or adds to the call's arguments."""
    if isinstance(event, ToolCallStarted):
        function = FunctionPart(name=event.name, arguments="")
        return EmpowerDelta(
            tool_calls=[
                ToolCallPart(
                    index=event.index,
                    id=event.id,
                    type="function",
                    function=function,
                    extra_content=build_extras(event.signature),
                )
            ]
        )
    return EmpowerDelta(
        tool_calls=[ToolCallPart(index=event.index, function=FunctionPart(arguments=event.arguments))]
    )


def _build_usage(usage: Usage) -> EmpowerUsageShape | msgspec.UnsetType:
    """Builds the usage in Empower's form. Returns UNSET for an estimate."""
    if usage.source is UsageSource.ESTIMATED:
        return msgspec.UNSET
    return EmpowerUsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)


def encode_flat_error(error: AntiphonError) -> bytes:
    """Encodes an error as `{"object": "error", "message", "type", "param", "code"}`."""
    return _encode(_build_error(error))


def encode_streamed_error(error: AntiphonError) -> bytes:
    """Encodes an error in the same form, under the key `error`."""
    return _encode(StreamedError(_build_error(error)))


def _build_error(error: AntiphonError) -> FlatError:
    """Builds the error in Empower's form."""
    return FlatError(message=error.message, type=get_error_type(error), param=error.param, code=error.code)
