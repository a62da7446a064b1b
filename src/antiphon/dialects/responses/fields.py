"""The table of the fields of the Responses API, and how Antiphon treats them.

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
from antiphon.dialects.responses import wire_types

PREFIX = "/v1/responses"


class ResponsesScope(StrEnum):
    """The object that contains a field."""

    RESPONSES = PREFIX
    INPUT_TOKENS = f"{PREFIX}/input_tokens"


BOTH = tuple(ResponsesScope)

CREATING = (ResponsesScope.RESPONSES,)

OTHERS: tuple[RequestField, ...] = (
    declare_refused("conversation", BOTH, "this server stores responses; send previous_response_id"),
    declare_refused("prompt", CREATING, "this server has no stored prompts; send the items"),
    declare_refused("background", CREATING, "an answer ends with its request; stream it", False),
    declare_refused("background_options", CREATING, "an answer ends with its request; stream it"),
    declare_refused(
        "context_management", CREATING, "this server compacts no conversations; let the client do it", []
    ),
    declare_refused("moderation", CREATING, "this server moderates no answers", "auto", "standard"),
    declare_refused("access_programs", CREATING, "this server runs no programs for the model", []),
    declare_refused("generate", CREATING, "it belongs to WebSockets; send POST requests"),
    declare_refused("stream_id", CREATING, "it belongs to WebSockets; send POST requests"),
    *declare_echoed(CREATING, "local models find cached prefixes themselves", "prompt_cache_options"),
)

FIELD_TABLE = FieldTable(
    {
        ResponsesScope.RESPONSES: wire_types.ResponsesRequest,
        ResponsesScope.INPUT_TOKENS: wire_types.InputTokensRequest,
    },
    OTHERS,
    endpoints=BOTH,
)
