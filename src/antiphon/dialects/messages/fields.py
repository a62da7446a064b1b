"""The table of the fields of the Messages API, and how Antiphon treats them.

The wire types have the supported fields. The ignored and refused fields are listed here. Unknown fields are
reported and not refused, because agents send new ones every few weeks.
"""

from enum import StrEnum

from antiphon.dialects.common.field_table import (
    FieldTable,
    RequestField,
    declare_echoed,
    declare_refused,
)
from antiphon.dialects.messages import wire_types

PREFIX = "/v1/messages"


class MessagesScope(StrEnum):
    """The object that contains a field."""

    MESSAGES = PREFIX
    COUNT = f"{PREFIX}/count_tokens"


BOTH = tuple(MessagesScope)

OTHERS: tuple[RequestField, ...] = (
    *declare_echoed(
        (MessagesScope.MESSAGES,), "this server has one class of service here", "service_tier", "speed"
    ),
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

FIELD_TABLE = FieldTable(
    {
        MessagesScope.MESSAGES: wire_types.MessagesRequest,
        MessagesScope.COUNT: wire_types.CountRequest,
    },
    OTHERS,
    endpoints=BOTH,
)
