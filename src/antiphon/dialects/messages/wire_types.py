"""Wire types of the Messages API: the body, answers, events of a stream, and errors.

Objects in a body have the fields that are known. `decode` reports unknown ones.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon.dialects.common.request_types import MAX_MESSAGES, BodyShape, CacheControlShape, ToolName
from antiphon.domain import fields
from antiphon.domain.fields import LONGEST_USER, Fraction, Name, Need, NonNegativeInt, PositiveInt, StopText
from antiphon.wire.anthropic import OWN_TOOLS, SMALLEST_BUDGET, Effort, Piece
from antiphon.wire.placed_blocks import BlockPlace

MOST_TOOLS = 1024
"""The most tools of one conversation. Agents with several tool servers send some hundred."""

MOST_STOPS = 64
"""The most stop sequences of one request."""

MOST_CONTENT_BLOCKS = 1 << 16
"""The most blocks of one message. Anthropic takes 100,000 messages in a request of 32 MB."""

LARGEST_LIST = 1000
"""The most models in one page of the list. Anthropic has the same limit."""

# --- blocks of a request ------------------------------------------------------------------------------------


class Block(BodyShape, frozen=True, tag_field="type"):
    """A block of a message's content."""


class TextBlock(Block, frozen=True, tag="text"):
    """Text."""

    text: str
    cache_control: CacheControlShape | None = None
    citations: Any = None


class Base64Source(Block, frozen=True, tag="base64"):
    """The bytes of an image or document."""

    media_type: str
    data: str


class UrlSource(Block, frozen=True, tag="url"):
    """The address of an image. Only a vendor opens it."""

    url: str


class TextSource(Block, frozen=True, tag="text"):
    """A document's text."""

    data: str
    media_type: Literal["text/plain"] = "text/plain"


class ContentSource(Block, frozen=True, tag="content"):
    """A document's text in blocks."""

    content: str | list[TextBlock]


class ImageBlock(Block, frozen=True, tag="image"):
    """An image."""

    source: Base64Source | UrlSource
    cache_control: CacheControlShape | None = None


class DocumentBlock(Block, frozen=True, tag="document"):
    """A document, which the model sees as text."""

    source: TextSource | ContentSource | Base64Source | UrlSource
    title: str | None = None
    context: str | None = None
    citations: Any = None
    cache_control: CacheControlShape | None = None


class SearchResultBlock(Block, frozen=True, tag="search_result"):
    """A result of the caller's own search, which the model sees as text."""

    source: str
    title: str
    content: list[TextBlock]
    citations: Any = None
    cache_control: CacheControlShape | None = None


class ThinkingBlock(Block, frozen=True, tag="thinking"):
    """Reasoning of an earlier answer, as the server sent it."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Block, frozen=True, tag="redacted_thinking"):
    """Reasoning of an earlier answer that only its vendor can read."""

    data: str


class ToolUseBlock(Block, frozen=True, tag="tool_use"):
    """A call that the model made."""

    id: str
    name: ToolName
    input: dict[str, Any]
    caller: Any = None
    cache_control: CacheControlShape | None = None


class ToolReferenceBlock(Block, frozen=True, tag="tool_reference"):
    """A tool that the caller found for the model. The model sees its definition here."""

    tool_name: ToolName
    cache_control: CacheControlShape | None = None


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(Block, frozen=True, tag="tool_result"):
    """The result of a call."""

    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControlShape | None = None


ContentBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)

# --- a request ----------------------------------------------------------------------------------------------


class InputMessage(BodyShape, frozen=True):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Meta(max_length=MOST_CONTENT_BLOCKS)]


TOOL_TYPES = rf"^(custom(?![\s\S])|{'|'.join(OWN_TOOLS)})"
"""The types of tools that the caller runs. `$` would match before a newline at the end too."""


class InputTool(BodyShape, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    input_schema: dict[str, Any]
    type: Annotated[str, Meta(pattern=TOOL_TYPES)] | None = None
    """A type of Anthropic's, such as `bash_20250124`, is for its own models."""
    strict: bool | None = None
    cache_control: CacheControlShape | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Any = None


class ToolChoiceObject(BodyShape, frozen=True, kw_only=True):
    """Whether the model calls tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(BodyShape, frozen=True, kw_only=True):
    """Whether the model reasons before it answers."""

    type: Literal["enabled", "adaptive", "disabled", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=SMALLEST_BUDGET)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(BodyShape, frozen=True, kw_only=True):
    """The form of the answer's text."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(BodyShape, frozen=True, kw_only=True):
    """The effort and the form of the answer."""

    effort: Effort | None = None
    format: OutputFormat | None = None
    task_budget: Any = None


class RequestMetadata(BodyShape, frozen=True, kw_only=True):
    """Facts about the request."""

    user_id: Annotated[str, Meta(max_length=LONGEST_USER)] | None = None


class ContextManagement(BodyShape, frozen=True, kw_only=True):
    """What the vendor removes from a long conversation."""

    edits: list[dict[str, Any]] | None = None


class PromptBody(BodyShape, frozen=True, kw_only=True):
    """The fields of a body that make the prompt."""

    model: Annotated[Name, "Name of a model, an alias or an adapter."]
    messages: Annotated[
        Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)],
        Need.TEMPLATE,
        "The conversation. Messages of one role in a row are one turn. A last message of the assistant is "
        "continued. A message of the role system may stand anywhere.",
    ]
    system: Annotated[
        str | list[TextBlock] | None, Need.TEMPLATE, "Instructions: a text, or a list of text blocks."
    ] = None
    tools: Annotated[
        Annotated[list[InputTool], Meta(max_length=MOST_TOOLS)] | None,
        Need.TEMPLATE,
        "Functions that the model may call, at most 1,024.",
    ] = None
    tool_choice: Annotated[
        ToolChoiceObject | None,
        Need.CONSTRAINTS,
        "auto, any (the model must call), none, or one tool by its name.",
    ] = None
    thinking: Annotated[
        ThinkingOptions | None,
        "enabled with a budget, adaptive, or disabled. A model that does not reason ignores it, and the "
        "answer's header names it.",
    ] = None
    output_config: Annotated[
        OutputConfig | None, Need.CONSTRAINTS, "The effort, and the JSON Schema of the answer."
    ] = None
    output_format: Annotated[
        OutputFormat | None, Need.CONSTRAINTS, "The former place of output_config.format."
    ] = None
    cache_control: Annotated[
        CacheControlShape | None,
        "Where a vendor's cached prompt ends. Local models find cached prefixes themselves.",
    ] = None
    context_management: Annotated[
        ContextManagement | None,
        "clear_thinking that keeps all, which is what the server does. The answer's header names other "
        "edits, which have no effect.",
    ] = None


class MessagesRequest(PromptBody, frozen=True, kw_only=True):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[PositiveInt, "Most tokens of the answer. It is lowered to what the context leaves."]
    stream: fields.Stream = None
    temperature: Annotated[Fraction | None, "0 to 1. 0 always takes the most likely token."] = None
    top_p: Annotated[
        fields.TopP, "Only the most likely tokens whose probabilities add up to this; 0 to 1."
    ] = None
    top_k: Annotated[NonNegativeInt | None, Need.TOKENS, "Only the k most likely tokens; 0 keeps all."] = None
    stop_sequences: Annotated[
        Annotated[list[StopText], Meta(max_length=MOST_STOPS)] | None,
        "Texts that end the answer, at most 64. `stop_sequence` of the answer tells which one did, if a "
        "local model or Anthropic answers.",
    ] = None
    metadata: Annotated[
        RequestMetadata | None, "`user_id`: the end user, for the records of usage. Ignored without keys."
    ] = None


class CountRequest(PromptBody, frozen=True, kw_only=True):
    """Body of POST /v1/messages/count_tokens."""


# --- an answer ----------------------------------------------------------------------------------------------


class Caller(Struct, frozen=True):
    """Who made a call: the model itself."""

    type: Literal["direct"] = "direct"


class AnswerText(Struct, frozen=True, tag_field="type", tag="text"):
    """Text."""

    text: str
    citations: None = None


class AnswerThinking(Struct, frozen=True, tag_field="type", tag="thinking"):
    """Reasoning. Send it back as it is."""

    thinking: str
    signature: str


class AnswerRedacted(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    """Reasoning that only its vendor can read. Send it back as it is."""

    data: str


class AnswerCall(Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: Raw
    """An object: the arguments."""
    caller: Caller = Caller()


AnswerBlock = AnswerText | AnswerThinking | AnswerRedacted | AnswerCall


class VendorBlock(Struct, frozen=True):
    """A block of reasoning in Anthropic's form, as a vendor's answer holds it. `after` is this server's."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str = ""
    signature: str = ""
    data: str = ""
    after: BlockPlace = BlockPlace()


class CacheCreation(Struct, frozen=True):
    """The written prompt tokens, by how long they stay cached."""

    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputDetails(Struct, frozen=True):
    """Parts of the output tokens."""

    thinking_tokens: int


class MessageUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the request."""

    input_tokens: int
    """Prompt tokens that no cache had."""
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation | None = None
    output_tokens_details: OutputDetails | None = None
    server_tool_use: None = None
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None


StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "model_context_window_exceeded"
]


class StopDetails(Struct, frozen=True):
    """Why a vendor withheld the rest."""

    type: Literal["refusal"] = "refusal"
    category: None = None
    explanation: None = None


class MessageAnswer(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A buffered answer, and the beginning of a streamed one."""

    id: str
    role: Literal["assistant"] = "assistant"
    content: list[AnswerBlock]
    model: str
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: StopDetails | None = None
    usage: MessageUsage
    container: None = None


class TokenCount(Struct, frozen=True):
    """The tokens of a prompt."""

    input_tokens: int


class MessageStart(Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageAnswer


class BlockStart(Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: AnswerBlock


class BlockDelta(Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: Piece


class BlockStop(Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageEnd(Struct, frozen=True):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: StopDetails | None = None
    container: None = None


class MessageDelta(Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the answer. Its counts are totals."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(Struct, frozen=True, tag_field="type", tag="ping"):
    """An event without content, during a silence."""


class ErrorBody(Struct, frozen=True):
    """The type and the text of an error."""

    type: str
    message: str


class ErrorAnswer(Struct, frozen=True, tag_field="type", tag="error"):
    """An error: a body, or the last event of a stream that broke."""

    error: ErrorBody
    request_id: str | UnsetType | None = UNSET


StreamEvent = (
    MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping | ErrorAnswer
)
