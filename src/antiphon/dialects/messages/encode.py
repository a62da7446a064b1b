"""Encodes answers and errors in the form of the Messages API."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.http_types import StreamEncoder
from antiphon.dialects.messages.decode import CALL_STATE, ITEM_STATE
from antiphon.dialects.messages.wire_types import (
    AnswerBlock,
    AnswerCall,
    AnswerRedacted,
    AnswerText,
    AnswerThinking,
    BlockDelta,
    BlockStart,
    BlockStop,
    CacheCreation,
    ErrorAnswer,
    ErrorBody,
    MessageAnswer,
    MessageDelta,
    MessageEnd,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputDetails,
    Ping,
    StopDetails,
    StopReason,
    StreamEvent,
    VendorBlock,
)
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
    VendorEnd,
    VendorPart,
)
from antiphon.domain.messages import OWN_SIGNATURE, ToolCall
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.errors import AntiphonError, ContextLengthExceeded, ProviderBroken
from antiphon.wire.anthropic import (
    ERROR_STATUSES,
    InputPiece,
    Piece,
    SignaturePiece,
    TextPiece,
    ThinkingPiece,
)
from antiphon.wire.placed_blocks import KeptReasoning, interleave

ID_PREFIX = "msg_"

STOP_REASONS: Mapping[FinishReason, StopReason] = MappingProxyType(
    {
        FinishReason.STOP: "end_turn",
        FinishReason.LENGTH: "max_tokens",
        FinishReason.TOOL_CALLS: "tool_use",
    }
)

ERROR_TYPES = {status: error_type for error_type, status in ERROR_STATUSES.items()}
"""The type of an error by its status. Others below 500 are invalid_request_error, and from 500 on
api_error."""

OVERFLOW_START = "prompt is too long"
"""How Anthropic's error for a prompt that is too long begins. Clients know the error by these words, and
Claude Code reads the two numbers after them."""

NO_ARGUMENTS = msgspec.Raw(b"{}")

Seal = Callable[[SealedReasoning], str]

_encode = msgspec.json.Encoder().encode


def encode_error(error: AntiphonError, request_id: str | None = None) -> bytes:
    """Encodes an error."""
    fallback = "api_error" if error.status >= 500 else "invalid_request_error"
    error_type = ERROR_TYPES.get(error.status, fallback)
    message = error.message
    if isinstance(error, ContextLengthExceeded) and OVERFLOW_START not in message:
        numbers = "" if error.lengths is None else ": {} tokens > {} maximum".format(*error.lengths)
        message = f"{OVERFLOW_START}{numbers}. {message}"
    return _encode(ErrorAnswer(ErrorBody(error_type, message), request_id))


def encode_event(event: StreamEvent) -> bytes:
    """Encodes one event of a stream. Clients read its name from the line before its data."""
    name: str = event.__struct_config__.tag  # type: ignore[assignment]
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(event))


def _encode_native(name: str, fields: Mapping[str, object]) -> bytes:
    """Encodes an event with parts that come in the form of this API."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name} | dict(fields)))


def encode_message(
    meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration, seal: Seal | None = None
) -> bytes:
    """Encodes a buffered answer. `seal` makes a signature that carries the reasoning, instead of its text.
    None shows the text."""
    (choice,) = generation.choices
    if choice.vendor_end is not None:
        return _encode_vendor_answer(meta, choice.vendor_parts, choice.vendor_end, generation.usage)
    end = _build_end(choice, bool(choice.refusal), generation.usage, call)
    return _encode(
        MessageAnswer(
            id=ID_PREFIX + meta.id,
            content=_build_content(choice, meta, seal),
            model=meta.model,
            stop_reason=end.stop_reason,
            stop_sequence=end.stop_sequence,
            stop_details=end.stop_details,
            usage=_build_usage(generation.usage),
        )
    )


def _encode_vendor_answer(meta: ResponseMeta, blocks: Sequence[bytes], end: VendorEnd, usage: Usage) -> bytes:
    """Encodes a buffered answer whose blocks come in the form of this API."""
    answer = _build_start(meta, usage)
    fields = msgspec.structs.asdict(answer) | {
        "content": [msgspec.Raw(block) for block in blocks],
        "usage": _build_vendor_usage(usage, end),
    }
    return _encode({"type": "message"} | fields | _read_fields(end))


def _read_fields(end: VendorEnd) -> dict[str, object]:
    return {name: msgspec.Raw(value) for name, value in end.fields.items()}


def _build_vendor_usage(usage: Usage, end: VendorEnd) -> dict[str, object]:
    """Builds the usage of an answer of Anthropic's, with that of its own tools."""
    return msgspec.structs.asdict(_build_usage(usage)) | {"server_tool_use": msgspec.Raw(end.tool_usage)}


def _build_start(meta: ResponseMeta, usage: Usage) -> MessageAnswer:
    """Builds an answer that has no content so far."""
    return MessageAnswer(
        id=ID_PREFIX + meta.id,
        content=[],
        model=meta.model,
        stop_reason=None,
        stop_sequence=None,
        usage=_build_usage(usage),
    )


def _build_content(choice: CollectedChoice, meta: ResponseMeta, seal: Seal | None) -> list[AnswerBlock]:
    """Builds the blocks of an answer: reasoning, text, calls. A vendor's reasoning keeps its place among
    text and calls, since the vendor wants it back there."""
    content: list[AnswerBlock] = []
    calls = [
        (
            *([AnswerThinking("", CALL_STATE + call.signature)] if call.signature is not None else ()),
            AnswerCall(call.id, call.name, _close_arguments(call)),
        )
        for call in choice.calls
    ]
    thoughts = [block for each in choice.thinking_blocks if (block := _read_vendor_block(each)) is not None]
    if choice.reasoning and not thoughts:
        if seal is None:
            content.append(AnswerThinking(choice.reasoning, OWN_SIGNATURE))
        else:
            content.append(AnswerThinking("", seal(SealedReasoning(choice.reasoning, meta.model))))
    text = choice.text + choice.refusal
    for piece in interleave(text, calls, [(thought.after, thought) for thought in thoughts]):
        if isinstance(piece, str):
            content.append(AnswerText(piece))
        elif isinstance(piece, VendorBlock):
            content.append(_build_vendor_block(piece))
        else:
            content += piece
    return content or [AnswerText("")]


def _read_vendor_block(block: Mapping[str, object]) -> VendorBlock | None:
    """Reads a vendor's block of reasoning. An item of OpenAI's travels in the signature. Returns None for
    another form, or without a signature: its text is then in the choice's reasoning alone."""
    try:
        if block.get("type") == "reasoning":
            item = msgspec.convert(block, KeptReasoning)
            signature = ITEM_STATE + _encode(item).decode()
            return VendorBlock("thinking", "\n\n".join(item.summary), signature, after=item.after)
        vendor_block = msgspec.convert(block, VendorBlock)
    except msgspec.ValidationError:
        return None
    return vendor_block if vendor_block.data or vendor_block.signature else None


def _build_vendor_block(block: VendorBlock) -> AnswerBlock:
    """Builds a vendor's block of reasoning."""
    if block.type == "redacted_thinking":
        return AnswerRedacted(block.data)
    return AnswerThinking(block.thinking, block.signature)


def _close_arguments(call: ToolCall) -> msgspec.Raw:
    """Returns the arguments of a call as an object. Arguments that the limit of tokens cut are empty, as no
    part of them is known to be what the model meant."""
    try:
        is_object = isinstance(msgspec.json.decode(call.arguments), dict)
    except msgspec.DecodeError:
        is_object = False
    return msgspec.Raw(call.arguments.encode()) if is_object else NO_ARGUMENTS


def _build_end(
    end: Finished | CollectedChoice, is_refusal: bool, usage: Usage, call: GenerationCall
) -> MessageEnd:
    """Builds the reason why an answer ended. The context ended it if a local model made fewer tokens than the
    caller allowed."""
    if is_refusal or end.reason is FinishReason.CONTENT_FILTER:
        return MessageEnd("refusal", None, StopDetails())
    if end.reason is FinishReason.STOP and end.stop is not None:
        return MessageEnd("stop_sequence", end.stop)
    is_cut, allowed = end.reason is FinishReason.LENGTH, call.request.output.max_tokens or 0
    if is_cut and usage.source is UsageSource.ENGINE and usage.completion_tokens < allowed:
        return MessageEnd("model_context_window_exceeded", None)
    return MessageEnd(STOP_REASONS[end.reason], None)


def _build_usage(usage: Usage) -> MessageUsage:
    """Builds the usage. The prompt's tokens are divided into cached, written and other ones."""
    return MessageUsage(
        input_tokens=max(0, usage.prompt_tokens - usage.cached_tokens - usage.cache_write_tokens),
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_creation=CacheCreation(usage.cache_write_tokens),
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
    )


class MessagesStreamEncoder(StreamEncoder):
    """Encodes one stream. One block is open at a time, and blocks have the indexes 0, 1, 2."""

    def __init__(
        self, meta: ResponseMeta, call: GenerationCall, request_id: str, seal: Seal | None = None
    ) -> None:
        """`seal`: as in `encode_message`."""
        self._meta = meta
        self._call = call
        self._request_id = request_id
        self._seal = seal
        self._hidden: list[str] = []
        """The reasoning of the open block that the signature will carry."""
        self._index = -1
        """The index of the last block that has begun."""
        self._is_native = False
        """Whether the blocks come in the form of this API."""
        self._open: type[AnswerBlock | VendorPart] | None = None
        """The kind of the open block."""
        self._open_call = -1
        """The number of the call whose block began last."""
        self._empty_calls: set[int] = set()
        """The numbers of calls whose blocks ended without arguments."""
        self._has_deltas = False
        """Whether the open block has content."""
        self._is_refusal = False
        """Whether the model refused to answer."""
        self._finished: Finished | None = None

    def encode(self, event: Event) -> bytes:
        """Encodes one event; empty if the caller does not see it."""
        match event:
            case VendorPart():
                return self._encode_vendor_part(event)
            case TextDelta() | ReasoningDelta() | ToolCallStarted() | ToolCallDelta() | ThinkingBlock() if (
                self._is_native
            ):
                return b""
            case TextDelta() if event.text:
                self._is_refusal |= event.is_refusal
                return self._open_block(AnswerText("")) + self._encode_delta(TextPiece(event.text))
            case ReasoningDelta() if event.text and self._seal is not None:
                self._hidden.append(event.text)
                return self._open_block(AnswerThinking("", ""))
            case ReasoningDelta() if event.text:
                return self._open_block(AnswerThinking("", "")) + self._encode_delta(
                    ThinkingPiece(event.text)
                )
            case ToolCallStarted():
                encoded = self._close_block()
                if event.signature is not None:
                    encoded += self._open_block(AnswerThinking("", ""))
                    encoded += self._close_block(CALL_STATE + event.signature)
                self._open_call = event.index
                return encoded + self._open_block(AnswerCall(event.id, event.name, NO_ARGUMENTS))
            case ToolCallDelta():
                if event.index in self._empty_calls and event.arguments == "{}":
                    return b""  # they were sent as the block ended
                if self._open is not AnswerCall or self._open_call != event.index:
                    raise ProviderBroken("the vendor mixed the parts of several calls")
                return self._encode_delta(InputPiece(event.arguments))
            case ThinkingBlock():
                return self._encode_vendor_block(event)
            case Started():
                return self._encode_start(event)
            case Finished():
                self._finished = event
                is_empty = self._index < 0
                return (self._open_block(AnswerText("")) if is_empty else b"") + self._close_block()
            case Usage() if self._finished is not None:
                return self._encode_usage(event, self._finished)
        return b""

    def end(self) -> bytes:
        """Encodes the end of a complete stream."""
        return encode_event(MessageStop())

    def encode_error(self, error: AntiphonError) -> bytes:
        """Encodes the end of a broken stream."""
        return b"event: error\ndata: %b\n\n" % encode_error(error, self._request_id)

    def keep_alive(self) -> bytes:
        return encode_event(Ping())

    def _encode_start(self, event: Started) -> bytes:
        """Encodes the first event, with the prompt's tokens."""
        usage = Usage(
            event.prompt_tokens, 0, event.cached_tokens, cache_write_tokens=event.cache_write_tokens
        )
        return encode_event(MessageStart(_build_start(self._meta, usage)))

    def _open_block(self, block: AnswerBlock) -> bytes:
        """Begins a block, unless one of its kind is open. Ends another one."""
        if self._open is type(block):
            return b""
        closing = self._close_block()
        self._index += 1
        self._open, self._has_deltas = type(block), False
        return closing + encode_event(BlockStart(self._index, block))

    def _encode_delta(self, delta: Piece) -> bytes:
        """Encodes more of the open block."""
        self._has_deltas = True
        return encode_event(BlockDelta(self._index, delta))

    def _close_block(self, signature: str | None = None) -> bytes:
        """Ends the open block, if there is one. Reasoning ends with its signature, which carries what the
        caller does not see; a call without arguments gets empty ones, since clients join the deltas."""
        if self._open is None:
            return b""
        ending = b""
        if self._open is AnswerThinking:
            if signature is None and self._hidden and self._seal is not None:
                signature = self._seal(SealedReasoning("".join(self._hidden), self._meta.model))
            self._hidden = []
            ending = self._encode_delta(SignaturePiece(signature or OWN_SIGNATURE))
        elif self._open is AnswerCall and not self._has_deltas:
            ending = self._encode_delta(InputPiece("{}"))
            self._empty_calls.add(self._open_call)
        self._open = None
        return ending + encode_event(BlockStop(self._index))

    def _encode_usage(self, usage: Usage, finished: Finished) -> bytes:
        """Encodes why the answer ended, and its usage."""
        if (vendor_end := finished.vendor_end) is not None:
            fields = {"delta": _read_fields(vendor_end), "usage": _build_vendor_usage(usage, vendor_end)}
            return _encode_native("message_delta", fields)
        end = _build_end(finished, self._is_refusal, usage, self._call)
        return encode_event(MessageDelta(end, _build_usage(usage)))

    def _encode_vendor_part(self, event: VendorPart) -> bytes:
        """Encodes the beginning of a block, or a delta, that comes in the form of this API."""
        part = msgspec.Raw(event.part)
        if event.is_delta:
            return _encode_native("content_block_delta", {"index": self._index, "delta": part})
        closing = self._close_block()
        self._index += 1
        self._open, self._is_native = VendorPart, True
        start = {"index": self._index, "content_block": part}
        return closing + _encode_native("content_block_start", start)

    def _encode_vendor_block(self, event: ThinkingBlock) -> bytes:
        """Encodes a vendor's complete block of reasoning. Its text was sent before, if the caller sees it."""
        block = _read_vendor_block(event.block)
        if block is None:
            return b""
        if block.type == "redacted_thinking":
            return self._close_block() + self._open_block(AnswerRedacted(block.data)) + self._close_block()
        encoded = self._open_block(AnswerThinking("", ""))
        if block.thinking and not self._has_deltas:
            encoded += self._encode_delta(ThinkingPiece(block.thinking))
        return encoded + self._close_block(block.signature)
