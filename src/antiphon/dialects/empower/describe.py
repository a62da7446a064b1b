"""Empower's dialect as part of the OpenAPI document."""

from collections.abc import Mapping
from functools import cache

from antiphon.dialects.base import Description, Endpoint
from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.common.fields import TABLES as OPENAI_TABLES
from antiphon.dialects.common.fields import FieldScope as OpenAIPlace
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)
from antiphon.dialects.empower import answers
from antiphon.dialects.empower.fields import TABLES, EmpowerScope

SCHEMA_PREFIX = "Empower"
"""Beginning of the names of its schemas."""

REQUESTS = {
    "ChatRequest": TABLES[EmpowerScope.CHAT],
    "DeployRequest": TABLES[EmpowerScope.DEPLOY],
    "ChatMessage": OPENAI_TABLES[OpenAIPlace.MESSAGE],
    "TextPart": OPENAI_TABLES[OpenAIPlace.PART],
    "RefusalPart": OPENAI_TABLES[OpenAIPlace.REFUSAL],
    "ToolShape": OPENAI_TABLES[OpenAIPlace.TOOL],
    "Function": OPENAI_TABLES[OpenAIPlace.FUNCTION],
    "MessageToolCall": OPENAI_TABLES[OpenAIPlace.CALL],
    "CalledFunction": OPENAI_TABLES[OpenAIPlace.CALLED],
}

EXAMPLES: Mapping[str, object] = {
    "ChatRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "DeployRequest": {"model_name": "IlyaGusev/saiga_mistral_7b_lora", "model_source": "HF_HUB"},
}


ERROR = answers.FlatError


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), (*TABLES.values(), *OPENAI_TABLES.values()))


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Schemas of the dialect."""
    schemas = build_schemas((*list_shapes(endpoints), ERROR), REQUESTS, EXAMPLES, SCHEMA_PREFIX)
    table = TABLES[EmpowerScope.CHAT]
    properties = schemas[f"{SCHEMA_PREFIX}ChatRequest"]["properties"]
    for name in tuple(properties):
        if name not in table or table[name].support is FieldSupport.REFUSED:
            del properties[name]
    return Description(schemas, SCHEMA_PREFIX, SCHEMA_PREFIX + ERROR.__name__)
