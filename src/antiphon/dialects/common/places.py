"""The objects that OpenAI's fields belong to."""

from enum import StrEnum


class Place(StrEnum):
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


CHAT = frozenset({Place.CHAT})
TEXT = frozenset({Place.TEXT})
BOTH = CHAT | TEXT
MESSAGE = frozenset({Place.MESSAGE})
PART = frozenset({Place.PART})
REFUSAL = frozenset({Place.REFUSAL})
TOOL = frozenset({Place.TOOL})
FUNCTION = frozenset({Place.FUNCTION})
CALL = frozenset({Place.CALL})
CALLED = frozenset({Place.CALLED})
STREAM = frozenset({Place.STREAM})
EMBEDDINGS = frozenset({Place.EMBEDDINGS})
TOKENIZE = frozenset({Place.TOKENIZE})
DETOKENIZE = frozenset({Place.DETOKENIZE})
APPLY = frozenset({Place.APPLY})
LOAD = frozenset({Place.LOAD})
UNLOAD = frozenset({Place.UNLOAD})
