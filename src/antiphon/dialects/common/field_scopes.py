"""The objects that OpenAI's fields belong to."""

from enum import StrEnum


class FieldScope(StrEnum):
    """The object that a field belongs to."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    MESSAGE = "message"
    PART = "content part"
    REFUSAL = "refusal part"
    TOOL = "tool"
    FUNCTION = "tool's function"
    CALL = "tool call"
    CALLED = "tool call's function"
    STREAM = "stream_options"
    EMBEDDINGS = "/v1/embeddings"
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
TOOL = frozenset({FieldScope.TOOL})
FUNCTION = frozenset({FieldScope.FUNCTION})
CALL = frozenset({FieldScope.CALL})
CALLED = frozenset({FieldScope.CALLED})
STREAM = frozenset({FieldScope.STREAM})
EMBEDDINGS = frozenset({FieldScope.EMBEDDINGS})
TOKENIZE = frozenset({FieldScope.TOKENIZE})
DETOKENIZE = frozenset({FieldScope.DETOKENIZE})
APPLY = frozenset({FieldScope.APPLY})
LOAD = frozenset({FieldScope.LOAD})
UNLOAD = frozenset({FieldScope.UNLOAD})
