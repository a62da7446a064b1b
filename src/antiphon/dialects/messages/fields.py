"""The table of the fields of the Messages API, and how Antiphon treats them. Unknown fields are reported and
not refused, because agents send new ones every few weeks."""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    END_USER,
    FieldTable,
    RequestField,
    declare_echoed,
    declare_ignored,
    declare_refused,
    declare_supported,
)

PREFIX = "/v1/messages"


class MessagesScope(StrEnum):
    """The object that contains a field."""

    MESSAGES = PREFIX
    COUNT = f"{PREFIX}/count_tokens"
    MESSAGE = "messages[]"
    TEXT = "text"
    IMAGE = "image"
    DOCUMENT = "document"
    SEARCH_RESULT = "search_result"
    SOURCE = "source"
    THINKING = "thinking"
    REDACTED = "redacted_thinking"
    TOOL_USE = "tool_use"
    TOOL_RESULT = "tool_result"
    TOOL_REFERENCE = "tool_reference"
    TOOL = "tools[]"
    TOOL_CHOICE = "tool_choice"
    THINKING_OPTIONS = "thinking options"
    OUTPUT_CONFIG = "output_config"
    FORMAT = "format"
    METADATA = "metadata"


GENERATE = (MessagesScope.MESSAGES,)
BOTH = (MessagesScope.MESSAGES, MessagesScope.COUNT)
CACHED = (
    MessagesScope.TEXT,
    MessagesScope.IMAGE,
    MessagesScope.DOCUMENT,
    MessagesScope.SEARCH_RESULT,
    MessagesScope.TOOL_USE,
    MessagesScope.TOOL_RESULT,
    MessagesScope.TOOL_REFERENCE,
)
CITED = (MessagesScope.TEXT, MessagesScope.DOCUMENT, MessagesScope.SEARCH_RESULT)

NO_CITATIONS = "answers have no citations"
NEXT_TIER = "this server has one class of service here"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        BOTH,
        model="Name of a model, an alias or an adapter.",
        messages="The conversation. Messages of one role in a row are one turn. A last message of the "
        "assistant is continued. A message of the role system may stand anywhere.",
        system="Instructions: a text, or a list of text blocks.",
        tools="Functions that the model may call, at most 1,024.",
        tool_choice="auto, any (the model must call), none, or one tool by its name.",
        thinking="enabled with a budget, adaptive, or disabled. A model that does not reason ignores it, "
        "and the answer's header names it.",
        output_config="The effort, and the JSON Schema of the answer.",
        output_format="The former place of output_config.format.",
        cache_control="Where a vendor's cached prompt ends. Local models find cached prefixes themselves.",
        context_management="clear_thinking that keeps all, which is what the server does. The answer's "
        "header names other edits, which have no effect.",
    ),
    *declare_supported(
        GENERATE,
        max_tokens="Most tokens of the answer. It is lowered to what the context leaves.",
        stream="Whether the answer comes as server-sent events.",
        temperature="0 to 1. 0 always takes the most likely token.",
        top_p="Only the most likely tokens whose probabilities add up to this; 0 to 1.",
        top_k="Only the k most likely tokens; 0 keeps all.",
        stop_sequences="Texts that end the answer, at most 64. `stop_sequence` of the answer tells "
        "which one did, if a local model or Anthropic answers.",
        metadata="`user_id`: the end user.",
    ),
    declare_ignored("service_tier", GENERATE, NEXT_TIER),
    declare_ignored("speed", GENERATE, NEXT_TIER),
    *declare_echoed(
        BOTH,
        "changes nothing in the answer of a local model, and is not sent to vendors",
        "diagnostics",
        "betas",
        "inference_geo",
        "user_profile_id",
        "workspace_id",
    ),
    declare_refused("container", BOTH, "this server runs no code for the model"),
    declare_refused("mcp_servers", BOTH, "this server calls no tool servers; let the client call them", []),
    declare_refused("thread", BOTH, "this server keeps no conversations of this API; send all messages"),
    *declare_supported(
        (MessagesScope.MESSAGE,),
        role="user, assistant or system.",
        content="A text, or a list of blocks.",
    ),
    *declare_supported(
        CACHED, cache_control="Where a vendor's cached prompt ends.", type="The kind of block."
    ),
    *declare_supported((MessagesScope.TEXT,), text="The text."),
    *declare_supported(
        (MessagesScope.IMAGE, MessagesScope.DOCUMENT),
        source="The bytes in base64, a text, or an https: address.",
    ),
    *declare_supported(
        (MessagesScope.DOCUMENT,),
        title="The title, before the text.",
        context="More about the document, before the text.",
    ),
    *declare_supported(
        (MessagesScope.SEARCH_RESULT,),
        source="Where the result is from, before its text.",
        title="The title, before the text.",
        content="Text blocks.",
    ),
    declare_ignored("citations", CITED, NO_CITATIONS),
    *declare_supported(
        (MessagesScope.SOURCE,),
        type="base64, text, content or url.",
        media_type="The type of the bytes.",
        data="The bytes in base64, or the text.",
        url="An https: address, which only a vendor opens.",
        content="A text, or text blocks.",
    ),
    *declare_supported(
        (MessagesScope.THINKING,),
        type="The kind of block.",
        thinking="The reasoning of an earlier answer.",
        signature="As the server sent it. A signature of Anthropic's goes back to Anthropic.",
    ),
    *declare_supported(
        (MessagesScope.REDACTED,),
        type="The kind of block.",
        data="As the vendor sent it. Only its vendor gets it back.",
    ),
    *declare_supported(
        (MessagesScope.TOOL_USE,),
        id="The id of the call.",
        name="The called function.",
        input="The arguments.",
    ),
    declare_ignored("caller", (MessagesScope.TOOL_USE,), "part of an earlier answer"),
    *declare_supported(
        (MessagesScope.TOOL_RESULT,),
        tool_use_id="The id of the call before it.",
        content="A text, or a list of blocks.",
        is_error="Whether the call failed. Anthropic gets it. Another model sees only the text.",
    ),
    *declare_supported(
        (MessagesScope.TOOL_REFERENCE,), tool_name="A tool of `tools`; the model sees its definition."
    ),
    *declare_supported(
        (MessagesScope.TOOL,),
        name="1 to 128 letters, digits, underscores and hyphens.",
        description="What the function does.",
        input_schema="The JSON Schema of the arguments. Every call satisfies it.",
        type="custom, or absent. Tools that Anthropic runs are left out and named in the answer's header.",
        strict="Whether every keyword of the schema must be enforced; otherwise the answer's header names "
        "keywords that are not.",
        cache_control="Where a vendor's cached prompt ends.",
        defer_loading="Whether the model sees the tool only after a tool_reference to it.",
        input_examples="Arguments to show to the model, after the description.",
    ),
    declare_ignored("eager_input_streaming", (MessagesScope.TOOL,), "calls are always streamed"),
    declare_ignored("allowed_callers", (MessagesScope.TOOL,), "only the model itself calls"),
    *declare_supported(
        (MessagesScope.TOOL_CHOICE,),
        type="auto, any, tool or none.",
        name="The tool, with type tool.",
        disable_parallel_tool_use="Whether a turn has at most one call.",
    ),
    *declare_supported(
        (MessagesScope.THINKING_OPTIONS,),
        type="enabled, adaptive, disabled, or between_tools, which counts as adaptive.",
        budget_tokens="Most tokens of reasoning, with type enabled; less than max_tokens.",
        display="omitted: the answer has a thinking block without text.",
    ),
    *declare_supported(
        (MessagesScope.OUTPUT_CONFIG,),
        effort="low, medium, high, xhigh or max, for a model that reasons.",
        format="The JSON Schema of the answer's text.",
    ),
    declare_ignored("task_budget", (MessagesScope.OUTPUT_CONFIG,), "this server has no budget for a task"),
    *declare_supported((MessagesScope.FORMAT,), type="json_schema.", schema="The schema."),
    *declare_supported((MessagesScope.METADATA,), user_id=END_USER),
)

FIELD_TABLE = FieldTable(FIELDS, tuple(MessagesScope), endpoints=BOTH)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
