"""The JSON shapes of Fireworks' requests, with the types and ranges of its page, whose bounds are inclusive.
What has the same meaning is of OpenAI's wire types. Answers are in `answers`."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.dialects.common.request_types import (
    INT32_MAX,
    MAX_IDS,
    MAX_MESSAGES,
    MAX_TOOLS,
    Bias,
    ChatMessage,
    Choices,
    EndUser,
    Fraction,
    MirostatRate,
    MirostatTarget,
    Name,
    NamedFunction,
    NamedSchema,
    NonNegativeInt,
    Penalty,
    PositiveInt,
    Salt,
    Seed,
    Stop,
    Tags,
    Temperature,
    TokenId,
    ToolShape,
)

MOST_ALTERNATIVES = 5
"""Likeliest tokens at each place; the page's bound."""

MOST_CANDIDATES = 128
"""`top_k`; the page's bound."""

LEAST_BUDGET = 1024
"""Tokens of `thinking.budget_tokens`; Fireworks' bound."""

MAX_IMAGES = 1024
"""Images of one request: more than any prompt has room for."""

PromptText = Annotated[str, Meta(min_length=1)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Candidates = Annotated[int, Meta(ge=1, le=MOST_CANDIDATES)]
Repetition = Annotated[float, Meta(ge=0, le=2)]
MostReasoningTokens = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Budget = Annotated[int, Meta(ge=LEAST_BUDGET, le=INT32_MAX)]
Images = Annotated[list[str], Meta(max_length=MAX_IMAGES)]


class FireworksResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer is: text, any JSON object, JSON of a schema, or a text of a grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar"]
    schema: dict[str, Any] | str | None = None
    """With json_object: the schema of the object, as JSON or as a text of it."""
    json_schema: NamedSchema | str | None = None
    grammar: str | None = None


class ChosenTool(Struct, frozen=True, forbid_unknown_fields=True):
    """One tool that has to be called, by its name, beside the type or as OpenAI says it."""

    type: Literal["function"]
    name: Name | None = None
    function: NamedFunction | None = None


class FireworksThinking(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a model that reasons shall do so, and how many tokens of it there may be."""

    type: Literal["enabled", "disabled"]
    budget_tokens: Budget | None = None


class FireworksCommonRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What text and chat completions share."""

    model: Name
    max_completion_tokens: PositiveInt | None = None
    context_length_exceeded_behavior: Literal["truncate", "error"] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    ignore_eos: bool | None = None
    logprobs: Alternatives | bool | None = None
    top_logprobs: Alternatives | None = None
    mirostat_target: MirostatTarget | None = None
    mirostat_lr: MirostatRate | None = None
    n: Choices | None = None
    response_format: FireworksResponseFormat | None = None
    stop: Stop | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_k: Candidates | None = None
    top_p: Fraction | None = None
    min_p: Fraction | None = None
    typical_p: Fraction | None = None
    logit_bias: Bias | None = None
    seed: Seed | None = None
    return_token_ids: bool | None = None
    user: EndUser | None = None
    metadata: Tags | None = None
    prompt_cache_key: str | None = None
    prompt_cache_isolation_key: Salt | None = None


class FireworksCompletionRequest(
    FireworksCommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Body of POST /fireworks/inference/v1/completions."""

    prompt: (
        PromptText
        | Annotated[list[PromptText | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)]
    )
    max_tokens: NonNegativeInt | None = None
    """0 only together with `echo`."""
    echo: bool | None = None
    images: Annotated[list[str | Images], Meta(max_length=MAX_IMAGES)] | None = None
    """One list, or one for each of several prompts."""


class FireworksChatCompletionRequest(
    FireworksCommonRequest, frozen=True, forbid_unknown_fields=True, kw_only=True
):
    """Body of POST /fireworks/inference/v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: PositiveInt | None = None
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "low", "medium", "high"] | bool | MostReasoningTokens | None = None
    thinking: FireworksThinking | None = None
