"""Fireworks' dialect as part of the OpenAPI document: made from the wire types, with the table of fields in
the margin."""

from collections.abc import Mapping
from functools import cache

from antiphon.dialects.base import Description, Endpoint
from antiphon.dialects.common.describing import body_shapes, field_names, schemas_of, shapes_of
from antiphon.dialects.common.field_scopes import FieldScope as MessagePlace
from antiphon.dialects.common.field_table import Table
from antiphon.dialects.common.fields import TABLES as MESSAGE_TABLES
from antiphon.dialects.fireworks import answers
from antiphon.dialects.fireworks.fields import TABLES, FireworksScope

NAME = "Fireworks"
"""What the names of its schemas begin with."""

REQUESTS: Mapping[str, Table] = {
    "CompletionRequest": TABLES[FireworksScope.TEXT],
    "ChatCompletionRequest": TABLES[FireworksScope.CHAT],
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
    "CompletionRequest": {"model": MODEL, "prompt": "Once upon a time"},
    "ChatCompletionRequest": {"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}]},
}


ERROR = answers.FireworksErrorEnvelope


@cache
def fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Names of the fields of requests."""
    return field_names(body_shapes(endpoints), (*TABLES.values(), *MESSAGE_TABLES.values()))


def describe(endpoints: tuple[Endpoint, ...]) -> Description:
    """Schemas of the dialect."""
    schemas = schemas_of((*shapes_of(endpoints), ERROR), REQUESTS, EXAMPLES, NAME)
    return Description(schemas, NAME, NAME + ERROR.__name__)
