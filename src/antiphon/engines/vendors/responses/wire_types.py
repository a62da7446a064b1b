"""The parts of responses that are read. Unknown fields are skipped. An unknown kind of item or part cannot be
read, since its content would be lost."""

from msgspec import field

from antiphon.engines.vendors.base import Wire
from antiphon.engines.vendors.openai.wire_types import ErrorWire, TokenWire


class TextPartWire(Wire, tag_field="type", tag="output_text"):
    """Text."""

    text: str
    logprobs: list[TokenWire] | None = None


class RefusalPartWire(Wire, tag_field="type", tag="refusal"):
    """A refusal."""

    refusal: str


class ReasoningPartWire(Wire):
    """A part of a summary, or of the reasoning itself."""

    text: str = ""


class MessageItemWire(Wire, tag_field="type", tag="message"):
    """Text, or a refusal."""

    content: list[TextPartWire | RefusalPartWire] = field(default_factory=list)


class ReasoningItemWire(Wire, tag_field="type", tag="reasoning"):
    """Reasoning: its summary, its text if the server shows it, and its sealed form."""

    id: str = ""
    summary: list[ReasoningPartWire] = field(default_factory=list)
    content: list[ReasoningPartWire] | None = None
    encrypted_content: str | None = None


class CallItemWire(Wire, tag_field="type", tag="function_call"):
    """A call."""

    name: str
    call_id: str | None = None
    arguments: str = ""


ItemWire = MessageItemWire | ReasoningItemWire | CallItemWire


class InputDetailsWire(Wire):
    """Parts of the prompt's tokens."""

    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class OutputDetailsWire(Wire):
    """Parts of the answer's tokens."""

    reasoning_tokens: int | None = None


class ResponseUsageWire(Wire):
    """Token counts."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: InputDetailsWire | None = None
    output_tokens_details: OutputDetailsWire | None = None


class IncompleteWire(Wire):
    """Why an answer is incomplete."""

    reason: str | None = None


class ResponseEndWire(Wire):
    """A response without its items."""

    status: str | None = None
    incomplete_details: IncompleteWire | None = None
    error: ErrorWire | str | None = None
    usage: ResponseUsageWire | None = None


class ResponseWire(ResponseEndWire):
    """A whole response."""

    output: list[ItemWire] = field(default_factory=list)


class EventNameWire(Wire):
    """The name of an event without a line `event:`."""

    type: str


class ItemEventWire(Wire):
    """An item begins or ends."""

    output_index: int
    item: ItemWire


class DeltaEventWire(Wire):
    """More of an item."""

    output_index: int
    delta: str
    summary_index: int = 0
    logprobs: list[TokenWire] | None = None


class EndEventWire(Wire):
    """The last event."""

    response: ResponseEndWire


class WholeEventWire(Wire):
    """The last event with all items, which a server without other events sends."""

    response: ResponseWire
