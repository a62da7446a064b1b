"""OpenAI's dialect as part of the OpenAPI document: made from the wire types, with the table of fields in the
margin."""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from antiphon.dialects.base import Description
from antiphon.dialects.describing import field_names, generation, json_answer, operation, schemas_of
from antiphon.dialects.openai import adapters, answers, embeddings, models, tokens, wire
from antiphon.dialects.openai.fields import TABLES
from antiphon.dialects.openai.places import Place
from antiphon.dialects.openai.tokens import VLLMTokens

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
    tokens.ApplyRequest,
    tokens.ApplyAnswer,
    tokens.TokenizerConfig,
    adapters.LoadAdapterRequest,
    adapters.UnloadAdapterRequest,
)

REQUESTS: Mapping[str, Place] = {
    "ChatCompletionRequest": Place.CHAT,
    "CompletionRequest": Place.TEXT,
    "ChatMessage": Place.MESSAGE,
    "TextPart": Place.PART,
    "RefusalPart": Place.REFUSAL,
    "ToolShape": Place.TOOL,
    "Function": Place.FUNCTION,
    "MessageToolCall": Place.CALL,
    "CalledFunction": Place.CALLED,
    "StreamOptions": Place.STREAM,
    "EmbeddingsRequest": Place.EMBEDDINGS,
    "TokenizeRequest": Place.TOKENIZE,
    "DetokenizeRequest": Place.DETOKENIZE,
    "ApplyRequest": Place.APPLY,
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
    "ApplyRequest": {"messages": [{"role": "user", "content": "Hello!"}]},
    "LoadAdapterRequest": {"lora_name": "pirate", "lora_path": "pirate.gguf"},
    "UnloadAdapterRequest": {"lora_name": "pirate"},
}


@cache
def fields() -> frozenset[str]:
    """Names of the fields of requests."""
    return field_names(SHAPES, TABLES.values())


def describe() -> Description:
    """Paths and schemas of the dialect."""
    tables = {name: TABLES[place] for name, place in REQUESTS.items()}
    schemas = schemas_of(SHAPES, tables, EXAMPLES)
    return Description(paths=_paths(), schemas=schemas, error_schema=answers.ErrorEnvelope.__name__)


def _paths() -> dict[str, Any]:
    listed = operation("List the models", "models", answers=json_answer("ModelList"))
    shown = operation("Show one model and its profile", "models", answers=json_answer("ModelCard"))
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": generation(
                "Answer a conversation", "ChatCompletionRequest", "ChatCompletion", "ChatCompletionChunk"
            )
        },
        "/v1/completions": {
            "post": generation("Continue a text", "CompletionRequest", "Completion", "Completion")
        },
        "/v1/embeddings": {
            "post": operation(
                "Make vectors of texts", "embeddings", "EmbeddingsRequest", json_answer("EmbeddingsAnswer")
            )
        },
        "/v1/models": {"get": listed},
        "/v1/models/{model}": {"get": shown | {"parameters": [name]}},
        **_shown(
            VLLMTokens.tokenize_paths, "Show the token ids of a prompt", "TokenizeRequest", "TokenizeAnswer"
        ),
        **_shown(
            VLLMTokens.detokenize_paths, "Show the text of token ids", "DetokenizeRequest", "DetokenizeAnswer"
        ),
        **_shown(
            VLLMTokens.apply_paths,
            "Show the prompt that the chat template makes of a conversation",
            "ApplyRequest",
            "ApplyAnswer",
        ),
        VLLMTokens.tokenizer_path: {"get": _tokenizer()},
        "/v1/load_lora_adapter": {"post": _change("Make a LoRA adapter a model", "LoadAdapterRequest")},
        "/v1/unload_lora_adapter": {
            "post": _change("Take a LoRA adapter's name away", "UnloadAdapterRequest")
        },
    }


def _tokenizer() -> dict[str, Any]:
    """An operation that takes its model, where there are several, from the query."""
    model = {
        "name": "model",
        "in": "query",
        "description": "Name of a model; may be left out when there is only one",
        "schema": {"type": "string"},
    }
    shown = operation("Show a model's tokenizer", "models", answers=json_answer("TokenizerConfig"))
    return shown | {"parameters": [model]}


def _shown(paths: Iterable[str], summary: str, body: str, answer: str) -> dict[str, Any]:
    """One operation at all of its paths."""
    return {path: {"post": operation(summary, "tokens", body, json_answer(answer))} for path in paths}


def _change(summary: str, body: str) -> dict[str, Any]:
    """An operation that answers with a sentence."""
    described = operation(summary, "adapters", body)
    described["responses"]["200"]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return described
