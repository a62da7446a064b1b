"""Reads Anthropic's answers: whole ones, streams and errors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

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
from antiphon.engines.vendors.anthropic.wire_types import (
    BlockDeltaWire,
    BlockStartWire,
    BlockStopWire,
    BlockWire,
    EventNameWire,
    FailureWire,
    KindWire,
    MessageAnswerWire,
    MessageDeltaWire,
    MessageStartWire,
    MessageUsageWire,
    NativeDeltaWire,
    NativeEndWire,
    RedactedBlockWire,
    TextBlockWire,
    ThinkingBlockWire,
    ToolUseWire,
)
from antiphon.engines.vendors.base import StreamFailure, VendorError, is_possible
from antiphon.wire.anthropic import (
    ERROR_STATUSES,
    InputPiece,
    Piece,
    SignaturePiece,
    TextPiece,
    ThinkingPiece,
)
from antiphon.wire.placed_blocks import place_block

FINISHES: Mapping[str, FinishReason] = MappingProxyType(
    {
        "end_turn": FinishReason.STOP,
        "stop_sequence": FinishReason.STOP,
        "max_tokens": FinishReason.LENGTH,
        "model_context_window_exceeded": FinishReason.LENGTH,
        "tool_use": FinishReason.TOOL_CALLS,
        "refusal": FinishReason.CONTENT_FILTER,
    }
)
"""The finish reason of each stop reason. `pause_turn` is missing: it means that the vendor's own tools still
run, so the answer is complete only for a caller of this API, who can continue it."""

END_FIELDS = ("stop_reason", "stop_sequence", "stop_details", "container")
"""The fields that tell how an answer ended."""

BLOCK_KINDS = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (TextBlockWire, ThinkingBlockWire, RedactedBlockWire, ToolUseWire)
)

HOSTED_KINDS = frozenset({"server_tool_use", "mcp_tool_use", "container_upload"})
"""The kinds of blocks of the vendor's own tools, besides their results."""

DELTA_KINDS = frozenset(
    str(kind.__struct_config__.tag) for kind in (TextPiece, ThinkingPiece, SignaturePiece, InputPiece)
)

CITATION = "citations_delta"
"""The kind of a delta that tells the source of the text before it."""

NO_INPUT = b"{}"

CHOICE = 0
"""The index of the only choice that this vendor makes."""

read_answer = msgspec.json.Decoder(MessageAnswerWire | FailureWire).decode
read_failure = msgspec.json.Decoder(FailureWire).decode
read_name = msgspec.json.Decoder(EventNameWire).decode
read_message_start = msgspec.json.Decoder(MessageStartWire).decode
read_block_start = msgspec.json.Decoder(BlockStartWire).decode
read_known_block = msgspec.json.Decoder(BlockWire).decode
read_kind = msgspec.json.Decoder(KindWire).decode
read_native_delta = msgspec.json.Decoder(NativeDeltaWire).decode
read_native_end = msgspec.json.Decoder(NativeEndWire).decode
read_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
read_text = msgspec.json.Decoder(str | None).decode
encode_json = msgspec.json.Encoder().encode
read_block_delta = msgspec.json.Decoder(BlockDeltaWire).decode
read_block_stop = msgspec.json.Decoder(BlockStopWire).decode
read_message_delta = msgspec.json.Decoder(MessageDeltaWire).decode


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body that cannot be read gives an empty message."""
    try:
        return build_error(read_failure(body))
    except msgspec.MsgspecError:
        return VendorError("")


def build_error(failure: FailureWire) -> VendorError:
    """Converts an error in an answer."""
    kind = failure.error.type
    return VendorError(failure.error.message, kind, ERROR_STATUSES.get(kind))


def decode_answer(body: bytes, shows_reasoning: bool, is_native: bool = False) -> Iterator[Event]:
    """Yields the events of a whole answer, as if it were a stream whose blocks come complete. `is_native`: as
    for `MessagesDecoder`."""
    answer = read_answer(body)
    if isinstance(answer, FailureWire):
        raise StreamFailure(build_error(answer))
    decoder = MessagesDecoder(shows_reasoning, is_native, is_whole=True)
    yield from decoder.start_message(answer)
    if is_native:
        fields = read_raw_object(body)
        end = {name: fields[name] for name in END_FIELDS if name in fields}
        decoder.read_native_end(encode_json({"delta": end, "usage": fields["usage"]}))
    for index, block in enumerate(answer.content):
        yield from decoder.start_block(index, block)
        yield from decoder.stop_block(index)
    yield from decoder.stop_message()
    yield from decoder.close()


class OpenBlock:
    """The block whose deltas arrive now."""

    __slots__ = ("block", "deltas", "index", "native", "native_deltas", "signature")

    def __init__(self, index: int, native: msgspec.Raw) -> None:
        self.index = index
        self.native = native
        """The beginning of the block as it came."""
        self.native_deltas: list[msgspec.Raw] = []
        self.block = read_block(native)
        """None if its kind is unknown."""
        self.deltas: list[str] = []
        """The reasoning, or the arguments, so far."""
        self.signature: list[str] = []


class MessagesDecoder:
    """`StreamDecoder` of one answer: `message_start`, blocks with deltas, `message_delta`, `message_stop`."""

    def __init__(self, shows_reasoning: bool, is_native: bool = False, *, is_whole: bool = False) -> None:
        """`is_native`: the caller speaks this API, and gets the blocks as they come too. `is_whole`: the
        caller gets them when they are complete."""
        self._shows_reasoning = shows_reasoning
        self._is_native = is_native
        self._is_whole = is_whole
        self._vendor_end: VendorEnd | None = None
        self._usage: MessageUsageWire | None = None
        self._block: OpenBlock | None = None
        self._text_length = 0
        """Characters of text so far."""
        self._call_count = 0
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self._has_started = False
        self.is_complete = False
        self._readers: Mapping[str, Callable[[bytes], Sequence[Event]]] = {
            "content_block_delta": self._read_delta,
            "content_block_start": self._read_block_start,
            "content_block_stop": self._read_block_stop,
            "message_start": self._read_start,
            "message_delta": self._read_end,
            "message_stop": self._read_stop,
            "error": self._raise_failure,
        }

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """`StreamDecoder.feed`. Skips pings, unknown events without content, and everything after the end."""
        if self.is_complete:
            return ()
        read = self._readers.get(name or read_name(data).type)
        return () if read is None else read(data)

    def close(self) -> Sequence[Event]:
        """`StreamDecoder.close`."""
        if not self.is_complete or self._usage is None:
            raise ValueError("the answer ended without message_stop")
        return (build_usage(self._usage),)

    # --- the answer, in order -------------------------------------------------------------------------------

    def start_message(self, answer: MessageAnswerWire) -> Sequence[Event]:
        """Begins the answer. Returns no event: Started comes with the first block, so another route can be
        tried after an error before it."""
        if self._usage is not None:
            raise ValueError("the answer begins twice")
        self._usage = answer.usage
        self._stop_reason, self._stop_sequence = answer.stop_reason, answer.stop_sequence
        return ()

    def start_block(self, index: int, native: msgspec.Raw) -> Sequence[Event]:
        """Begins a block. A block of the vendor's own tools is left out if the caller speaks another API."""
        if self._usage is None or self._block is not None or self.is_complete:
            raise ValueError("a block begins out of order")
        self._block = OpenBlock(index, native)
        block = self._block.block
        events = self._start_once()
        if self._is_native and not self._is_whole:
            events = (*events, VendorPart(CHOICE, bytes(native)))
        if block is None:
            kind = read_kind(native).type
            if not (self._is_native or kind in HOSTED_KINDS or kind.endswith("_tool_result")):
                raise ValueError(f"a block has the unknown kind {kind}")
            return events
        if isinstance(block, TextBlockWire):
            return (*events, *self._add_text(block.text))
        if isinstance(block, ThinkingBlockWire):
            self._block.signature.append(block.signature)
            return (*events, *self._add_thinking(self._block, block.thinking))
        if isinstance(block, RedactedBlockWire):
            return events
        self._call_count += 1
        return (*events, ToolCallStarted(CHOICE, self._call_count - 1, block.id, block.name))

    def stop_block(self, index: int) -> Sequence[Event]:
        """Ends a block, and returns the events that need the complete block."""
        open_block, self._block = self._find_block(index), None
        block = open_block.block
        events = self._stop_known_block(open_block, block)
        if self._is_native and self._is_whole:
            return (*events, VendorPart(CHOICE, join_block(open_block.native, open_block.native_deltas)))
        return events

    def _stop_known_block(self, open_block: OpenBlock, block: BlockWire | None) -> Sequence[Event]:
        if block is None or isinstance(block, TextBlockWire):
            return ()
        if isinstance(block, RedactedBlockWire):
            return self._return_block({"type": "redacted_thinking", "data": block.data})
        if isinstance(block, ThinkingBlockWire):
            return self._stop_thinking(open_block)
        if open_block.deltas:
            return ()
        return (ToolCallDelta(CHOICE, self._call_count - 1, read_arguments(bytes(block.input))),)

    def stop_message(self) -> Sequence[Event]:
        """Ends the answer."""
        if self._usage is None or self._block is not None or self.is_complete:
            raise ValueError("the answer ends out of order")
        reason = FINISHES.get(self._stop_reason or "")
        if reason is None and self._is_native and self._stop_reason:
            reason = FinishReason.STOP
        if reason is None:
            raise ValueError(f"the answer ended with the stop reason {self._stop_reason}")
        if reason is FinishReason.TOOL_CALLS and not self._call_count:
            raise ValueError("the answer ended with calls and has none")
        self.is_complete = True
        end = Finished(CHOICE, reason, stop=self._stop_sequence, vendor_end=self._vendor_end)
        return (*self._start_once(), end)

    def read_native_end(self, data: bytes) -> None:
        """Reads the end of the answer for a caller of this API."""
        end = read_native_end(data)
        fields = {name: bytes(value) for name, value in end.delta.items()}
        self._vendor_end = VendorEnd(fields, bytes(end.usage.server_tool_use))

    # --- events of a stream ---------------------------------------------------------------------------------

    def _read_delta(self, data: bytes) -> Sequence[Event]:
        """Reads the most frequent event."""
        if self._is_native:
            return self._read_native_delta(data)
        try:
            event = read_block_delta(data)
        except msgspec.ValidationError:
            if read_kind(read_native_delta(data).delta).type != CITATION:
                raise
            return ()
        return self._add_delta(self._find_block(event.index), event.delta)

    def _read_native_delta(self, data: bytes) -> Sequence[Event]:
        """Reads a delta for a caller of this API."""
        native = read_native_delta(data)
        open_block = self._find_block(native.index)
        events: Sequence[Event] = ()
        if read_kind(native.delta).type in DELTA_KINDS:
            events = self._add_delta(open_block, read_block_delta(data).delta)
        if self._is_whole:
            open_block.native_deltas.append(native.delta)
            return events
        return (VendorPart(CHOICE, bytes(native.delta), is_delta=True), *events)

    def _add_delta(self, open_block: OpenBlock, delta: Piece) -> Sequence[Event]:
        """Adds a delta to the open block. Deltas of a block of unknown kind are left out."""
        if open_block.block is None:
            return ()
        if isinstance(delta, TextPiece):
            require_kind(open_block, TextBlockWire)
            return self._add_text(delta.text)
        if isinstance(delta, InputPiece):
            return self._add_arguments(open_block, delta.partial_json)
        require_kind(open_block, ThinkingBlockWire)
        if isinstance(delta, ThinkingPiece):
            return self._add_thinking(open_block, delta.thinking)
        open_block.signature.append(delta.signature)
        return ()

    def _read_block_start(self, data: bytes) -> Sequence[Event]:
        event = read_block_start(data)
        return self.start_block(event.index, event.content_block)

    def _read_block_stop(self, data: bytes) -> Sequence[Event]:
        return self.stop_block(read_block_stop(data).index)

    def _read_start(self, data: bytes) -> Sequence[Event]:
        return self.start_message(read_message_start(data).message)

    def _read_end(self, data: bytes) -> Sequence[Event]:
        event = read_message_delta(data)
        if self._usage is None:
            raise ValueError("the answer ends before it begins")
        if self._is_native:
            self.read_native_end(data)
        self._usage = merge_usage(self._usage, event.usage)
        self._stop_reason = event.delta.stop_reason or self._stop_reason
        self._stop_sequence = event.delta.stop_sequence or self._stop_sequence
        return ()

    def _read_stop(self, data: bytes) -> Sequence[Event]:
        return self.stop_message()

    def _raise_failure(self, data: bytes) -> Sequence[Event]:
        raise StreamFailure(build_error(read_failure(data)))

    # --- parts ----------------------------------------------------------------------------------------------

    def _start_once(self) -> Sequence[Event]:
        """Returns Started, once."""
        if self._has_started or self._usage is None:
            return ()
        self._has_started = True
        cached = self._usage.cache_read_input_tokens or 0
        written = self._usage.cache_creation_input_tokens or 0
        prompt = count_prompt(self._usage)
        return (Started(prompt, cached, cache_write_tokens=written, source=UsageSource.ESTIMATED),)

    def _find_block(self, index: int) -> OpenBlock:
        """Returns the open block. Raises ValueError if no block with this index is open."""
        if self._block is None or self._block.index != index:
            raise ValueError(f"the block {index} is not open")
        return self._block

    def _add_text(self, text: str) -> Sequence[Event]:
        """Adds text to the answer."""
        self._text_length += len(text)
        return (TextDelta(CHOICE, text),) if text else ()

    def _add_thinking(self, open_block: OpenBlock, text: str) -> Sequence[Event]:
        """Adds reasoning to the block."""
        if not text:
            return ()
        open_block.deltas.append(text)
        return (ReasoningDelta(CHOICE, text),) if self._shows_reasoning else ()

    def _add_arguments(self, open_block: OpenBlock, text: str) -> Sequence[Event]:
        """Adds arguments to the call."""
        require_kind(open_block, ToolUseWire)
        if not text:
            return ()
        open_block.deltas.append(text)
        return (ToolCallDelta(CHOICE, self._call_count - 1, text),)

    def _stop_thinking(self, open_block: OpenBlock) -> Sequence[Event]:
        """Returns the complete block of reasoning, which the caller sends back later. Returns nothing if the
        caller must not see its text, because the vendor accepts the block only with the text."""
        text = "".join(open_block.deltas)
        if text and not self._shows_reasoning:
            return ()
        return self._return_block(
            {"type": "thinking", "thinking": text, "signature": "".join(open_block.signature)}
        )

    def _return_block(self, block: dict[str, object]) -> Sequence[Event]:
        """Returns the event of a block of reasoning. Adds the block's position if text or calls came before
        it."""
        return (ThinkingBlock(CHOICE, place_block(block, self._text_length, self._call_count)),)


def require_kind(open_block: OpenBlock, kind: type[BlockWire]) -> None:
    """Raises ValueError if a delta belongs to another kind of block."""
    if type(open_block.block) is not kind:
        raise ValueError(f"a delta does not belong to the block {open_block.index}")


def read_block(native: msgspec.Raw) -> BlockWire | None:
    """Reads a block. Returns None if its kind is unknown."""
    return read_known_block(native) if read_kind(native).type in BLOCK_KINDS else None


def join_block(native: msgspec.Raw, deltas: Sequence[msgspec.Raw]) -> bytes:
    """Returns a complete block of any kind: what it began with, and what its deltas add."""
    if not deltas:
        return bytes(native)
    added: dict[str, list[msgspec.Raw]] = {}
    for delta in deltas:
        for name, value in read_raw_object(delta).items():
            added.setdefault(name, []).append(value)
    added.pop("type", None)
    block = read_raw_object(native)
    if "partial_json" in added:
        text = "".join(read_text(value) or "" for value in added.pop("partial_json")).encode()
        try:
            read_raw_object(text)
        except msgspec.DecodeError:  # the limit of tokens cut it
            text = NO_INPUT
        block["input"] = msgspec.Raw(text)
    if "citation" in added:
        block["citations"] = msgspec.Raw(encode_json(added.pop("citation")))
    for name, values in added.items():
        texts = [read_text(value) or "" for value in (block.get(name, msgspec.Raw(b"null")), *values)]
        block[name] = msgspec.Raw(encode_json("".join(texts)))
    return encode_json(block)


def read_arguments(text: bytes) -> str:
    """Returns the arguments of a call without deltas. Raises ValueError if they are not an object."""
    if not text.startswith(b"{"):
        raise ValueError("the arguments of a call are no object")
    return text.decode()


def merge_usage(old: MessageUsageWire, new: MessageUsageWire) -> MessageUsageWire:
    """Returns the newest value of each count. Counts are totals since the beginning."""
    new_counts = {name: value for name in new.__struct_fields__ if (value := getattr(new, name)) is not None}
    return msgspec.structs.replace(old, **new_counts)


def count_prompt(usage: MessageUsageWire) -> int:
    """Returns the tokens of the whole prompt. The vendor's `input_tokens` do not include cached tokens."""
    cached, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    return (usage.input_tokens or 0) + cached + written


def build_usage(usage: MessageUsageWire) -> Usage:
    """Converts the counts. Raises ValueError if one is missing or impossible."""
    if usage.input_tokens is None or usage.output_tokens is None:
        raise ValueError("the answer does not tell its usage")
    details = usage.output_tokens_details
    result = Usage(
        count_prompt(usage),
        usage.output_tokens,
        usage.cache_read_input_tokens or 0,
        details.thinking_tokens if details is not None else 0,
        UsageSource.REPORTED,
        cache_write_tokens=usage.cache_creation_input_tokens or 0,
    )
    if not is_possible(result):
        raise ValueError("the answer's usage cannot be true")
    return result
