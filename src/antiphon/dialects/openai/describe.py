"""OpenAI's dialect as part of the OpenAPI document: made from the wire types, with the table of fields in the
margin."""

from collections.abc import Mapping
from functools import cache

from antiphon.dialects.base import Description, Endpoint
from antiphon.dialects.common import response_types
from antiphon.dialects.common.fields import TABLES, FieldScope
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_shapes,
)

REQUESTS: Mapping[str, FieldScope] = {
    "ChatCompletionRequest": FieldScope.CHAT,
    "CompletionRequest": FieldScope.TEXT,
    "ChatMessage": FieldScope.MESSAGE,
    "TextPart": FieldScope.PART,
    "RefusalPart": FieldScope.REFUSAL,
    "ToolShape": FieldScope.TOOL,
    "Function": FieldScope.FUNCTION,
    "MessageToolCall": FieldScope.CALL,
    "CalledFunction": FieldScope.CALLED,
    "StreamOptions": FieldScope.STREAM,
    "EmbeddingsRequest": FieldScope.EMBEDDINGS,
    "TokenizeRequest": FieldScope.TOKENIZE,
    "DetokenizeRequest": FieldScope.DETOKENIZE,
    "ApplyRequest": FieldScope.APPLY,
    "LoadAdapterRequest": FieldScope.LOAD,
    "UnloadAdapterRequest": FieldScope.UNLOAD,
}
"""Schemas whose fields stand in the table."""

EXAMPLES: Mapping[str, object] = {
    "ChatCompletionRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "CompletionRequest": {"model": "cantor", "prompt": "Once upon a time", "max_tokens": 32},
    "EmbeddingsRequest": {"model": "all-minilm", "input": ["A text.", "Another one."]},
    "TokenizeRequest": {"prompt": "Hello!"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "ApplyRequest": {"messages": [{"role": "user", "content": "Hello!"}]},
    "LoadAdapterRequest": {"lora_name": "pirate", "lora_path": "pirate.gguf"},
    "UnloadAdapterRequest": {"lora_name": "pirate"},
}


ERROR = response_types.ErrorEnvelope


@cache
def list_all_fields(endpoints: tuple[Endpoint, ...]) -> frozenset[str]:
    """Names of the fields of requests."""
    return list_field_names(list_body_shapes(endpoints), TABLES.values())


def describe_endpoints(endpoints: tuple[Endpoint, ...]) -> Description:
    """Schemas of the dialect."""
    tables = {name: TABLES[place] for name, place in REQUESTS.items()}
    schemas = build_schemas((*list_shapes(endpoints), ERROR), tables, EXAMPLES)
    return Description(schemas, error_schema=ERROR.__name__)
