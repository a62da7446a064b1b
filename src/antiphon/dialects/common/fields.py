"""The field tables of OpenAI's endpoints, with vLLM's common extensions.

The wire types have the supported fields. The ignored and refused fields are listed here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from antiphon.dialects.common import request_types as types
from antiphon.dialects.common.field_table import (
    NO_MEMORY,
    NO_RETRIEVAL,
    FieldReport,
    FieldTable,
    RequestField,
    declare_echoed,
    declare_refused,
    declare_supported,
)


class FieldScope(StrEnum):
    """The object that contains a field."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    MESSAGE = "message"
    PART = "content part"
    REFUSAL = "refusal part"
    IMAGE = "image part"
    IMAGE_URL = "image part's image_url"
    AUDIO = "audio part"
    INPUT_AUDIO = "audio part's input_audio"
    SPEECH = "assistant message's audio"
    TOOL = "tool"
    FUNCTION = "tool's function"
    CALL = "tool call"
    CALLED = "tool call's function"
    STREAM = "stream_options"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"
    APPLY = "/v1/apply-template"
    LOAD = "/v1/load_lora_adapter"
    UNLOAD = "/v1/unload_lora_adapter"


CHAT = frozenset({FieldScope.CHAT})
TEXT = frozenset({FieldScope.TEXT})
BOTH = CHAT | TEXT
MESSAGE = frozenset({FieldScope.MESSAGE})
PART = frozenset({FieldScope.PART})
REFUSAL = frozenset({FieldScope.REFUSAL})
IMAGE = frozenset({FieldScope.IMAGE})
AUDIO = frozenset({FieldScope.AUDIO})
SPEECH = frozenset({FieldScope.SPEECH})
TOOL = frozenset({FieldScope.TOOL})
CALL = frozenset({FieldScope.CALL})
CALLED = frozenset({FieldScope.CALLED})
STREAM = frozenset({FieldScope.STREAM})
EMBEDDINGS = frozenset({FieldScope.EMBEDDINGS})
RERANK = frozenset({FieldScope.RERANK})
LOAD = frozenset({FieldScope.LOAD})
UNLOAD = frozenset({FieldScope.UNLOAD})

LEGACY = "OpenAI has replaced it by tools; send tools"
STORE = "nothing is stored here; leave it out"
HOSTED = "it belongs to OpenAI's hosted service; leave it out"
UNKNOWN_MEDIA = (
    "messages contain text, images (image_url) and recordings (input_audio) for models that take them "
    "(modalities in /v1/models/{model}); leave it out"
)
ECHO = "a part of an answer, which clients send back"
THOUGHT = "another form of reasoning; send reasoning or reasoning_content"

OTHERS: tuple[RequestField, ...] = (
    *declare_supported(PART, type="text."),
    *declare_supported(IMAGE, type="image_url; only in messages of a user or a tool."),
    *declare_supported(AUDIO, type="input_audio; only in messages of a user."),
    *declare_supported(REFUSAL, type="refusal; only in an assistant's message."),
    declare_refused("memory_strategy", TEXT, NO_MEMORY),
    declare_refused("rag_params", TEXT, NO_RETRIEVAL),
    declare_refused("functions", CHAT, LEGACY, []),
    declare_refused("function_call", CHAT, LEGACY, "none", "auto"),
    declare_refused("store", CHAT, STORE, False),
    declare_refused("web_search_options", CHAT, HOSTED),
    declare_refused("moderation", CHAT, HOSTED),
    declare_refused("prompt_cache_options", CHAT, HOSTED, {}),
    declare_refused("prompt_cache_retention", CHAT, HOSTED, "in_memory"),
    declare_refused("include_obfuscation", STREAM, "streams are not padded; leave it out", False),
    declare_refused("length_penalty", BOTH, "it ranks beams, and beam search is not built; leave it out", 1),
    declare_refused("use_beam_search", BOTH, "beam search is not built; leave it out", False),
    declare_refused(
        "spaces_between_special_tokens",
        BOTH,
        "spaces between tokens are never removed; leave it out",
        True,
    ),
    declare_refused(
        "mm_processor_kwargs", CHAT, 'send detail "low" in image_url for an image of fewer tokens', {}
    ),
    declare_refused(
        "media_io_kwargs", CHAT, "every file is decoded in one way; cut or convert it before you send it", {}
    ),
    declare_refused("logits_processors", BOTH, "code from a request is never run; leave it out", []),
    *declare_echoed(SPEECH, ECHO, "data", "expires_at", "transcript"),
    declare_refused("prompt_cache_breakpoint", IMAGE | AUDIO, HOSTED),
    *declare_echoed(
        MESSAGE,
        ECHO,
        "annotations",
        "citations",
        "created",
        "created_at",
        "extra_content",
        "finish_reason",
        "id",
        "index",
        "logprobs",
        "model",
        "parsed",
        "provider_specific_fields",
        "search_results",
        "stop_reason",
        "token_ids",
    ),
    *declare_echoed(MESSAGE, THOUGHT, "reasoning_details", "reasoning_items"),
    *declare_echoed(
        MESSAGE, f"{ECHO}; only in an assistant's message, as images to look at are parts", "images"
    ),
    *declare_echoed(CALL | CALLED, ECHO, "provider_specific_fields"),
    *declare_echoed(CALLED, ECHO, "parsed_arguments"),
    declare_refused("function_call", MESSAGE, "OpenAI has replaced it by tool_calls; send tool_calls"),
    declare_refused("image_url", PART, "it belongs to a part of the type image_url"),
    declare_refused("input_audio", PART, "it belongs to a part of the type input_audio"),
    declare_refused("file", PART, UNKNOWN_MEDIA),
    declare_refused("video_url", PART, UNKNOWN_MEDIA),
    declare_refused("prompt_cache_breakpoint", PART, HOSTED),
    declare_refused("custom", TOOL, "only functions are called; send type function"),
    declare_refused("custom", CALL, "only functions are called; send type function"),
    declare_refused("reasoning", CHAT, "it belongs to the Responses API; send reasoning_effort"),
    declare_refused("rank_fields", RERANK, "send the text to compare as each document", ["text"]),
    declare_refused("max_chunks_per_doc", RERANK, "documents are not split; send max_tokens_per_doc", 1),
    declare_refused("truncate_prompt_tokens", RERANK, "send max_tokens_per_doc"),
    declare_refused("priority", RERANK, "requests are served in turn; leave it out", 0),
    declare_refused(
        "truncate_prompt_tokens", EMBEDDINGS, "a text is never shortened; shorten it before sending"
    ),
    declare_refused("add_special_tokens", EMBEDDINGS, "send token ids to have them read as they are", True),
    declare_refused("normalize", EMBEDDINGS, "vectors always have the length 1; leave it out", True),
    declare_refused("priority", EMBEDDINGS, "requests are served in turn; leave it out", 0),
    declare_refused("is_3d_lora_weight", LOAD, "experts are not adapted here; leave it out", False),
    declare_refused("lora_int_id", UNLOAD, "adapters are known by their names; leave it out"),
)
"""The fields that are ignored or refused, and the tags of content parts, which no wire type has."""

SHAPES: Mapping[str, type[Struct]] = {
    FieldScope.CHAT: types.ChatCompletionRequest,
    FieldScope.TEXT: types.CompletionRequest,
    FieldScope.MESSAGE: types.ChatMessage,
    FieldScope.PART: types.TextPart,
    FieldScope.REFUSAL: types.RefusalPart,
    FieldScope.IMAGE: types.ImageUrlPart,
    FieldScope.IMAGE_URL: types.ImageUrlShape,
    FieldScope.AUDIO: types.InputAudioPart,
    FieldScope.INPUT_AUDIO: types.InputAudioShape,
    FieldScope.SPEECH: types.SpeechReference,
    FieldScope.TOOL: types.ToolShape,
    FieldScope.FUNCTION: types.Function,
    FieldScope.CALL: types.MessageToolCall,
    FieldScope.CALLED: types.CalledFunction,
    FieldScope.STREAM: types.StreamOptions,
    FieldScope.EMBEDDINGS: types.EmbeddingsRequest,
    FieldScope.RERANK: types.RerankBody,
    FieldScope.TOKENIZE: types.TokenizeRequest,
    FieldScope.DETOKENIZE: types.DetokenizeRequest,
    FieldScope.APPLY: types.ApplyRequest,
    FieldScope.LOAD: types.LoadAdapterRequest,
    FieldScope.UNLOAD: types.UnloadAdapterRequest,
}
"""The wire type of each object."""

FIELD_TABLE = FieldTable(SHAPES, OTHERS, endpoints=(FieldScope.CHAT, FieldScope.TEXT))
TABLES = FIELD_TABLE.tables
filter_fields = FIELD_TABLE.filter


def filter_stream_options(fields: dict[str, Any], report: FieldReport) -> None:
    """Filters the fields of stream_options in place."""
    options = fields.get("stream_options")
    if isinstance(options, dict):
        fields["stream_options"] = filter_fields(options, FieldScope.STREAM, "stream_options.", report)
