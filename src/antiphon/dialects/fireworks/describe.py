"""Fireworks' dialect as part of the OpenAPI document: made from the wire types, with the table of fields in
the margin."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from antiphon.dialects.base import Description
from antiphon.dialects.describing import field_names, generation, json_answer, operation, schemas_of
from antiphon.dialects.fireworks import answers, models, wire
from antiphon.dialects.fireworks.fields import PREFIX, TABLES, Place
from antiphon.dialects.openai.fields import TABLES as MESSAGE_TABLES
from antiphon.dialects.openai.places import Place as MessagePlace
from antiphon.dialects.table import Table

NAME = "Fireworks"
"""What the names of its schemas begin with."""

SHAPES: tuple[type[msgspec.Struct], ...] = (
    wire.CompletionRequest,
    wire.ChatCompletionRequest,
    answers.Completion,
    answers.ChatCompletion,
    answers.ChatCompletionChunk,
    answers.ErrorEnvelope,
    models.ModelList,
    models.ModelShape,
)

REQUESTS: Mapping[str, Table] = {
    "CompletionRequest": TABLES[Place.TEXT],
    "ChatCompletionRequest": TABLES[Place.CHAT],
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


@cache
def fields() -> frozenset[str]:
    """Names of the fields of requests."""
    return field_names(SHAPES, (*TABLES.values(), *MESSAGE_TABLES.values()))


def describe() -> Description:
    """Paths and schemas of the dialect."""
    return Description(
        paths=_paths(),
        schemas=schemas_of(SHAPES, REQUESTS, EXAMPLES, NAME),
        error_schema=_named(answers.ErrorEnvelope),
    )


def _paths() -> dict[str, Any]:
    listed = operation("List the models", "models", answers=json_answer(_named(models.ModelList)))
    shown = operation("Show one model", "models", answers=json_answer(_named(models.ModelShape)))
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    completion = _named(answers.Completion)
    return {
        f"{PREFIX}/completions": {
            "post": generation("Continue a text", _named(wire.CompletionRequest), completion, completion)
        },
        f"{PREFIX}/chat/completions": {
            "post": generation(
                "Answer a conversation",
                _named(wire.ChatCompletionRequest),
                _named(answers.ChatCompletion),
                _named(answers.ChatCompletionChunk),
            )
        },
        f"{PREFIX}/models": {"get": listed},
        f"{PREFIX}/models/{{model}}": {"get": shown | {"parameters": [name]}},
    }


def _named(shape: type[msgspec.Struct]) -> str:
    return NAME + shape.__name__
