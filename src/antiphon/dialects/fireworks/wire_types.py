"""The JSON types of Fireworks' requests, answers and errors. Parts with the same meaning in OpenAI's format
use OpenAI's types.

Types and ranges of requests are those of Fireworks' page. Its bounds are inclusive.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.common.request_types import (
    BodyShape,
    Memory,
    Messages,
    NamedFunction,
    NamedSchema,
    PredictionShape,
    Rag,
    Tools,
)
from antiphon.dialects.common.response_types import AssistantMessage, Delta, MaybeReferences, UsageShape
from antiphon.domain import fields
from antiphon.domain.fields import INT32_MAX, MAX_IDS, Name, Need, NonNegativeInt, PositiveInt, TokenId

MOST_ALTERNATIVES = 5
"""The most alternatives at each position, as on the page."""

MOST_CANDIDATES = 128
"""The largest `top_k`, as on the page."""

LEAST_BUDGET = 1024
"""The smallest `thinking.budget_tokens`, as at Fireworks."""

MAX_IMAGES = 1024
"""The most images of one request. No prompt can contain as many."""

PromptText = Annotated[str, Meta(min_length=1)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Candidates = Annotated[int, Meta(ge=1, le=MOST_CANDIDATES)]
MostReasoningTokens = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Budget = Annotated[int, Meta(ge=LEAST_BUDGET, le=INT32_MAX)]
Images = Annotated[list[str], Meta(max_length=MAX_IMAGES)]


class FireworksResponseFormat(BodyShape, frozen=True):
    """The form of an answer: text, any JSON object, JSON that satisfies a schema, or text that satisfies a
    grammar."""

    type: Literal["text", "json_object", "json_schema", "grammar"]
    schema: dict[str, Any] | str | None = None
    """With json_object: the schema of the object, as JSON or as a text that contains JSON."""
    json_schema: NamedSchema | str | None = None
    grammar: str | None = None


class ChosenTool(BodyShape, frozen=True):
    """One tool that the model must call. Its name is beside the type, or in OpenAI's form."""

    type: Literal["function"]
    name: Name | None = None
    function: NamedFunction | None = None


class FireworksThinking(BodyShape, frozen=True):
    """Whether a model that can reason does so, and the most tokens of reasoning."""

    type: Literal["enabled", "disabled"]
    budget_tokens: Budget | None = None


class FireworksCommonRequest(BodyShape, frozen=True, kw_only=True):
    """The fields that text and chat completions share."""

    model: Annotated[
        Name,
        "Name of a model, also as accounts/fireworks/models/NAME, or an alias of the settings.",
    ]
    context_length_exceeded_behavior: Annotated[
        Literal["truncate", "error"] | None,
        Need.TOKENS,
        "What happens if max_tokens does not fit together with the prompt:"
        " truncate (the default) lowers it, error is a 400. The prompt is "
        "never shortened.",
    ] = None
    frequency_penalty: Annotated[
        fields.FrequencyPenalty,
        "Subtracted from a token's logit for each time that it is in the output; -2 to 2, 0 by default.",
    ] = None
    ignore_eos: Annotated[
        fields.IgnoreEos,
        "Whether generation continues past the model's end tokens until max_tokens; false by default.",
    ] = None
    logprobs: Annotated[
        Alternatives | bool | None,
        Need.TOKENS,
        "A number from 0 to 5: arrays with each token's log-probability and this "
        "many of the most"
        " likely tokens. With true: entries as in OpenAI's chats, with top_logprobs of the most "
        "likely. Values are before bias, penalties, temperature and cuts.",
    ] = None
    mirostat_lr: fields.MirostatLr = None
    mirostat_target: Annotated[
        fields.MirostatTarget,
        "The surprise of each token, in bits, that Mirostat (version 2) aims at; 1.5 if you"
        " send only mirostat_lr. Without either, Mirostat is off.",
    ] = None
    n: Annotated[
        fields.Choices,
        "Choices of each prompt, 1 to 128; 1 by default. Prompts times n are at most 256.",
    ] = None
    presence_penalty: Annotated[
        fields.PresencePenalty,
        "Subtracted from the logit of each token that is in the output; -2 to 2, 0 by default.",
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0, le=2)] | None,
        Need.TOKENS,
        "Divides the positive logits, and multiplies the negative logits, of tokens in "
        "the prompt or the output. 0 to 2. 1, the default, does nothing. 0 counts as a "
        "millionth.",
    ] = None
    response_format: Annotated[
        FireworksResponseFormat | None,
        Need.CONSTRAINTS,
        "text; json_object, any object or one of `schema`; json_schema; grammar, in "
        "llama.cpp's notation (GBNF) or Lark's. A local model does not see it, and ignores "
        "its name and description. A vendor gets it unchanged.",
    ] = None
    stop: Annotated[
        fields.Stop,
        "Texts that end a choice, at most four. The stop text stays in the choice.",
    ] = None
    stream: Annotated[
        fields.Stream,
        "Whether the answer comes as server-sent events, with the usage in each choice's "
        "last; false by default.",
    ] = None
    temperature: Annotated[
        fields.Temperature,
        "0 to 2, 1 by default. 0 always takes the most likely token.",
    ] = None
    top_k: Annotated[
        Candidates | None,
        Need.TOKENS,
        "Only the k most likely tokens, 1 to 128; all by default.",
    ] = None
    top_p: Annotated[
        fields.TopP,
        "Only the most likely tokens whose probabilities add up to this; 0 to 1, 1 by default.",
    ] = None
    user: fields.EndUser = None
    metadata: fields.Tags = None
    max_completion_tokens: Annotated[
        PositiveInt | None,
        "The newer name of max_tokens. You can send both if they are equal.",
    ] = None
    top_logprobs: Annotated[
        Alternatives | None,
        Need.TOKENS,
        "How many of the most likely tokens you get at each place, 0 to 5. Only "
        "together with "
        "logprobs: true.",
    ] = None
    logit_bias: fields.LogitBias = None
    min_p: fields.MinP = None
    typical_p: fields.TypicalP = None
    seed: fields.Seed = None
    return_token_ids: Annotated[
        fields.ReturnTokenIds,
        "Whether you get the ids of the prompt's and the completion's tokens.",
    ] = None
    prompt_cache_isolation_key: Annotated[
        fields.CacheSalt,
        "Computed prompts are shared only with requests of the same project and key.",
    ] = None
    prompt_cache_key: fields.PromptCacheKey = None
    service_tier: fields.ServiceTier = None
    prediction: Annotated[
        str | PredictionShape | None,
        Need.PREDICTIONS,
        "A text that the answer probably repeats, or {type: content, content: the "
        "text}. It "
        "makes the answer faster and never changes it (predictions.md). A model that lacks it "
        "refuses it.",
    ] = None
    speculation: Annotated[
        str | Annotated[list[TokenId], Meta(max_length=MAX_IDS)] | None,
        Need.PREDICTIONS,
        "The older name of prediction: a text, or token ids, which vendors' models refuse. "
        "Send one of the two.",
    ] = None


MAX_TOKENS = "Most tokens of one choice: 16 by default, 200 in a chat. 0 only with echo."


class FireworksCompletionRequest(FireworksCommonRequest, frozen=True, kw_only=True):
    """Body of POST /fireworks/inference/v1/completions."""

    prompt: Annotated[
        PromptText
        | Annotated[list[PromptText | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)],
        "A text, a list of texts, token ids, or a list of lists of them. Several prompts "
        "give several choices, in order. Control tokens are possible.",
    ]
    max_tokens: Annotated[NonNegativeInt | None, MAX_TOKENS] = None
    echo: Annotated[
        bool | None,
        Need.TOKENS,
        "Whether the text begins with the prompt; false by default. With logprobs its tokens are scored too.",
    ] = None
    images: Annotated[
        Annotated[list[str | Images], Meta(max_length=MAX_IMAGES)] | None,
        Need.VISION,
        "data: URLs with base64, one for each <image> of the only prompt. For a vendor's model, prompt and "
        "images become one message of the user. A model that takes only text refuses them.",
    ] = None
    """One list of images, or one list for each of several prompts."""


class FireworksChatCompletionRequest(FireworksCommonRequest, frozen=True, kw_only=True):
    """Body of POST /fireworks/inference/v1/chat/completions."""

    messages: Annotated[Messages, Need.TEMPLATE, "The conversation so far."]
    max_tokens: Annotated[PositiveInt | None, MAX_TOKENS] = None
    tools: Tools = None
    tool_choice: Annotated[
        Literal["none", "auto", "required", "any"] | ChosenTool | None,
        Need.CONSTRAINTS,
        "Whether the model calls: auto, none, required or any (it must call), or one tool by its name.",
    ] = None
    parallel_tool_calls: fields.ParallelToolCalls = None
    reasoning_effort: Annotated[
        Literal["none", "low", "medium", "high"] | bool | MostReasoningTokens | None,
        Need.REASONING,
        "How much the model reasons: low, medium (true), high or none (false). A number is"
        " the most tokens of reasoning. If the model does not have an effort, this is "
        "refused.",
    ] = None
    thinking: Annotated[
        FireworksThinking | None,
        Need.REASONING,
        "Reasoning in Anthropic's form: an object of `type`, enabled or disabled, and "
        "`budget_tokens`, at least 1024. Not together with reasoning_effort.",
    ] = None
    memory_strategy: Memory = None
    rag_params: Rag = None


FireworksFinishName = Literal["stop", "length", "tool_calls", "error"]
"""The reason why a choice ended. `error` ends a choice of a stream that broke, and one that a vendor's filter
cut."""


class FireworksRankedToken(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    r"""The token's text. It is `bytes:\xe2\x98` for part of a character, and the name for a control token."""
    logprob: float
    """The value -9999 means that the token is practically impossible."""
    token_id: int | UnsetType = UNSET
    """Absent for tokens of a vendor's model, because vendors do not report ids."""
    bytes: list[int]


class TokenEntry(FireworksRankedToken, frozen=True, kw_only=True):
    """One token, in the model's raw distribution."""

    text_offset: int
    """The position of the character of the choice's text in which the token begins. In a stream it counts
    from the stream's first chunk."""
    top_logprobs: list[FireworksRankedToken]
    """The number of tokens that the caller asked for, best first."""


class Logprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a choice, whole or in part. They are arrays of equal length if `logprobs` was a number,
    and a list of entries if it was true. With `echo` the prompt's tokens come first."""

    tokens: list[str] | UnsetType = UNSET
    token_logprobs: list[float] | UnsetType = UNSET
    """The log-probabilities in the model's raw distribution. The value is 0 for a prompt's first token,
    because no token precedes it."""
    top_logprobs: list[dict[str, float]] | UnsetType | None = UNSET
    """The likeliest tokens and the token itself at each place; null if the caller asked for none."""
    text_offset: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    """The ids, except for tokens of a vendor's model."""
    content: list[TokenEntry] | UnsetType = UNSET


class FireworksTextChoice(Struct, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The token ids of the choice's prompt, with return_token_ids. In a stream the choice's first chunk
    contains them."""
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, with return_token_ids. In a stream these are the tokens since the
    choice's last chunk."""


class FireworksCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[FireworksTextChoice]
    usage: UsageShape | None = None
    """The usage. In a stream it is null until a choice ends, and then it is the usage of the whole
    request."""


class FireworksChatChoice(Struct, frozen=True, kw_only=True):
    """One choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, as in FireworksTextChoice."""


class FireworksChatCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[FireworksChatChoice]
    usage: UsageShape | None
    """The usage; null if a vendor tells none."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, with return_token_ids."""
    references: MaybeReferences = UNSET


class FireworksChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: FireworksFinishName | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, as in FireworksTextChoice."""


class FireworksChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[FireworksChatChunkChoice]
    usage: UsageShape | None = None
    """The usage, as in FireworksCompletion."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, in the first chunk and with return_token_ids."""
    references: MaybeReferences = UNSET


class FireworksErrorBody(Struct, frozen=True):
    """The error and the field at fault."""

    message: str
    param: str | None
    """The name of the wrong field."""
    code: str


class FireworksErrorEnvelope(Struct, frozen=True):
    """Body of every error response; also the last event of a stream that broke."""

    error: FireworksErrorBody
