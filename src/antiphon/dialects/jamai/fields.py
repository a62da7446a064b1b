"""The table of all request fields of JamAI Base's page, its embeddings and rankings.

The wire types have the supported fields. The ignored fields are listed here.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    FieldTable,
    RequestField,
    declare_ignored,
    declare_supported,
)
from antiphon.dialects.jamai import wire_types

BASE = "/jamai/api"


class JamaiScope(StrEnum):
    """The object that contains a field. Other fields of messages are in OpenAI's table."""

    CHAT = f"{BASE}/v1/chat/completions"
    MESSAGE = "JamAI's message"
    EMBEDDINGS = f"{BASE}/v1/embeddings"
    RERANK = f"{BASE}/v1/rerank"


CHAT = frozenset({JamaiScope.CHAT})

MESSAGE = frozenset({JamaiScope.MESSAGE})

EMBEDDINGS = frozenset({JamaiScope.EMBEDDINGS})

OTHERS: tuple[RequestField, ...] = (
    declare_ignored(
        "reasoning_summary",
        CHAT,
        "auto, concise or detailed. It has no effect: you get the reasoning as the model wrote it.",
    ),
    declare_ignored("stream_options", CHAT, "every stream brings the usage."),
    *declare_supported(
        MESSAGE,
        content="As at /v1. null and an empty list mean an empty text.",
        name="The name of the speaker. Characters besides letters, digits, _ and - become _.",
    ),
    declare_ignored(
        "type", EMBEDDINGS, "query or document. It has no effect: a text's vector is the same for both."
    ),
)

FIELD_TABLE = FieldTable(
    {
        JamaiScope.CHAT: wire_types.JamaiChatRequest,
        JamaiScope.MESSAGE: None,
        JamaiScope.EMBEDDINGS: wire_types.JamaiEmbeddingRequest,
        JamaiScope.RERANK: wire_types.JamaiRerankRequest,
    },
    OTHERS,
    endpoints=(JamaiScope.CHAT, JamaiScope.EMBEDDINGS, JamaiScope.RERANK),
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
