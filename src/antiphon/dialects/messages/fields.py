"""The table of the fields of the Messages API, and how Antiphon treats them. The objects in a body have the
fields of their wire types. Unknown fields are reported and
not refused, because agents send new ones every few weeks."""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    FieldTable,
    RequestField,
    declare_echoed,
    declare_refused,
    declare_supported,
)

PREFIX = "/v1/messages"


class MessagesScope(StrEnum):
    """The object that contains a field."""

    MESSAGES = PREFIX
    COUNT = f"{PREFIX}/count_tokens"


GENERATE = (MessagesScope.MESSAGES,)
BOTH = (MessagesScope.MESSAGES, MessagesScope.COUNT)

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
        metadata="`user_id`: the end user, for the records of usage. Ignored without keys.",
    ),
    *declare_echoed(GENERATE, "this server has one class of service here", "service_tier", "speed"),
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
)

FIELD_TABLE = FieldTable(FIELDS, tuple(MessagesScope), endpoints=BOTH)

TABLES = FIELD_TABLE.tables
