"""Where fields stand: for each object of each dialect a request that holds it. A dialect's new object gets
its line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.assembly.dialects import DIALECTS
from antiphon.dialects.common.field_table import FieldSupport, FieldTable
from antiphon.dialects.common.fields import FieldScope
from antiphon.dialects.jamai.fields import JamaiScope
from antiphon.dialects.sgp.fields import SgpScope
from antiphon.dialects.sgp.legacy import LegacyScope

USER = {"role": "user", "content": "What is the weather in Berlin?"}
STORY = "Once upon a time there was a"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY},
}
CALLED = {
    "id": "call-1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Berlin"}'},
}
CALL_TALK = [
    USER,
    {"role": "assistant", "tool_calls": [CALLED]},
    {"role": "tool", "tool_call_id": "call-1", "content": '{"weather": "rain"}'},
]
SHORT = {"model": "cantor", "max_tokens": 10, "temperature": 0}
TALK: dict[str, Any] = SHORT | {"messages": [{"role": "user", "content": "Who are you?"}]}
TELL = SHORT | {"prompt": STORY}
TOOLED = SHORT | {"max_tokens": 60, "messages": [USER], "tools": [WEATHER]}


@dataclass(frozen=True)
class Spot:
    """One object of one dialect, in a request."""

    dialect: str
    """Name of its package in `antiphon.dialects`."""
    scope: str
    """As the dialect's book calls it."""
    url: str
    body: Mapping[str, Any]
    """A request in which the object stands."""
    path: tuple[str | int, ...] = field(default=())
    """Where in the request; () is the request itself."""

    @property
    def id(self) -> str:
        return f"{self.dialect} {self.scope}"

    def supports(self, name: str) -> bool:
        """Whether the dialect says that the field acts here."""
        table = books()[self.dialect].tables[self.scope]
        return name in table and table[name].support is FieldSupport.SUPPORTED


def books() -> dict[str, FieldTable]:
    """The book of every dialect that there is. OpenAI's is the one that the others share."""
    return {dialect.name: dialect.field_table for dialect in DIALECTS}


def openai(
    scope: FieldScope, url: str, body: Mapping[str, Any], path: tuple[str | int, ...] = ()
) -> tuple[Spot, ...]:
    return (Spot("openai", scope, url, body, path),)


CHAT = openai(FieldScope.CHAT, "/v1/chat/completions", TALK)
TEXT = openai(FieldScope.TEXT, "/v1/completions", TELL)
MESSAGE = openai(FieldScope.MESSAGE, "/v1/chat/completions", TALK, ("messages", -1))
PART = openai(
    FieldScope.PART,
    "/v1/chat/completions",
    TALK | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}]},
    ("messages", -1, "content", 0),
)
REFUSAL = openai(
    FieldScope.REFUSAL,
    "/v1/chat/completions",
    TALK
    | {"messages": [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER]},
    ("messages", 1, "content", 0),
)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
RECORDING = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
SHOWN = TALK | {"messages": [{"role": "user", "content": [PICTURE]}]}
HEARD = TALK | {"messages": [{"role": "user", "content": [RECORDING]}]}
PART_PATH = ("messages", -1, "content", 0)
IMAGE = openai(FieldScope.IMAGE, "/v1/chat/completions", SHOWN, PART_PATH)
IMAGE_URL = openai(FieldScope.IMAGE_URL, "/v1/chat/completions", SHOWN, (*PART_PATH, "image_url"))
AUDIO = openai(FieldScope.AUDIO, "/v1/chat/completions", HEARD, PART_PATH)
INPUT_AUDIO = openai(FieldScope.INPUT_AUDIO, "/v1/chat/completions", HEARD, (*PART_PATH, "input_audio"))
SPEECH_REFERENCE = openai(
    FieldScope.SPEECH,
    "/v1/chat/completions",
    TALK | {"messages": [USER, {"role": "assistant", "audio": {"id": "audio_1"}}, USER]},
    ("messages", 1, "audio"),
)
TOOL = openai(FieldScope.TOOL, "/v1/chat/completions", TOOLED, ("tools", 0))
FUNCTION = openai(FieldScope.FUNCTION, "/v1/chat/completions", TOOLED, ("tools", 0, "function"))
CALL = openai(
    FieldScope.CALL,
    "/v1/chat/completions",
    TOOLED | {"messages": CALL_TALK},
    ("messages", 1, "tool_calls", 0),
)
CALLED_FUNCTION = openai(
    FieldScope.CALLED,
    "/v1/chat/completions",
    TOOLED | {"messages": CALL_TALK},
    ("messages", 1, "tool_calls", 0, "function"),
)
STREAM = openai(
    FieldScope.STREAM, "/v1/completions", TELL | {"stream": True, "stream_options": {}}, ("stream_options",)
)
RERANK = openai(
    FieldScope.RERANK, "/v1/rerank", {"model": "reranker", "query": "the book", "documents": ["a", "fire"]}
)
EMBEDDINGS = openai(FieldScope.EMBEDDINGS, "/v1/embeddings", {"model": "encoder", "input": "a text"})
TOKENIZE = openai(FieldScope.TOKENIZE, "/tokenize", {"model": "cantor", "prompt": "Who are you?"})
APPLY = openai(
    FieldScope.APPLY,
    "/v1/apply-template",
    {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}]},
)
DETOKENIZE = openai(FieldScope.DETOKENIZE, "/detokenize", {"model": "cantor", "tokens": [300, 301]})
LOAD = openai(
    FieldScope.LOAD, "/v1/load_lora_adapter", {"lora_name": "loaded", "lora_path": "pirate.gguf",
    "base_model_name": "cantor"},
)  # fmt: skip
UNLOAD = openai(FieldScope.UNLOAD, "/v1/unload_lora_adapter", {"lora_name": "loaded"})

EMPOWER = (Spot("empower", "/empower/api/v1/chat/completions", "/empower/api/v1/chat/completions", TALK),)
DEPLOY = (
    Spot("empower", "/empower/api/v1/lora", "/empower/api/v1/lora", {"model_name": "mood.gguf",
         "model_source": "LOCAL", "name": "deployed"}),
)  # fmt: skip

FIREWORKS_CHAT = (
    Spot("fireworks", "/fireworks/inference/v1/chat/completions", "/fireworks/inference/v1/chat/completions",
         TALK),
)  # fmt: skip
FIREWORKS_TEXT = (
    Spot("fireworks", "/fireworks/inference/v1/completions", "/fireworks/inference/v1/completions", TELL),
)

ANTHROPIC = (Spot("messages", "/v1/messages", "/v1/messages", TALK),)
ANTHROPIC_COUNT = (
    Spot("messages", "/v1/messages/count_tokens", "/v1/messages/count_tokens",
         {"model": "cantor", "messages": TALK["messages"]}),
)  # fmt: skip

RESPONSES = (
    Spot("responses", "/v1/responses", "/v1/responses",
         {"model": "cantor", "max_output_tokens": 10, "temperature": 0, "input": "Who are you?"}),
)  # fmt: skip
RESPONSES_COUNT = (
    Spot("responses", "/v1/responses/input_tokens", "/v1/responses/input_tokens",
         {"model": "cantor", "input": "Who are you?"}),
)  # fmt: skip

SGP_CHAT = (Spot("sgp", SgpScope.CHAT, SgpScope.CHAT, TALK),)
SGP_TEXT = (Spot("sgp", SgpScope.TEXT, SgpScope.TEXT, TELL),)
SGP_MESSAGE = (Spot("sgp", SgpScope.MESSAGE, SgpScope.CHAT, TALK, ("messages", -1)),)
SGP_IMAGE_URL = (Spot("sgp", SgpScope.IMAGE_URL, SgpScope.CHAT, SHOWN, (*PART_PATH, "image_url")),)

OLD_SHORT = {"model": "cantor", "model_parameters": {"temperature": 0, "max_tokens": 10}}
OLD_CHAT = (
    Spot("sgp", LegacyScope.CHAT, LegacyScope.CHAT, OLD_SHORT | {"messages": [{"content": "Who are you?"}]}),
)
OLD_TEXT = (Spot("sgp", LegacyScope.TEXT, LegacyScope.TEXT, OLD_SHORT | {"prompt": STORY}),)
OLD_PARAMETERS = tuple(
    Spot("sgp", LegacyScope.PARAMETERS, each.url, each.body, ("model_parameters",))
    for each in (*OLD_CHAT, *OLD_TEXT)
)


def old_part(scope: LegacyScope, part: Mapping[str, Any], *path: str) -> tuple[Spot, ...]:
    """A part of a message of the older API, or an object in it."""
    body = {**OLD_SHORT, "messages": [{"content": [part]}]}
    return (Spot("sgp", scope, LegacyScope.CHAT, body, ("messages", 0, "content", 0, *path)),)


OLD_MESSAGE = (Spot("sgp", LegacyScope.MESSAGE, LegacyScope.CHAT, OLD_CHAT[0].body, ("messages", 0)),)
OLD_PART = old_part(LegacyScope.PART, {"text": "Who are you?"})
OLD_IMAGE_URL = old_part(LegacyScope.IMAGE_URL, PICTURE, "image_url")
OLD_IMAGE_DATA = old_part(
    LegacyScope.IMAGE_DATA, {"image_data": {"data": "AAAA", "media_type": "image/png"}}, "image_data"
)
OLD_PROMPT_IMAGE = (
    Spot("sgp", LegacyScope.PROMPT_IMAGE, LegacyScope.TEXT,
         OLD_SHORT | {"prompt": STORY, "images": [{"image_url": "data:image/png;base64,AAAA"}]},
         ("images", 0)),
)  # fmt: skip
OLD = (
    *OLD_CHAT, *OLD_TEXT, *OLD_PARAMETERS, *OLD_MESSAGE, *OLD_PART, *OLD_IMAGE_URL, *OLD_IMAGE_DATA,
    *OLD_PROMPT_IMAGE,
)  # fmt: skip

JAMAI_CHAT = (Spot("jamai", JamaiScope.CHAT, JamaiScope.CHAT, TALK),)
JAMAI_MESSAGE = (Spot("jamai", JamaiScope.MESSAGE, JamaiScope.CHAT, TALK, ("messages", -1)),)
JAMAI_EMBEDDINGS = (
    Spot("jamai", JamaiScope.EMBEDDINGS, JamaiScope.EMBEDDINGS, {"model": "encoder", "input": "a text"}),
)
JAMAI_RERANK = (
    Spot("jamai", JamaiScope.RERANK, JamaiScope.RERANK,
         {"model": "reranker", "query": "the book", "documents": ["a", "fire"]}),
)  # fmt: skip

CHATS = (*CHAT, *EMPOWER, *FIREWORKS_CHAT, *SGP_CHAT, *JAMAI_CHAT)
"""Conversations of every dialect; a case that names this runs wherever the field is supported."""

TEXTS = (*TEXT, *FIREWORKS_TEXT, *SGP_TEXT)
"""Completions of every dialect."""

GENERATING = (*CHATS, *TEXTS)
OPENAI_TEXTS = (*TEXT, *FIREWORKS_TEXT)
"""Completions of the dialects that take several prompts, and give log-probabilities in arrays."""

SEEDED = tuple(spot for spot in GENERATING if spot.supports("seed"))
"""Where a caller can repeat the draws."""

UNENDED = tuple(spot for spot in GENERATING if spot.supports("ignore_eos"))
"""Where a caller can have generation go on past the end."""

MARKED = tuple(spot for spot in GENERATING if spot.dialect != "sgp")
"""Where a stream ends with [DONE]."""

MESSAGES = MESSAGE
SPOTS = (
    *GENERATING, *MESSAGES, *PART, *REFUSAL, *IMAGE, *IMAGE_URL, *AUDIO, *INPUT_AUDIO, *SPEECH_REFERENCE,
    *TOOL, *FUNCTION, *CALL, *CALLED_FUNCTION, *STREAM, *EMBEDDINGS, *RERANK,
    *TOKENIZE, *APPLY, *DETOKENIZE, *LOAD, *UNLOAD, *DEPLOY, *SGP_MESSAGE, *SGP_IMAGE_URL, *OLD,
    *JAMAI_MESSAGE, *JAMAI_EMBEDDINGS, *JAMAI_RERANK, *ANTHROPIC, *ANTHROPIC_COUNT, *RESPONSES,
    *RESPONSES_COUNT,
)  # fmt: skip
