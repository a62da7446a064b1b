"""Wire types of Empower's requests, answers and errors. Where Empower's page has no type of its own, it is
OpenAI's.

The chat request has all fields of OpenAI's; `fields` tells which are supported.
"""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.field_table import (
    END_USER,
    FieldTable,
    RequestField,
    declare_refused,
    declare_supported,
)
from antiphon.dialects.common.request_types import (
    MAX_MESSAGES,
    MAX_NAME,
    MAX_TOOLS,
    ChatMessage,
    CommonRequest,
    ToolChoiceShape,
    ToolShape,
)
from antiphon.dialects.common.response_types import FinishName, ToolCallPart, ToolCallShape

PREFIX = "/empower/api/v1"


class EmpowerScope(StrEnum):
    """The object that a field belongs to. Messages and tools are OpenAI's, and stand in its table."""

    CHAT = f"{PREFIX}/chat/completions"
    DEPLOY = f"{PREFIX}/lora"


CHAT = frozenset({EmpowerScope.CHAT})
DEPLOY = frozenset({EmpowerScope.DEPLOY})

ELSEWHERE = "/v1/chat/completions has it"

FIELDS: tuple[RequestField, ...] = (
    *declare_supported(
        CHAT,
        messages="The conversation as a list of messages; or a text, which is one message of the user; or a "
        "list of texts, each a prompt of its own with one message of the user.",
        model="Name of a deployed LoRA, or of a base model.",
        n="Choices of each prompt; 1 by default.",
        max_tokens="Most tokens of one choice; 256 by default.",
        temperature="0 is greedy; 0 to 2, 1 by default.",
        top_p="Smallest set of tokens whose probability reaches this; 0 to 1, 1 by default.",
        frequency_penalty="Taken from a token's logit for each time it is in the output; -2 to 2, 0 by "
        "default.",
        presence_penalty="Taken from the logit of each token that is in the output; -2 to 2, 0 by default.",
        ignore_eos="Whether generation goes on past the model's end tokens until max_tokens.",
        stream="Whether the answer comes as server-sent events.",
        tools="Functions that the model may call, at most 128.",
        tool_choice="Whether it calls: auto, none, any (it must call one; required means the same), or one "
        "tool by its name.",
        include_thinking="Whether the content begins with what the model thought, as "
        "<thinking>...</thinking>; refused where it does not reason.",
        parallel_tool_calls="Whether one turn may make several calls; true by default.",
        response_format="text; json_object, any object or one of `schema`; json_schema, JSON of a schema. "
        "The model is shown none of it: x-antiphon-ignored names the schema's name and description.",
        stop="Texts that end a choice, at most four; cut from its text.",
        stop_token_ids="Token ids that end a choice, besides the model's own.",
        seed="The same seed gives the same draws.",
        top_k="The k likeliest tokens; 0 or -1 keeps all.",
        min_p="Tokens at least this fraction as likely as the likeliest; 0 keeps all.",
        repetition_penalty="Divides positive and multiplies negative logits of tokens in prompt or output; "
        "above 0, at most 2; 1 does nothing.",
    ),
    *declare_supported(CHAT, user=END_USER),
    declare_refused("logit_bias", CHAT, "the page says so; /v1/chat/completions has it", {}),
    declare_refused("function_call", CHAT, "the page says so; send tools and tool_choice", "none", "auto"),
    declare_refused("functions", CHAT, "send tools", []),
    declare_refused("max_completion_tokens", CHAT, "send max_tokens"),
    declare_refused(
        "stream_options", CHAT, "usage always comes with each choice's last chunk; leave it out", {}
    ),
    declare_refused("logprobs", CHAT, ELSEWHERE, False),
    declare_refused("top_logprobs", CHAT, ELSEWHERE, 0),
    declare_refused("reasoning_effort", CHAT, ELSEWHERE),
    declare_refused("best_of", CHAT, "/v1/completions has it", 1),
    declare_refused("echo", CHAT, "a conversation is not repeated; /v1/completions has echo", False),
    declare_refused("use_beam_search", CHAT, "beam search is not built; leave it out", False),
    declare_refused("add_generation_prompt", CHAT, ELSEWHERE, True),
    declare_refused("skip_special_tokens", CHAT, ELSEWHERE, True),
    declare_refused("spaces_between_special_tokens", CHAT, ELSEWHERE, True),
    *declare_supported(
        DEPLOY,
        model_name="With HF_HUB a repository, OWNER/REPO or OWNER/REPO:FILE.gguf; with LOCAL a GGUF adapter "
        "or a directory as PEFT saves it, by its path below a directory that the operator allows.",
        model_source="HF_HUB; or LOCAL, which is Antiphon's own.",
        hf_revision="A commit, tag or branch; main by default; what it is now is deployed.",
        hf_token="A token of the hub that may read the repository; used once and kept nowhere.",
        name="What callers send as model; model_name by default.",
        base_model_name="Antiphon's own: the model that it adapts; may be left out when there is only one.",
    ),
)

FIELD_TABLE = FieldTable(FIELDS, tuple(EmpowerScope), endpoints=tuple(EmpowerScope))
TABLES = FIELD_TABLE.tables
filter_fields = FIELD_TABLE.filter


LONGEST_REVISION = 200
LONGEST_TOKEN = 512
"""Characters of a hub token; today's have 37."""

ModelName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class ChatRequest(CommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/chat/completions."""

    messages: str | Annotated[list[str | ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "any", "required"] | ToolChoiceShape | None = None
    parallel_tool_calls: bool | None = None
    include_thinking: bool | None = None


class DeployRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /empower/api/v1/lora."""

    model_name: ModelName
    model_source: Literal["HF_HUB", "LOCAL"]
    hf_revision: Annotated[str, Meta(min_length=1, max_length=LONGEST_REVISION)] | None = None
    hf_token: Annotated[str, Meta(min_length=1, max_length=LONGEST_TOKEN)] | None = None
    name: ModelName | None = None
    base_model_name: ModelName | None = None


class EmpowerUsageShape(Struct, frozen=True):
    """Tokens; of the whole request, or in a stream of one prompt those of one choice with its prompt."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """Null where it only called tools."""
    tool_calls: list[ToolCallShape] | UnsetType = UNSET


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
    usage: EmpowerUsageShape


class EmpowerDelta(Struct, frozen=True, kw_only=True):
    """What a chunk adds to its choice: the role first, then text or calls, and nothing at the end."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


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
    """With the last part of each choice; of several prompts with the very last, for all of them."""


class FlatError(Struct, frozen=True, kw_only=True):
    """Body of every error response."""

    object: Literal["error"] = "error"
    message: str
    type: str
    param: str | None
    code: str


class StreamedError(Struct, frozen=True):
    """The last event of a stream that broke: OpenAI's clients look for this key, and raise."""

    error: FlatError
