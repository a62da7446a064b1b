"""Fireworks' dialect as part of the OpenAPI document: made from the wire types, with the table of fields in
the margin."""

from collections.abc import Mapping
from functools import cache

from antiphon.dialects.base import Description, Endpoint
from antiphon.dialects.common.field_table import Table
from antiphon.dialects.common.fields import TABLES as MESSAGE_TABLES
from antiphon.dialects.common.fields import FieldScope as MessagePlace
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.fireworks import answers
from antiphon.dialects.fireworks.fields import TABLES, FireworksScope

SCHEMA_PREFIX = "Fireworks"
"""What the names of its schemas begin with."""

REQUESTS: Mapping[str, Table] = {
    "FireworksCompletionRequest": TABLES[FireworksScope.TEXT],
    "FireworksChatCompletionRequest": TABLES[FireworksScope.CHAT],
    "ChatMessage": MESSAGE_TABLES[MessagePlace.MESSAGE],
    "TextPart": MESSAGE_TABLES[MessagePlace.PART],
    "RefusalPart": MESSAGE_TABLES[MessagePlace.REFUSAL],
    "ToolShape": MESSAGE_TABLES[MessagePlace.TOOL],
    "Function": MESSAGE_TABLES[MessagePlace.FUNCTION],
    "MessageToolCall": MESSAGE_TABLES[MessagePlace.CALL],
    "CalledFunction": MESSAGE_TABLES[MessagePlace.CALLED],
}
"""Schemas whose fields stand in a table."""

MODEL = "accounts/fireworks/models/cantor"

EXAMPLES: Mapping[str, object] = {
    "FireworksCompletionRequest": {"model": MODEL, "prompt": "Once upon a time"},
    "FireworksChatCompletionRequest": {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]},
}


ERROR = answers.FireworksErrorEnvelope


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), (*TABLES.values(), *MESSAGE_TABLES.values()))


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Schemas of the dialect."""
    schemas = build_schemas((*list_shapes(endpoints), ERROR), REQUESTS, EXAMPLES, SCHEMA_PREFIX)
    return Description(schemas, SCHEMA_PREFIX, ERROR.__name__)
