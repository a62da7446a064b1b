"""OpenAI's dialect as part of the OpenAPI document: made from the wire types, with the table of fields in the
margin."""

from collections.abc import Mapping
from typing import Any

import msgspec

from antiphon.dialects.base import Description
from antiphon.dialects.openai import adapters, answers, embeddings, models, tokens, wire
from antiphon.dialects.openai.fields import TABLES
from antiphon.dialects.openai.places import Place
from antiphon.dialects.table import Standing

REF = "#/components/schemas/{name}"

SHAPES: tuple[type[msgspec.Struct], ...] = (
    wire.ChatCompletionRequest,
    wire.CompletionRequest,
    answers.ChatCompletion,
    answers.ChatCompletionChunk,
    answers.Completion,
    embeddings.EmbeddingsRequest,
    embeddings.EmbeddingsAnswer,
    answers.ErrorEnvelope,
    models.ModelList,
    models.ModelCard,
    tokens.TokenizeRequest,
    tokens.TokenizeAnswer,
    tokens.DetokenizeRequest,
    tokens.DetokenizeAnswer,
    adapters.LoadAdapterRequest,
    adapters.UnloadAdapterRequest,
)

REQUESTS: Mapping[str, Place] = {
    "ChatCompletionRequest": Place.CHAT,
    "CompletionRequest": Place.TEXT,
    "ChatMessage": Place.MESSAGE,
    "TextPart": Place.PART,
    "ToolShape": Place.TOOL,
    "Function": Place.FUNCTION,
    "MessageToolCall": Place.CALL,
    "CalledFunction": Place.CALLED,
    "StreamOptions": Place.STREAM,
    "EmbeddingsRequest": Place.EMBEDDINGS,
    "TokenizeRequest": Place.TOKENIZE,
    "DetokenizeRequest": Place.DETOKENIZE,
    "LoadAdapterRequest": Place.LOAD,
    "UnloadAdapterRequest": Place.UNLOAD,
}
"""Schemas whose fields stand in the table."""

EXAMPLES: Mapping[str, object] = {
    "ChatCompletionRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "CompletionRequest": {"model": "cantor", "prompt": "Once upon a time", "max_tokens": 32},
    "EmbeddingsRequest": {"model": "all-minilm", "input": ["A text.", "Another one."]},
    "TokenizeRequest": {"prompt": "Hello!"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "LoadAdapterRequest": {"lora_name": "pirate", "lora_path": "pirate.gguf"},
    "UnloadAdapterRequest": {"lora_name": "pirate"},
}


def describe() -> Description:
    """Paths and schemas of the dialect."""
    _, schemas = msgspec.json.schema_components(SHAPES, ref_template=REF)
    for name, place in REQUESTS.items():
        _annotate(schemas[name], place)
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [example]
    return Description(paths=_paths(), schemas=schemas, error_schema=answers.ErrorEnvelope.__name__)


def _annotate(schema: dict[str, Any], place: Place) -> None:
    """Gives each property its sentence, and lists what else is known."""
    for name, field in TABLES[place].items():
        if name in schema["properties"]:
            ignored = "Accepted and ignored: " if field.standing is Standing.IGNORED else ""
            schema["properties"][name]["description"] = ignored + field.says
    schema["x-antiphon-refused"] = {
        name: {"says": field.says, "taken": list(field.harmless)}
        for name, field in TABLES[place].items()
        if field.standing is Standing.REFUSED
    }


def _paths() -> dict[str, Any]:
    listed = _operation("List the models", "models", answers={"application/json": "ModelList"})
    shown = _operation("Show one model and its profile", "models", answers={"application/json": "ModelCard"})
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": _generation("Answer a conversation", "ChatCompletion", "ChatCompletionChunk")
        },
        "/v1/completions": {"post": _generation("Continue a text", "Completion", "Completion")},
        "/v1/embeddings": {
            "post": _operation(
                "Make vectors of texts", "embeddings", "EmbeddingsRequest", _json("EmbeddingsAnswer")
            )
        },
        "/v1/models": {"get": listed},
        "/v1/models/{model}": {"get": shown | {"parameters": [name]}},
        "/tokenize": {
            "post": _operation(
                "Show the token ids of a prompt", "tokens", "TokenizeRequest", _json("TokenizeAnswer")
            )
        },
        "/detokenize": {
            "post": _operation(
                "Show the text of token ids", "tokens", "DetokenizeRequest", _json("DetokenizeAnswer")
            )
        },
        "/v1/load_lora_adapter": {"post": _change("Make a LoRA adapter a model", "LoadAdapterRequest")},
        "/v1/unload_lora_adapter": {
            "post": _change("Take a LoRA adapter's name away", "UnloadAdapterRequest")
        },
    }


def _generation(summary: str, answer: str, chunk: str) -> dict[str, Any]:
    answers = {"application/json": answer, "text/event-stream": chunk}
    return _operation(summary, "completions", f"{answer}Request", answers)


def _change(summary: str, body: str) -> dict[str, Any]:
    """An operation that answers with a sentence."""
    operation = _operation(summary, "adapters", body)
    operation["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return operation


def _json(schema: str) -> dict[str, str]:
    return {"application/json": schema}


def _operation(
    summary: str, tag: str, body: str | None = None, answers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    content = {
        media: {"schema": {"$ref": REF.format(name=schema)}} for media, schema in (answers or {}).items()
    }
    operation: dict[str, Any] = {
        "summary": summary,
        "tags": [tag],
        "responses": {"200": {"description": "The answer", "content": content}},
    }
    if body is not None:
        schema = {"schema": {"$ref": REF.format(name=body)}}
        operation["requestBody"] = {"required": True, "content": {"application/json": schema}}
    return operation
