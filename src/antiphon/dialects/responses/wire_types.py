"""Wire types of the Responses API: the body, answers, and the events of a stream.

Objects in a body have the fields that are known. `decode` reports unknown ones.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from antiphon.dialects.common.request_types import BodyShape, InputAudioShape, ToolName
from antiphon.dialects.common.response_types import TokenLogprob
from antiphon.domain import fields
from antiphon.domain.fields import Name, Need, Penalty, PositiveInt
from antiphon.wire.responses import IncompleteReason

MOST_ITEMS = 1 << 16
"""The most items of one input. A session of an agent has some thousands."""

MOST_TOOLS = 1024
"""The most tools of one conversation, without their namespaces. Agents with several tool servers send some
hundred."""

MOST_INCLUDED = 64
"""The most names in `include`."""

MOST_LOGPROBS = 20
"""The most alternatives of each token. OpenAI has the same limit."""

LONGEST_CALL_ID = 512
"""The most characters of a call's id. Vendors' ids have fewer than 100."""

CallId = Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)]

# --- parts of a content -------------------------------------------------------------------------------------


class Part(BodyShape, frozen=True, tag_field="type", kw_only=True):
    """A part of a content."""


class CacheBreakpoint(BodyShape, frozen=True, kw_only=True):
    """The end of a prompt's beginning that a vendor caches."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class InputText(Part, frozen=True, tag="input_text"):
    """Text of the caller."""

    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputText(Part, frozen=True, tag="output_text"):
    """Text of an earlier answer."""

    text: str
    annotations: Any = None
    logprobs: Any = None


class Refusal(Part, frozen=True, tag="refusal"):
    """An earlier answer's refusal."""

    refusal: str


class InputImage(Part, frozen=True, tag="input_image"):
    """An image."""

    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class InputFile(Part, frozen=True, tag="input_file"):
    """A file."""

    file_data: str | None = None
    file_url: str | None = None
    file_id: str | None = None
    filename: str | None = None
    detail: Any = None


class InputAudio(Part, frozen=True, tag="input_audio"):
    """A recording."""

    input_audio: InputAudioShape


class ReasoningText(Part, frozen=True, tag="reasoning_text"):
    """Reasoning."""

    text: str


class SummaryText(Part, frozen=True, tag="summary_text"):
    """A summary of reasoning."""

    text: str


MessagePart = InputText | OutputText | Refusal | InputImage | InputFile | InputAudio
ResultPart = InputText | OutputText | InputImage | InputFile

# --- options ------------------------------------------------------------------------------------------------


class TextFormat(Part, frozen=True, tag="text"):
    """Any text."""


class ObjectFormat(Part, frozen=True, tag="json_object"):
    """A JSON object."""


class SchemaFormat(Part, frozen=True, tag="json_schema"):
    """JSON that satisfies a schema. The answer always satisfies it, whatever the value of `strict` is."""

    schema: dict[str, Any]
    name: Name | None = None
    description: str | None = None
    strict: bool | None = None


AnswerFormat = TextFormat | ObjectFormat | SchemaFormat


class TextOptions(BodyShape, frozen=True, kw_only=True):
    """The form and the length of the text."""

    format: AnswerFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BodyShape, frozen=True, kw_only=True):
    """How much the model reasons, and where the answer has it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    mode: Literal["standard"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


# --- tools --------------------------------------------------------------------------------------------------


class FunctionTool(Part, frozen=True, tag="function"):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    output_schema: Any = None
    allowed_callers: Any = None
    is_async: bool | None = field(default=None, name="async")


class GrammarFormat(Part, frozen=True, tag="grammar"):
    """Text of a grammar, which the model sees."""

    syntax: Literal["lark", "regex"]
    definition: str


class CustomTool(Part, frozen=True, tag="custom"):
    """A tool whose input is a text."""

    name: ToolName
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None
    defer_loading: bool | None = None
    allowed_callers: Any = None
    is_async: bool | None = field(default=None, name="async")


class NamespaceTool(Part, frozen=True, kw_only=True, tag="namespace"):
    """Several tools under one name."""

    name: ToolName
    description: str | None = None
    tools: list[FunctionTool | CustomTool]


class ToolSearchTool(Part, frozen=True, tag="tool_search"):
    """A search for tools, which the caller runs."""

    execution: Literal["client"]
    description: str | None = None
    parameters: dict[str, Any] | None = None


InputTool = FunctionTool | CustomTool | NamespaceTool | ToolSearchTool


class NamedTool(BodyShape, frozen=True, kw_only=True):
    """A tool by its name."""

    type: Literal["function", "custom"]
    name: Name
    namespace: Name | None = None


class ToolChoiceObject(BodyShape, frozen=True, kw_only=True):
    """One tool that the model must call, or some tools that it can call."""

    type: Literal["function", "custom", "allowed_tools"]
    name: Name | None = None
    namespace: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MOST_TOOLS)] | None = None


# --- items of an input --------------------------------------------------------------------------------------


class Item(BodyShape, frozen=True, tag_field="type", kw_only=True):
    """An item. Its `id` and `status` are those of an earlier answer, or the client's own, and are not
    read."""

    id: str | None = None
    status: str | None = None
    created_by: Any = None


class MessageItem(Item, frozen=True, tag="message"):
    """A message. Without a type, an item with a role is a message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[MessagePart]
    phase: Any = None


class ReasoningItem(Item, frozen=True, tag="reasoning"):
    """Reasoning of an earlier answer."""

    summary: list[SummaryText] | None = None
    content: list[ReasoningText | OutputText] | None = None
    encrypted_content: str | None = None


class FunctionCallItem(Item, frozen=True, tag="function_call"):
    """A call of a function."""

    call_id: CallId
    name: Name
    arguments: str | dict[str, Any] = ""
    namespace: Name | None = None
    caller: Any = None


class FunctionResultItem(Item, frozen=True, tag="function_call_output"):
    """The result of a call."""

    call_id: CallId
    output: str | list[ResultPart]
    caller: Any = None


class CustomCallItem(Item, frozen=True, tag="custom_tool_call"):
    """A call of a custom tool."""

    call_id: CallId
    name: Name
    input: str = ""
    namespace: Name | None = None
    caller: Any = None


class CustomResultItem(Item, frozen=True, tag="custom_tool_call_output"):
    """The result of a call of a custom tool."""

    call_id: CallId
    output: str | list[ResultPart]
    name: str | None = None
    caller: Any = None


class SearchCallItem(Item, frozen=True, tag="tool_search_call"):
    """A search for tools."""

    call_id: CallId | None = None
    execution: str | None = None
    arguments: Any = None


class SearchResultItem(Item, frozen=True, tag="tool_search_output"):
    """The tools that a search found. The model sees their definitions here."""

    call_id: CallId | None = None
    execution: str | None = None
    tools: list[InputTool] = field(default_factory=list)


class AdditionalToolsItem(Item, frozen=True, tag="additional_tools"):
    """Tools that the model may call from here on."""

    role: str | None = None
    tools: list[InputTool] = field(default_factory=list)


class ConfigurationItem(Item, frozen=True, tag="configuration_update"):
    """Options that hold from here on, until another such item."""

    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None


class ItemReference(Item, frozen=True, tag="item_reference"):
    """An item that this server has stored. Without a type, an item with only an id is a reference."""


StoredItem = (
    MessageItem
    | ReasoningItem
    | FunctionCallItem
    | FunctionResultItem
    | CustomCallItem
    | CustomResultItem
    | SearchCallItem
    | SearchResultItem
    | AdditionalToolsItem
    | ConfigurationItem
)
"""What a stored response has."""

InputItem = StoredItem | ItemReference

# --- a request ----------------------------------------------------------------------------------------------


class ResponsesStreamOptions(BodyShape, frozen=True, kw_only=True):
    """How events are padded. This server never pads."""

    include_obfuscation: bool | None = None


class ResponsesPrompt(BodyShape, frozen=True, kw_only=True):
    """The fields of a body that make the prompt."""

    model: Annotated[Name, "Name of a model, an alias or an adapter."]
    input: Annotated[
        str | Annotated[list[InputItem], Meta(max_length=MOST_ITEMS)] | None,
        Need.TEMPLATE,
        "A text, or a list of items: messages, reasoning, calls and their results. With previous_response_id "
        "it can be empty.",
    ] = None
    instructions: Annotated[
        str | None,
        Need.TEMPLATE,
        "The first system message. A response that continues this one does not have it.",
    ] = None
    previous_response_id: Annotated[
        str | None,
        Need.TEMPLATE,
        "The response to continue: the model sees its items, and those of the responses before it. "
        "Unknown ones are refused.",
    ] = None
    tools: Annotated[
        Annotated[list[InputTool], Meta(max_length=MOST_TOOLS)] | None,
        Need.TEMPLATE,
        "Functions, custom tools and namespaces that the model may call, at most 1,024. Tools that OpenAI "
        "runs are left out and named, or refused (responses.md).",
    ] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoiceObject | None,
        Need.CONSTRAINTS,
        "auto, required (the model must call), none, one tool by its name, or allowed_tools.",
    ] = None
    parallel_tool_calls: fields.ParallelToolCalls = None
    reasoning: Annotated[
        ReasoningOptions | None,
        "The effort, which a model without reasoning ignores, and the answer's header names it. With a "
        "summary, the reasoning is in the item's summary, and otherwise in its content.",
    ] = None
    text: Annotated[
        TextOptions | None,
        Need.CONSTRAINTS,
        "The form of the text, which is always enforced, and the verbosity, which only some vendors have.",
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        "A prompt that does not fit the context is refused. With auto a local model does not see the oldest "
        "turns that do not fit.",
    ] = None


class ResponsesRequest(ResponsesPrompt, frozen=True, kw_only=True):
    """Body of POST /v1/responses."""

    max_output_tokens: Annotated[
        PositiveInt | None,
        "Most tokens of the answer, its reasoning included. It is lowered to what the context leaves.",
    ] = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    presence_penalty: Annotated[
        Penalty | None, "-2 to 2. Positive values make tokens that are in the answer less likely."
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, "-2 to 2. Positive values make tokens less likely, the more often they are there."
    ] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None,
        Need.TOKENS,
        "The number of likeliest tokens at each place of the text, 0 to 20. The text then has its "
        "log-probabilities.",
    ] = None
    include: Annotated[
        Annotated[list[str], Meta(max_length=MOST_INCLUDED)] | None,
        "`message.output_text.logprobs`: the text has its log-probabilities. `reasoning.encrypted_content`: "
        "reasoning has it. Names of items that this server does not make are accepted. The answer's header "
        "names unknown ones.",
    ] = None
    stream: fields.Stream = None
    stream_options: Annotated[
        ResponsesStreamOptions | None, "`include_obfuscation` is accepted. Events are never padded."
    ] = None
    store: Annotated[
        bool | None,
        "Whether the response is stored, so that later requests can refer to it; true by default. The "
        "answer says whether it is.",
    ] = None
    metadata: fields.Tags = None
    user: fields.EndUser = None
    safety_identifier: Annotated[fields.EndUser, "The newer name of user."] = None
    prompt_cache_key: fields.PromptCacheKey = None
    service_tier: fields.ServiceTier = None
    max_tool_calls: Annotated[
        PositiveInt | None, "Accepted. It limits the calls of tools that OpenAI runs, and there are none."
    ] = None
    client_metadata: Annotated[
        dict[str, Any] | None, "Accepted. Codex sends the ids of its session and turn here."
    ] = None
    prompt_cache_retention: Annotated[
        Literal["in_memory", "in-memory", "24h"] | None,
        "Accepted. Local models find cached prefixes themselves.",
    ] = None


class InputTokensRequest(ResponsesPrompt, frozen=True, kw_only=True):
    """Body of POST /v1/responses/input_tokens."""


# --- an answer ----------------------------------------------------------------------------------------------

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class AnswerText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text."""

    text: str
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class AnswerRefusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A vendor's refusal."""

    refusal: str


class AnswerThought(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """Reasoning."""

    text: str


class AnswerSummary(Struct, frozen=True, tag_field="type", tag="summary_text"):
    """The reasoning, for clients that show only summaries."""

    text: str


class AnswerMessage(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[AnswerText | AnswerRefusal]


class AnswerReasoning(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Reasoning. Send it back as it is."""

    id: str
    status: ItemStatus
    summary: list[AnswerSummary]
    content: list[AnswerThought]
    encrypted_content: str | UnsetType = UNSET
    """The reasoning, which only this server can read; if `include` names it."""


class AnswerCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class AnswerCustomCall(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


class AnswerSearch(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_search_call"):
    """A search for tools."""

    id: str
    status: ItemStatus
    call_id: str
    execution: Literal["client"] = "client"
    arguments: dict[str, Any]


OutputItem = AnswerMessage | AnswerReasoning | AnswerCall | AnswerCustomCall | AnswerSearch
OutputPart = AnswerText | AnswerRefusal | AnswerThought


class InputTokenDetails(Struct, frozen=True):
    """Parts of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokenDetails(Struct, frozen=True):
    """Parts of the answer's tokens."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the request."""

    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: OutputTokenDetails
    total_tokens: int


class FunctionEcho(Struct, frozen=True, tag_field="type", tag="function"):
    """A function of the request."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class SchemaEcho(Struct, frozen=True, tag_field="type", tag="json_schema"):
    """The schema of the request."""

    name: str | None
    description: str | None
    schema: dict[str, Any]
    strict: bool | None


class TextEcho(Struct, frozen=True, kw_only=True):
    """The form and the length of the text."""

    format: TextFormat | ObjectFormat | SchemaEcho
    verbosity: str | UnsetType = UNSET


class ReasoningEcho(Struct, frozen=True):
    """The options of the reasoning."""

    effort: str | None = None
    summary: str | None = None


class IncompleteDetails(Struct, frozen=True):
    """Why an answer is incomplete."""

    reason: IncompleteReason


class ResponseError(Struct, frozen=True):
    """Why an answer failed."""

    code: str
    message: str


class ResponseAnswer(Struct, frozen=True, kw_only=True):
    """A response: a buffered answer, and a part of some events."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"] = "in_progress"
    incomplete_details: IncompleteDetails | None = None
    error: ResponseError | None = None
    model: str
    previous_response_id: str | None = None
    instructions: str | None
    output: list[OutputItem] | UnsetType = []
    tools: list[FunctionEcho | CustomTool | NamespaceTool | ToolSearchTool]
    tool_choice: str | ToolChoiceObject
    truncation: str
    parallel_tool_calls: bool
    text: TextEcho
    reasoning: ReasoningEcho
    temperature: float
    """The value of the request, or that of the model's profile, or 1."""
    top_p: float
    """As `temperature`."""
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool = False
    service_tier: str = "default"
    metadata: dict[str, str]
    usage: ResponseUsage | None = None
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None


class DeletedResponse(Struct, frozen=True, kw_only=True):
    """The answer after a response was removed."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputItemList(Struct, frozen=True, kw_only=True):
    """A page of the items of a stored request."""

    object: Literal["list"] = "list"
    data: list[Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class InputTokenCount(Struct, frozen=True):
    """The tokens of a prompt."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


# --- the events of a stream ---------------------------------------------------------------------------------


class Event(Struct, frozen=True, kw_only=True, tag_field="type"):
    """An event. The numbers are 0, 1, 2."""

    sequence_number: int


class ResponseCreated(Event, frozen=True, tag="response.created"):
    """The first event."""

    response: ResponseAnswer


class ResponseInProgress(Event, frozen=True, tag="response.in_progress"):
    """The second event."""

    response: ResponseAnswer


class ResponseCompleted(Event, frozen=True, tag="response.completed"):
    """The end of a whole answer."""

    response: ResponseAnswer


class ResponseIncomplete(Event, frozen=True, tag="response.incomplete"):
    """The end of an answer that was cut."""

    response: ResponseAnswer


class ResponseFailed(Event, frozen=True, tag="response.failed"):
    """The end of an answer that broke."""

    response: ResponseAnswer


class ItemAdded(Event, frozen=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class ItemDone(Event, frozen=True, tag="response.output_item.done"):
    """An item is complete."""

    output_index: int
    item: OutputItem


class ItemEvent(Event, frozen=True, kw_only=True):
    """An event of an item."""

    item_id: str
    output_index: int


class PartEvent(ItemEvent, frozen=True, kw_only=True):
    """An event of a part of an item."""

    content_index: int


class PartAdded(PartEvent, frozen=True, tag="response.content_part.added"):
    """A part begins."""

    part: OutputPart


class PartDone(PartEvent, frozen=True, tag="response.content_part.done"):
    """A part is complete."""

    part: OutputPart


class TextDeltaEvent(PartEvent, frozen=True, tag="response.output_text.delta"):
    """More text."""

    delta: str
    logprobs: list[TokenLogprob] = []


class TextDone(PartEvent, frozen=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[TokenLogprob] = []


class RefusalDelta(PartEvent, frozen=True, tag="response.refusal.delta"):
    """More of a refusal."""

    delta: str


class RefusalDone(PartEvent, frozen=True, tag="response.refusal.done"):
    """The whole refusal."""

    refusal: str


class ThoughtDelta(PartEvent, frozen=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ThoughtDone(PartEvent, frozen=True, tag="response.reasoning_text.done"):
    """The whole reasoning."""

    text: str


class SummaryEvent(ItemEvent, frozen=True, kw_only=True):
    """An event of a summary."""

    summary_index: int = 0


class SummaryAdded(SummaryEvent, frozen=True, tag="response.reasoning_summary_part.added"):
    """A summary begins."""

    part: AnswerSummary


class SummaryDone(SummaryEvent, frozen=True, tag="response.reasoning_summary_part.done"):
    """A summary is complete."""

    part: AnswerSummary


class SummaryTextDelta(SummaryEvent, frozen=True, tag="response.reasoning_summary_text.delta"):
    """More of a summary."""

    delta: str


class SummaryTextDone(SummaryEvent, frozen=True, tag="response.reasoning_summary_text.done"):
    """The whole summary."""

    text: str


class ArgumentsDelta(ItemEvent, frozen=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(ItemEvent, frozen=True, tag="response.function_call_arguments.done"):
    """The whole arguments."""

    name: str
    arguments: str


class InputDelta(ItemEvent, frozen=True, tag="response.custom_tool_call_input.delta"):
    """More of a custom call's input."""

    delta: str


class InputDone(ItemEvent, frozen=True, tag="response.custom_tool_call_input.done"):
    """The whole input."""

    input: str


class KeepAlive(Event, frozen=True, tag="keepalive"):
    """An event without content, during a silence."""


StreamEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDeltaEvent
    | TextDone
    | RefusalDelta
    | RefusalDone
    | ThoughtDelta
    | ThoughtDone
    | SummaryAdded
    | SummaryDone
    | SummaryTextDelta
    | SummaryTextDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
    | KeepAlive
)
