"""Where fields stand: for each object of each dialect a request that holds it. A dialect's new object gets
its line here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from antiphon import dialects
from antiphon.dialects.common.field_table import FieldSupport, FieldTable
from antiphon.dialects.common.fields import FieldScope

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
SHORT = {"model": "cantor", "max_tokens": 16, "temperature": 0}
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
    found = {}
    for module in iter_modules(dialects.__path__, f"{dialects.__name__}."):
        name = module.name.rpartition(".")[2]
        if module.ispkg and name != "common":
            scope = f"{dialects.__name__}.{'common' if name == 'openai' else name}.fields"
            found[name] = import_module(scope).FIELD_TABLE
    return found


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

CHATS = (*CHAT, *EMPOWER, *FIREWORKS_CHAT)
"""Conversations of every dialect; a case that names this runs wherever the field is supported."""

TEXTS = (*TEXT, *FIREWORKS_TEXT)
"""Completions of every dialect."""

GENERATING = (*CHATS, *TEXTS)
MESSAGES = MESSAGE
SPOTS = (
    *GENERATING, *MESSAGES, *PART, *REFUSAL, *IMAGE, *IMAGE_URL, *AUDIO, *INPUT_AUDIO,
    *TOOL, *FUNCTION, *CALL, *CALLED_FUNCTION, *STREAM, *EMBEDDINGS,
    *TOKENIZE, *APPLY, *DETOKENIZE, *LOAD, *UNLOAD, *DEPLOY,
)  # fmt: skip
