"""The table of all request fields of Fireworks' page and its later documentation.

The wire types have the supported fields, with the page's ranges. The refused fields are listed here.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    NO_MEMORY,
    NO_RETRIEVAL,
    FieldTable,
    RequestField,
    declare_refused,
)
from antiphon.dialects.fireworks import wire_types

PREFIX = "/fireworks/inference/v1"


RAW = "text completions do not separate reasoning; send messages to chat/completions"

LEGACY = "tools took its place; send tools"


class FireworksScope(StrEnum):
    """The object that contains a field. The fields of messages and tools are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    TEXT = f"{PREFIX}/completions"


CHAT = frozenset({FireworksScope.CHAT})

TEXT = frozenset({FireworksScope.TEXT})

BOTH = CHAT | TEXT

OTHERS: tuple[RequestField, ...] = (
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("stream_options", BOTH, "usage always comes; leave it out", {}, {"include_usage": True}),
    declare_refused("echo", CHAT, "a conversation is not repeated; leave it out", False),
    declare_refused("echo_last", BOTH, "send echo, which repeats the whole prompt of a text completion", 0),
    declare_refused("raw_output", BOTH, "/tokenize shows what a model reads; leave it out", False),
    declare_refused("perf_metrics_in_response", BOTH, "/metrics has the server's times; leave it out", False),
    declare_refused("reasoning_effort", TEXT, RAW, "none", False),
    declare_refused("thinking", TEXT, RAW, {"type": "disabled"}),
    declare_refused("reasoning_history", BOTH, "the model's template decides it; leave it out"),
    declare_refused(
        "prompt_truncate_len", CHAT, "messages are never left out silently; shorten the conversation"
    ),
    declare_refused(
        "safe_tokenization", CHAT, "no text in a message is ever a control token; leave it out", True
    ),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
)

FIELD_TABLE = FieldTable(
    {
        FireworksScope.CHAT: wire_types.FireworksChatCompletionRequest,
        FireworksScope.TEXT: wire_types.FireworksCompletionRequest,
    },
    OTHERS,
    endpoints=tuple(FireworksScope),
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
