"""The JSON shapes of OpenAI's answers, buffered and streamed."""

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

FinishName = Literal["stop", "length", "tool_calls", "content_filter"]

OWNER = "antiphon"
"""The owner of the models that this server serves itself. OpenAI's shape needs a name."""


class PromptTokensDetails(Struct, frozen=True):
    """The number of the prompt's tokens by kind."""

    cached_tokens: int
    cache_write_tokens: int | UnsetType = UNSET
    """The tokens that a vendor wrote into its cache, if there are any."""
    audio_tokens: int | UnsetType = UNSET
    """The tokens of recordings, if the engine counts some."""
    image_tokens: int | UnsetType = UNSET
    """The tokens of images, if the engine counts some."""


class CompletionTokensDetails(Struct, frozen=True):
    """The number of the completion's tokens by kind. A number that a vendor does not tell is absent."""

    reasoning_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    accepted_prediction_tokens: int | UnsetType = UNSET
    """The tokens of the prediction that are in the completion."""
    rejected_prediction_tokens: int | UnsetType = UNSET
    """The tokens of the prediction that were computed and are not in the answer. Vendors count them as
    completion tokens. Local models do so only if a setting says it."""


class UsageShape(Struct, frozen=True):
    """The tokens of the whole request: each prompt once, and every choice."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    """The details are present only if one of them is."""


class TopLogprob(Struct, frozen=True, kw_only=True):
    """One of the likeliest tokens at a place."""

    token: str
    r"""The token's text. It is `bytes:\xe2\x98` for part of a character, and the name for a control token."""
    logprob: float
    """The value -9999 means that the token is practically impossible."""
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True, kw_only=True):
    """One token, in the model's raw distribution."""

    top_logprobs: list[TopLogprob]
    """The number of tokens that the caller asked for, best first."""
    origin: Literal["forced", "drafted"] | UnsetType = UNSET
    """`forced`: the schema or grammar left no other token. `drafted`: the token was computed ahead, from a
    prediction or from earlier text, and the draw confirmed it. Absent for all other tokens, and if the engine
    does not tell."""


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a chat's choice, whole or in part."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """The tokens of a text completion's choice, whole or in part, with `echo` the prompt's first."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """The log-probabilities in the model's raw distribution; null for a prompt's first token."""
    top_logprobs: list[dict[str, float] | None] | None
    """The likeliest tokens and the token itself at each place; null if the caller asked for none."""
    text_offset: list[int]
    """The position of the character of the choice's text in which each token begins. In a stream it counts
    from the stream's first chunk."""


class FunctionCall(Struct, frozen=True):
    """The function and its arguments as JSON. If the call was cut, only the beginning of the arguments."""

    name: str
    arguments: str


class ThoughtSignature(Struct, frozen=True):
    """Google's mark of a call, which Google needs back."""

    thought_signature: str


class CallExtras(Struct, frozen=True):
    """What a vendor says about a call. The form is that of Google's OpenAI-compatible API."""

    google: ThoughtSignature


class ToolCallShape(Struct, frozen=True, kw_only=True):
    """One call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    extra_content: CallExtras | UnsetType = UNSET
    """Present only if a vendor gave the call a signature. Send it back with the call."""


class SpeechAnswer(Struct, frozen=True, kw_only=True):
    """A spoken answer."""

    id: str | UnsetType = UNSET
    """The vendor's id. The next request refers to the speech by it."""
    data: str
    """The recording in base64."""
    expires_at: int | UnsetType = UNSET
    """The Unix time until which the vendor keeps the speech."""
    transcript: str


class SpeechPart(Struct, frozen=True, kw_only=True):
    """A part of a spoken answer, as the vendor sends it. The texts of all parts are joined."""

    id: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    """More of one base64 text."""
    transcript: str | UnsetType = UNSET
    expires_at: int | UnsetType = UNSET


class AssistantMessage(Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    """The text; null if the model only called tools, spoke or refused."""
    refusal: str | None = None
    """The model's refusal to answer, if a vendor marks it."""
    reasoning_content: str | UnsetType = UNSET
    """The reasoning before the text. The field is present only if the model reasoned."""
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`, under its newer name."""
    tool_calls: list[ToolCallShape] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """The vendor's blocks of reasoning with their signatures, if it sent some. Send them back in the message:
    the vendor may refuse the next turn without them."""
    audio: SpeechAnswer | UnsetType = UNSET
    """The spoken answer, if the request asks for one."""


class RankedToken(Struct, frozen=True, kw_only=True):
    """A token at one place of a prompt, as vLLM writes it."""

    logprob: float
    rank: int
    """The rank, which is 1 for the likeliest token of all."""
    decoded_token: str
    r"""The token's text. It is `bytes:\xe2\x98` for part of a character, and the name for a control token."""


PromptLogprobs = list[dict[str, RankedToken] | None]
"""One item for each token of a prompt: the token itself, then the likeliest tokens at its place, by their
ids. The item of the first token is null, because no token precedes it."""


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One complete choice of a chat."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, with return_token_ids. There are as many ids as log-probabilities."""


class ReferencedChunkShape(Struct, frozen=True, kw_only=True):
    """A chunk of a knowledge table that the model saw."""

    text: str
    title: str
    page: int | None
    file_name: str
    file_path: str
    """The same as `file_name`."""
    document_id: str
    chunk_id: str
    context: dict[str, str] = {}
    """Further columns of the chunk's row."""
    metadata: dict[str, str | float] = {}
    """The chunk's own metadata, with `rrf_score`, `project_id`, `table_id`, and `relevance_score` if a
    reranker ran."""


class ReferencesShape(Struct, frozen=True, kw_only=True):
    """What was found in a knowledge table. The first chunk is cited as `[@0]`."""

    object: Literal["chat.references"] = "chat.references"
    chunks: list[ReferencedChunkShape] | UnsetType = UNSET
    search_query: str | UnsetType = UNSET
    finish_reason: Literal["stop"] | None = None
    notes: list[str] | UnsetType = UNSET
    """Steps that failed or were left out, one sentence each."""
    unknown_citations: list[int] | UnsetType = UNSET
    """Cited numbers in the answer that belong to no chunk. A stream reports them near its end, in a
    `references` without chunks."""


MaybeReferences = ReferencesShape | UnsetType
"""The references, if the request retrieves."""


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageShape | None
    """The usage; null if a vendor tells none."""
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """The prompt's log-probabilities, with prompt_logprobs."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, with return_token_ids."""
    references: MaybeReferences = UNSET


class FunctionPart(Struct, frozen=True, kw_only=True):
    """The name of a call's function, or more of its arguments. The name is never split."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallPart(Struct, frozen=True, kw_only=True):
    """A part of one call. The first part names the call and the function. Later parts add arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionPart
    extra_content: CallExtras | UnsetType = UNSET
    """As in ToolCallShape, in the first part of a call."""


class Delta(Struct, frozen=True, kw_only=True):
    """The content that a chunk adds to its choice: the role first, then text. The chunk with the finish
    reason adds nothing."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    """The added text; null if a choice begins with a call, with reasoning, with speech or with a
    refusal."""
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The same as `reasoning_content`, under its newer name."""
    refusal: str | UnsetType | None = UNSET
    """More of the refusal, as in AssistantMessage; null at the beginning of a choice."""
    tool_calls: list[ToolCallPart] | UnsetType = UNSET
    thinking_blocks: list[Mapping[str, Any]] | UnsetType = UNSET
    """All blocks of the choice, as in AssistantMessage. They come once, before the choice ends."""
    audio: SpeechPart | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True, kw_only=True):
    """A part of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishName | None = None
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the tokens since the choice's last chunk, with return_token_ids."""


class ChatCompletionChunk(Struct, frozen=True, kw_only=True):
    """One event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageShape | UnsetType | None = UNSET
    """The usage, which is present only if the caller asked for it. It is null until the last chunk, which has
    no choices. That chunk is missing if a vendor tells no usage. With continuous_usage_stats, each chunk
    contains the usage so far."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The prompt's token ids, in the first chunk and with return_token_ids."""
    references: MaybeReferences = UNSET


class TextChoice(Struct, frozen=True, kw_only=True):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: FinishName | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    """The log-probabilities of the choice's prompt, with prompt_logprobs."""
    prompt_token_ids: list[int] | UnsetType = UNSET
    """The token ids of the choice's prompt, with return_token_ids. In a stream the choice's first chunk
    contains them."""
    token_ids: list[int] | UnsetType = UNSET
    """The ids of the choice's tokens, with return_token_ids. In a stream these are the tokens since the
    choice's last chunk."""


class Completion(Struct, frozen=True, kw_only=True):
    """Buffered answer of a text completion; also one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: UsageShape | UnsetType | None = UNSET
    """The usage; null if a vendor tells none. In a stream it is present only if the caller asked for it. Then
    it is null until the last event, which has no choices, and is missing if a vendor tells no usage. With
    continuous_usage_stats, each event contains the usage so far."""


class ErrorBody(Struct, frozen=True):
    """The error and the field at fault."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorEnvelope(Struct, frozen=True):
    """Body of every error response; also the last event of a stream that broke."""

    error: ErrorBody
