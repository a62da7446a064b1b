"""Wire types of Empower's requests, answers and errors. Types that Empower's page does not define are
OpenAI's.

The chat request has all fields of OpenAI's request; `fields` lists the supported ones.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    BodyShape,
    ChatMessage,
    CommonRequest,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.dialects.common.response_types import FinishName, ToolCallPart, ToolCallShape

LONGEST_REVISION = 200

LONGEST_TOKEN = 512
"""The most characters of a hub token. Today's tokens have 37."""

ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ChatRequest(CommonRequest, frozen=True, kw_only=True):
    """Body of POST /empower/api/v1/chat/completions."""

    messages: str | Annotated[list[str | ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "any", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    include_thinking: bool | None = None


class DeployRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /empower/api/v1/lora."""

    model_name: ModelName
    model_source: Literal["HF_HUB", "LOCAL"]
    hf_revision: Annotated[str, Meta(min_length=1, max_length=LONGEST_REVISION)] | None = None
    hf_token: Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)] | None = None
    name: ModelName | None = None
    base_model_name: ModelName | None = None


class EmpowerUsageShape(Struct, frozen=True):
    """The tokens of the whole request. In a stream of one prompt: the tokens of the prompt and one choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """The text; null if the model only called tools."""
    tool_calls: list[ToolCallShape] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """The vendor's blocks of reasoning with their signatures, if it sent some. Send them back in the
    message."""


class EmpowerChatChoice(Struct, frozen=True, kw_only=True):
    """One complete choice."""

    index: int
    message: AnswerMessage
    finish_reason: FinishName


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """A buffered answer."""

    id: str
    created: int
    model: str
    choices: list[EmpowerChatChoice]
    usage: EmpowerUsageShape | UnsetType
    """The usage; absent if a vendor does not report it."""


class EmpowerDelta(Struct, frozen=True, kw_only=True):
    """The content that a chunk adds to its choice: the role first, then text or calls. The last chunk adds
    nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """All blocks of the choice, once, before the choice ends."""


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: EmpowerDelta
    finish_reason: FinishName | None = None


class ChatChunk(Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: EmpowerUsageShape | UnsetType = UNSET
    """The usage, in the last chunk of each choice. With several prompts or a vendor's model, only the last
    chunk of the stream contains it, for all choices together. It is missing if a vendor tells none."""


class FlatError(Struct, frozen=True, kw_only=True):
    """Body of every error response."""

    object: Literal["error"] = "error"
    message: str
    type: str
    param: str | None
    code: str


class StreamedError(Struct, frozen=True):
    """The last event of a stream that broke. OpenAI's clients look for this key, and raise an error."""

    error: FlatError
