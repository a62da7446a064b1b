"""Wire types of Empower's requests, answers and errors. Types that Empower's page does not define are
OpenAI's.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    BodyShape,
    ChatMessage,
    ChosenFormat,
    ToolChoiceShape,
    Tools,
)
from antiphon.dialects.common.response_types import FinishName, ToolCallPart, ToolCallShape
from antiphon.domain import fields
from antiphon.domain.fields import Name, Need, PositiveInt

LONGEST_REVISION = 200

LONGEST_TOKEN = 512
"""The most characters of a hub token. Today's tokens have 37."""


class ChatRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /empower/api/v1/chat/completions."""

    messages: Annotated[
        str | Annotated[list[str | ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)],
        Need.TEMPLATE,
        "The conversation as a list of messages, or a text as one message of the "
        "user. In a "
        "list of texts, each is a separate prompt.",
    ]
    model: Annotated[Name, "Name of a deployed LoRA, or of a base model."]
    n: Annotated[fields.Choices, "Choices of each prompt; 1 by default."] = None
    max_tokens: Annotated[PositiveInt | None, "Most tokens of one choice; 256 by default."] = None
    temperature: Annotated[
        fields.Temperature,
        "0 to 2, 1 by default. 0 always takes the most likely token.",
    ] = None
    top_p: Annotated[
        fields.TopP,
        "Only the most likely tokens whose probabilities add up to this; 0 to 1, 1 by default.",
    ] = None
    frequency_penalty: Annotated[
        fields.FrequencyPenalty,
        "Subtracted from a token's logit for each time that it is in the output; -2 to 2, 0 by default.",
    ] = None
    presence_penalty: Annotated[
        fields.PresencePenalty,
        "Subtracted from the logit of each token that is in the output; -2 to 2, 0 by default.",
    ] = None
    ignore_eos: Annotated[
        fields.IgnoreEos,
        "Whether generation continues past the model's end tokens until max_tokens.",
    ] = None
    stream: fields.Stream = None
    tools: Tools = None
    tool_choice: Annotated[
        Literal["none", "auto", "any", "required"] | ToolChoiceShape | None,
        Need.CONSTRAINTS,
        "Whether the model calls: auto, none, any or required (it must call), or one tool by its name.",
    ] = None
    include_thinking: Annotated[
        bool | None,
        Need.REASONING,
        "Whether the content begins with the reasoning, as <thinking>...</thinking>. "
        "Refused if the model does not reason.",
    ] = None
    parallel_tool_calls: fields.ParallelToolCalls = None
    response_format: ChosenFormat = None
    stop: fields.Stop = None
    stop_token_ids: Annotated[
        fields.StopTokenIds, "Token ids that end a choice, besides the model's own."
    ] = None
    seed: fields.Seed = None
    top_k: fields.TopK = None
    min_p: fields.MinP = None
    repetition_penalty: fields.RepetitionPenalty = None
    user: fields.EndUser = None


class DeployRequest(BodyShape, frozen=True, kw_only=True):
    """Body of POST /empower/api/v1/lora."""

    model_name: Annotated[
        Name,
        Need.ADAPTERS,
        "With HF_HUB a repository, OWNER/REPO or OWNER/REPO:FILE.gguf. With LOCAL the path "
        "of a GGUF adapter or PEFT directory, below a directory that the operator allows.",
    ]
    model_source: Annotated[
        Literal["HF_HUB", "LOCAL"],
        Need.ADAPTERS,
        "HF_HUB; or LOCAL, which Empower does not have.",
    ]
    hf_revision: Annotated[
        Annotated[str, Meta(min_length=1, max_length=LONGEST_REVISION)] | None,
        Need.ADAPTERS,
        "A commit, tag or branch; main by default. The server deploys the current commit of it.",
    ] = None
    hf_token: Annotated[
        Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)] | None,
        Need.ADAPTERS,
        "A token of the hub that can read the repository. It is used once and not kept.",
    ] = None
    name: Annotated[Name | None, "The name that callers send as model; model_name by default."] = None
    base_model_name: Annotated[
        Name | None,
        Need.ADAPTERS,
        "The base model. You can leave it out if there is only one. Empower does not have this field.",
    ] = None


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
