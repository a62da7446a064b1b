"""Empower's dialect as part of the OpenAPI document."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from antiphon.dialects.base import Description
from antiphon.dialects.describing import REF, field_names, generation, json_answer, operation, schemas_of
from antiphon.dialects.empower import answers, loras, wire
from antiphon.dialects.empower.fields import PREFIX, TABLES, Place
from antiphon.dialects.openai.fields import TABLES as OPENAI_TABLES
from antiphon.dialects.openai.places import Place as OpenAIPlace
from antiphon.dialects.table import Standing

NAMED = "Empower"
"""Beginning of the names of its schemas."""

SHAPES = (
    wire.ChatRequest,
    wire.DeployRequest,
    answers.ChatAnswer,
    answers.ChatChunk,
    answers.FlatError,
    loras.Lora,
    loras.BaseModel,
)

REQUESTS = {
    "ChatRequest": TABLES[Place.CHAT],
    "DeployRequest": TABLES[Place.DEPLOY],
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


@cache
def fields() -> frozenset[str]:
    """Names of the fields of requests."""
    return field_names(SHAPES, (*TABLES.values(), *OPENAI_TABLES.values()))


def describe() -> Description:
    """Paths and schemas of the dialect."""
    schemas = schemas_of(SHAPES, REQUESTS, EXAMPLES, NAMED)
    table = TABLES[Place.CHAT]
    properties = schemas[f"{NAMED}ChatRequest"]["properties"]
    for name in tuple(properties):
        if name not in table or table[name].standing is Standing.REFUSED:
            del properties[name]
    return Description(paths=_paths(), schemas=schemas, error_schema=f"{NAMED}FlatError")


def _paths() -> dict[str, Any]:
    chat = generation(
        "Answer a conversation, as Empower does",
        *(f"{NAMED}{name}" for name in ("ChatRequest", "ChatAnswer", "ChatChunk")),
    )
    lora, base = json_answer(f"{NAMED}Lora"), json_answer(f"{NAMED}BaseModel")
    deploy = operation("Deploy a LoRA", "loras", f"{NAMED}DeployRequest", lora)
    named = {"parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]}
    return {
        f"{PREFIX}/chat/completions": {"post": chat},
        f"{PREFIX}/lora": {"post": deploy, "get": _list("List the LoRAs", "Lora")},
        f"{PREFIX}/lora/{{name}}": {
            "get": operation("Show one LoRA", "loras", None, lora) | named,
            "delete": operation("Remove a LoRA", "loras", None, lora) | named,
        },
        f"{PREFIX}/base-model": {"get": _list("List the base models", "BaseModel")},
        f"{PREFIX}/base-model/{{name}}": {
            "get": operation("Show one base model", "loras", None, base) | named,
        },
    }


def _list(summary: str, name: str) -> dict[str, Any]:
    described = operation(summary, "loras", None, json_answer(f"{NAMED}{name}"))
    items = {"$ref": REF.format(name=f"{NAMED}{name}")}
    described["responses"]["200"]["content"]["application/json"]["schema"] = {"type": "array", "items": items}
    return described
