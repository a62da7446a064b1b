"""A conversation: its messages, the tools that a model may call, and its calls.

`estimate_tokens` estimates the tokens of texts that nobody tokenized.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TypeVar

from antiphon.domain.values import Struct, Value

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in one token. English prose has four to five bytes per token with current models; code and
other languages have fewer. So this is a rough estimate."""

SPEECH_PER_TOKEN = 3200
"""Characters of base64 in one token of speech. OpenAI counts 20 tokens for a second, which has 24,000 samples
of two bytes. Compressed recordings have fewer characters, so their estimates are too low."""

OPEN_KEYWORDS = frozenset(
    "additionalProperties patternProperties unevaluatedProperties allOf anyOf oneOf extends if "
    "dependencies dependentSchemas $ref $dynamicRef $recursiveRef".split()
)
"""Keywords beside `properties` that may name other properties."""

PROPERTY_KEYWORDS = frozenset(
    "required minProperties patternProperties propertyNames unevaluatedProperties dependentRequired "
    "dependentSchemas enum const not if".split()
)
"""Keywords that name properties in a schema that declares none."""

OWN_SIGNATURE = "antiphon"
"""How the signature of reasoning begins that no vendor made. Only this server reads it."""


def measure_text(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def measure_speech(data: str) -> int:
    """Converts the length of a recording in base64 to the bytes of a text with as many tokens."""
    return len(data) * BYTES_PER_TOKEN // SPEECH_PER_TOKEN


def estimate_tokens(size: int) -> int:
    """Estimates the tokens of a text of `size` bytes: one for every four bytes, and at least one for any
    text."""
    return -(-size // BYTES_PER_TOKEN)


class CacheControl(Value, frozen=True):
    """A mark in a prompt, up to which the vendor caches the prompt for later requests. It changes no
    answer."""

    lifetime: str | None = None
    """How long the vendor caches the prompt: `5m`, `1h`. With None the vendor decides."""


T = TypeVar("T")

MOST_BUILT = 16
"""The most values that a shared schema remembers: some for all models, and one for each model."""


class SharedSchema:
    """A JSON schema that several requests can have, and what was built from it."""

    __slots__ = ("_built", "schema")

    def __init__(self, schema: Mapping[str, object]) -> None:
        self.schema = schema
        self._built: dict[object, object] = {}

    def remember(self, key: object, build: Callable[[], T]) -> T:
        """Returns what `build` returned for this key. An error is not remembered. Nobody may change the
        value. Any thread can call it."""
        try:
            return self._built[key]  # type: ignore[return-value]
        except KeyError:
            value = build()
        if len(self._built) >= MOST_BUILT:
            self._built.clear()
        self._built[key] = value
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
    """A function as the caller describes it."""

    name: str
    description: str | None = None
    parameters: Mapping[str, object] | None = None
    """The JSON Schema of the tool's arguments, as the model sees it; None if the tool has no arguments."""
    strict: bool = False
    """Whether the caller demands that every keyword of the schema is enforced."""
    supported_schema: Mapping[str, object] | None = dataclasses.field(default=None, compare=False)
    """`parameters` without the unsupported keywords; None if `parameters` has no unsupported keyword."""
    field: str = dataclasses.field(default="tools", compare=False)
    """The caller's name of the schema, for errors."""
    cache_control: CacheControl | None = None
    """The mark after this tool, up to which the vendor caches the prompt; None if there is no mark."""
    deferred: bool = False
    """Whether a message describes the tool to the model, and the beginning of the prompt does not. So a tool
    that is found in the middle of a conversation leaves the cached prefix as it is."""
    shared: SharedSchema | None = dataclasses.field(default=None, compare=False, repr=False)
    """`parameters` with what was built from them; None if this tool's are not shared."""

    def remember(self, key: object, build: Callable[[], T]) -> T:
        """Returns what `build` builds from `parameters`. If they are shared, it is built once."""
        return build() if self.shared is None else self.shared.remember(key, build)

    @property
    def schema(self) -> Mapping[str, object]:
        """The schema that the arguments must satisfy. It always describes an object. It allows undeclared
        properties only if one of its keywords refers to such properties."""
        if self.parameters is None:
            return {"type": "object", "additionalProperties": False}
        schema = self.supported_schema if self.supported_schema is not None else self.parameters
        declared = self.parameters
        names_properties = not declared.get("properties") and any(
            declared.get(name) for name in PROPERTY_KEYWORDS
        )
        is_closed = declared.keys().isdisjoint(OPEN_KEYWORDS) and not names_properties
        return {"type": "object"} | dict(schema) | ({"additionalProperties": False} if is_closed else {})


class ToolChoice(StrEnum):
    """Whether the model may call tools."""

    NONE = "none"
    """The model sees the tools and must not call them."""
    AUTO = "auto"
    """The model decides."""
    REQUIRED = "required"
    """The model must call a tool, and writes no text."""


class Tools(Struct, frozen=True):
    """The tools of one conversation."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = ToolChoice.AUTO
    parallel: bool = True
    """Whether one turn may make several calls."""
    allowed: frozenset[str] | None = None
    """Names of the tools that the model may call; None means all tools. The model sees the other tools, but
    may not call them."""

    @property
    def shown(self) -> tuple[Tool, ...]:
        """The tools that the beginning of the prompt describes."""
        return tuple(tool for tool in self.tools if not tool.deferred)

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the model may call."""
        if self.choice is ToolChoice.NONE:
            return ()
        return tuple(tool for tool in self.tools if self.allowed is None or tool.name in self.allowed)


class ToolCall(Struct, frozen=True):
    """One call that a model made."""

    id: str
    """The id in the message with its result."""
    name: str
    arguments: str
    """JSON, or the beginning of it where the text was cut."""
    signature: str | None = None
    """The vendor's own mark of the call, which the vendor needs back in the next request."""


class MediaKind(StrEnum):
    """The kind of a part that is not text."""

    IMAGE = "image"
    AUDIO = "audio"
    DOCUMENT = "document"
    """A file of text and pictures, such as a PDF. A model that takes none gets its text."""


class TextContent(Value, frozen=True, tag="text"):
    """A text part of a message."""

    text: str
    cache_control: CacheControl | None = None
    """The mark after this part; None if there is no mark."""


class MediaContent(Value, frozen=True, tag="media"):
    """An image or a recording in a message: its bytes, or an address."""

    kind: MediaKind
    media_type: str = ""
    """The type of the bytes: `image/png`, `audio/wav`. Empty for an address."""
    data: str = ""
    """The bytes in base64, as the caller sent them. Empty for an address."""
    url: str = ""
    """An `https:` address, which the vendor opens, or this server for its own models."""
    detail: str | None = None
    """How closely the model looks at an image: `low`, `high`, `auto`."""
    field: str = "messages"
    """The caller's name of the part, for errors: `messages[0].content[1].image_url`."""


Content = TextContent | MediaContent


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """The result of a call."""


class Message(Value, frozen=True):
    """One message. `text` joins its text parts, and never contains control tokens."""

    role: Role
    text: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    """The assistant's calls after its text."""
    tool_call_id: str | None = None
    """The call that a tool's text answers."""
    reasoning: str | None = None
    """The assistant's reasoning before its text, for templates that read it."""
    reasoning_field: str = "reasoning_content"
    """The name of the reasoning field in the caller's message."""
    content: tuple[Content, ...] = ()
    """The parts in their order, if one of them is not text or has a mark; otherwise empty."""
    thinking_blocks: tuple[Mapping[str, object], ...] = ()
    """The vendor's own blocks of reasoning, which the vendor needs back unchanged. `text` and `reasoning` do
    not contain them."""
    speech_id: str | None = None
    """The vendor's id of the assistant's spoken answer. `text` does not contain the spoken words."""
    is_error: bool = False
    """For the result of a call: whether the call failed."""

    @property
    def mixed_content(self) -> tuple[Content, ...]:
        """The parts in their order, if one of them is not text; otherwise empty."""
        return self.content if any(isinstance(part, MediaContent) for part in self.content) else ()
