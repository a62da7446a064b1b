"""The parts of Anthropic's answers that are read. Unknown fields are skipped. An unknown kind of block or
delta reaches only callers of the Messages API, since its content would be lost elsewhere."""

from typing import Literal

from msgspec import Raw, Struct, field

from antiphon.engines.vendors.base import NULL, Wire
from antiphon.wire.anthropic import Piece
from antiphon.wire.placed_blocks import BlockPlace


class TextBlockWire(Wire, tag_field="type", tag="text"):
    """Text."""

    text: str


class ThinkingBlockWire(Wire, tag_field="type", tag="thinking"):
    """Reasoning, and its signature."""

    thinking: str = ""
    signature: str = ""


class RedactedBlockWire(Wire, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only the vendor can read."""

    data: str


class ToolUseWire(Wire, tag_field="type", tag="tool_use"):
    """A call. In a stream `input` is empty, and deltas contain it."""

    id: str
    name: str
    input: Raw = field(default_factory=lambda: Raw(b"{}"))


BlockWire = TextBlockWire | ThinkingBlockWire | RedactedBlockWire | ToolUseWire


class OutputDetailsWire(Wire):
    """The parts of the output tokens."""

    thinking_tokens: int = 0


class MessageUsageWire(Wire):
    """Token counts; in a stream, the totals so far. None means that a count has not changed."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: OutputDetailsWire | None = None


class ErrorBodyWire(Wire):
    """The type and the message of an error."""

    type: str = ""
    message: str = ""


class FailureWire(Wire, tag_field="type", tag="error"):
    """An error: a whole body, or an event of a stream."""

    error: ErrorBodyWire


class MessageAnswerWire(Wire, tag_field="type", tag="message"):
    """A whole answer. At the beginning of a stream `content` is empty, and `stop_reason` is absent."""

    content: list[Raw]
    """Each block is a `BlockWire`, or of an unknown kind."""
    usage: MessageUsageWire
    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageStartWire(Wire):
    """`message_start`."""

    message: MessageAnswerWire


class BlockStartWire(Wire):
    """`content_block_start`."""

    index: int
    content_block: Raw


class BlockDeltaWire(Wire):
    """`content_block_delta`."""

    index: int
    delta: Piece


class BlockStopWire(Wire):
    """`content_block_stop`."""

    index: int


class KindWire(Wire):
    """The kind of a block or a delta."""

    type: str


class NativeDeltaWire(Wire):
    """`content_block_delta`, with its delta as it came."""

    index: int
    delta: Raw


class NativeUsageWire(Wire):
    """What the vendor's own tools did."""

    server_tool_use: Raw = NULL


class NativeEndWire(Wire):
    """`message_delta`, with the end of the answer as it came."""

    delta: dict[str, Raw]
    usage: NativeUsageWire


class MessageEndWire(Wire):
    """The reason why the answer ended."""

    stop_reason: str | None = None
    stop_sequence: str | None = None


class MessageDeltaWire(Wire):
    """`message_delta`."""

    delta: MessageEndWire
    usage: MessageUsageWire


class EventNameWire(Wire):
    """The name of an event without a line `event:`."""

    type: str


class PlacedBlockWire(Struct):
    """The fields of a block of reasoning that this server reads. The vendor gets the other fields back
    unread."""

    type: Literal["thinking", "redacted_thinking"]
    after: BlockPlace = BlockPlace()


class ModelInfoWire(Wire):
    """One model in the list."""

    id: str


class ModelListWire(Wire):
    """The list of models."""

    data: list[ModelInfoWire]
