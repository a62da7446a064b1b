"""The table of all request fields of Scale's page and its text completions.

The wire types have the supported fields. The ignored and refused fields are listed here.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    NO_MEMORY,
    NO_RETRIEVAL,
    FieldTable,
    RequestField,
    declare_ignored,
    declare_refused,
    declare_supported,
)
from antiphon.dialects.sgp import wire_types
from antiphon.dialects.sgp.legacy import SHAPES as LEGACY_SHAPES
from antiphon.dialects.sgp.legacy import LegacyScope

PREFIX = "/sgp/v4/beta"


CHAT_ALONE = "only chats have it; send messages to chat/completions"

LEGACY = "tools took its place; send tools"


class SgpScope(StrEnum):
    """The object that contains a field. Other fields of messages are in OpenAI's table."""

    CHAT = f"{PREFIX}/chat/completions"
    TEXT = f"{PREFIX}/completions"
    MESSAGE = "SGP's message"
    IMAGE_URL = "SGP's image_url"


CHAT = frozenset({SgpScope.CHAT})

TEXT = frozenset({SgpScope.TEXT})

MESSAGE = frozenset({SgpScope.MESSAGE})

IMAGE_URL = frozenset({SgpScope.IMAGE_URL})

OTHERS: tuple[RequestField, ...] = (
    declare_ignored(
        "guided_decoding_backend",
        CHAT,
        "outlines or lm-format-enforcer. It has no effect: this server has one compiler of constraints.",
    ),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("suffix", CHAT, "a conversation has no middle; send a prompt to completions", ""),
    declare_refused("audio", TEXT, CHAT_ALONE),
    declare_refused("modalities", TEXT, CHAT_ALONE, ["text"]),
    declare_refused("prediction", TEXT, CHAT_ALONE),
    declare_refused("tools", TEXT, CHAT_ALONE, []),
    declare_refused("tool_choice", TEXT, CHAT_ALONE, "none", "auto"),
    declare_refused("parallel_tool_calls", TEXT, CHAT_ALONE, False, True),
    declare_refused("store", CHAT, "nothing is stored here; leave it out", False),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
    *declare_supported(
        MESSAGE,
        role="system, developer, user, assistant, tool or function. If you leave it out: a "
        "message with tool_call_id is the tool's. One with tool_calls or function_call is "
        "the assistant's. Any other is the user's.",
        content="As at /v1; also one part instead of a list of parts.",
        function_call="The call of an assistant's message in the older form: an object of `name` and "
        "`arguments`. The next message of the role function has its result.",
    ),
    *declare_supported(
        IMAGE_URL,
        media_type="image/png, image/jpeg, image/gif or image/webp. The type of plain base64. For a data: "
        "URL, both types must be equal. Ignored for an https: address.",
    ),
)

FIELD_TABLE = FieldTable(
    {
        SgpScope.CHAT: wire_types.SgpChatCompletionRequest,
        SgpScope.TEXT: wire_types.SgpCompletionRequest,
        SgpScope.MESSAGE: None,
        SgpScope.IMAGE_URL: None,
        **LEGACY_SHAPES,
    },
    OTHERS,
    endpoints=(SgpScope.CHAT, SgpScope.TEXT, LegacyScope.CHAT, LegacyScope.TEXT),
)

TABLES = FIELD_TABLE.tables

filter_fields = FIELD_TABLE.filter
