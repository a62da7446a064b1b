"""Encodes buffered answers, log-probabilities, references and errors in OpenAI's form.

The log-probabilities of a chat are a list of entries; those of a text are parallel arrays. The
log-probabilities of a prompt have vLLM's form. Lists are encoded in blocks, because objects need several
times as much memory as JSON. `read_retrieval` reads `rag_params`, which asks for an answer from a knowledge
table.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.request_types import RagParams
from antiphon.dialects.common.response_types import (
    AssistantMessage,
    CallExtras,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionTokensDetails,
    ErrorBody,
    ErrorEnvelope,
    FinishName,
    FunctionCall,
    MaybeReferences,
    PromptTokensDetails,
    RankedToken,
    ReferencedChunkShape,
    ReferencesShape,
    SpeechAnswer,
    TextChoice,
    TextLogprobs,
    ThoughtSignature,
    TokenLogprob,
    ToolCallShape,
    TopLogprob,
    UsageShape,
)
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedChoice, CollectedGeneration, Speech
from antiphon.domain.events import FinishReason, Scores, TokenScore, Usage, UsageSource
from antiphon.domain.retrieval import RETRIEVAL_FIELD, ReferencedChunk, References, Retrieval
from antiphon.errors import AntiphonError, BudgetExceeded, InvalidValue, MissingParameter

SERVER_ERROR = 500
"""The lowest HTTP status of a server error."""

TOO_MANY_REQUESTS = 429

CHAT_PREFIX = "chatcmpl-"

TEXT_PREFIX = "cmpl-"

FINISH_NAMES: Mapping[FinishReason, FinishName] = MappingProxyType(
    {
        FinishReason.STOP: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.TOOL_CALLS: "tool_calls",
        FinishReason.CONTENT_FILTER: "content_filter",
    }
)

UNLIKELY = -9999.0
"""OpenAI's log-probability of an extremely unlikely token. JSON has no infinity."""

BLOCK_TOKENS = 256
"""The most tokens that exist as objects at the same time."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

TokenSpelling = Callable[[int, bytes], str]
"""Returns the name of a token, from its id and its bytes."""

LogprobsBuilder = Callable[[Scores], Any]
"""Builds the log-probabilities of a part of a choice, in a dialect's form."""


def read_retrieval(wire: RagParams) -> Retrieval:
    """Returns the retrieval options. Raises MissingParameter without a table, and InvalidValue for an option
    of the reranker without a reranker."""
    if not wire.table_id:
        param = f"{RETRIEVAL_FIELD}.table_id"
        raise MissingParameter(f"{param} is required: name a knowledge table of your project", param=param)
    reranker = wire.reranking_model or None
    if wire.concat_reranker_input and (reranker is None or not wire.rerank):
        param = f"{RETRIEVAL_FIELD}.concat_reranker_input"
        raise InvalidValue(f"{param} is taken only together with reranking_model", param=param)
    return Retrieval(
        wire.table_id,
        wire.search_query.strip(),
        wire.k,
        reranker if wire.rerank else None,
        wire.concat_reranker_input,
        wire.inline_citations,
    )


def build_references(references: References, unknown: tuple[int, ...] = ()) -> ReferencesShape:
    """Builds the references. `unknown`: cited numbers without a chunk."""
    return ReferencesShape(
        chunks=[_build_chunk(chunk, references) for chunk in references.chunks],
        search_query=references.query,
        notes=list(references.notes) or UNSET,
        unknown_citations=list(unknown) or UNSET,
    )


def build_collected_references(generation: CollectedGeneration) -> MaybeReferences:
    """Builds the references of a buffered answer, if it has any."""
    if generation.references is None:
        return UNSET
    return build_references(generation.references, generation.unknown_citations)


def _build_chunk(chunk: ReferencedChunk, references: References) -> ReferencedChunkShape:
    metadata: dict[str, str | float] = {
        **chunk.metadata,
        "rrf_score": chunk.score,
        "project_id": references.project,
        "table_id": references.table,
    }
    if chunk.relevance is not None:
        metadata["relevance_score"] = chunk.relevance
    return ReferencedChunkShape(
        text=chunk.text,
        title=chunk.title,
        page=chunk.page,
        file_name=chunk.file_name,
        file_path=chunk.file_name,
        document_id=chunk.document,
        chunk_id=chunk.id,
        metadata=metadata,
    )


class MetaFields(TypedDict):
    """The fields that are the same in every part of an answer."""

    id: str
    created: int
    model: str


def encode_chat(
    meta: ResponseMeta,
    call: GenerationCall,
    generation: CollectedGeneration,
    unknown_usage: Any = None,  # noqa: ANN401 - the dialect's shape
) -> bytes:
    """Encodes a buffered chat completion. `unknown_usage`: the usage if a vendor does not report it."""
    has_token_ids = call.request.output.token_ids
    choices = [
        ChatChoice(
            index=choice.index,
            message=build_message(choice),
            logprobs=None
            if choice.scores is None
            else build_chat_logprobs(choice.scores, choose_spelling(call)),
            finish_reason=FINISH_NAMES[choice.reason],
            token_ids=list(choice.ids) if has_token_ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatCompletion(
            id=CHAT_PREFIX + meta.id,
            created=meta.created,
            model=meta.model,
            choices=choices,
            usage=build_usage(generation.usage) or unknown_usage,
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
            references=build_collected_references(generation) if generation.references else UNSET,
            **(_encode_prompt_scores(generation)[0] if generation.prompt_scores else {}),
        )
    )


def encode_text(
    meta: ResponseMeta,
    call: GenerationCall,
    generation: CollectedGeneration,
    build_logprobs: LogprobsBuilder | None = None,
) -> bytes:
    """Encodes a buffered text completion. `build_logprobs` builds its log-probabilities, if the form is not
    OpenAI's."""
    output = call.request.output
    build_choice_logprobs = build_logprobs or choose_text_logprobs(call)
    prompt_logprobs = _encode_prompt_scores(generation)
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None if choice.scores is None else build_choice_logprobs(choice.scores),
            finish_reason=FINISH_NAMES[choice.reason],
            prompt_token_ids=list(generation.prompts[choice.index // output.choices])
            if output.token_ids
            else UNSET,
            token_ids=list(choice.ids) if output.token_ids else UNSET,
            **(prompt_logprobs[choice.index // output.choices] if prompt_logprobs else {}),
        )
        for choice in generation.choices
    ]
    return _encode(
        Completion(**build_meta(TEXT_PREFIX, meta), choices=choices, usage=build_usage(generation.usage))
    )


def _encode_prompt_scores(generation: CollectedGeneration) -> list[dict[str, Any]]:
    """Returns the encoded field prompt_logprobs of each prompt. A prompt is encoded once, even if it has
    several choices."""
    return [{"prompt_logprobs": encode_prompt_logprobs(scores)} for scores in generation.prompt_scores]


def build_message(choice: CollectedChoice) -> AssistantMessage:
    has_other_output = bool(choice.calls or choice.refusal) or choice.speech is not None
    content = None if has_other_output and not choice.text else choice.text
    reasoning = choice.reasoning or UNSET
    return AssistantMessage(
        content=content,
        refusal=choice.refusal or None,
        reasoning_content=reasoning,
        reasoning=reasoning,
        tool_calls=build_calls(choice) if choice.calls else UNSET,
        thinking_blocks=list(choice.thinking_blocks) or UNSET,
        audio=UNSET if choice.speech is None else build_speech(choice.speech),
    )


def build_speech(speech: Speech) -> SpeechAnswer:
    """Builds the spoken answer of a choice."""
    return SpeechAnswer(
        id=speech.id or UNSET,
        data=speech.data,
        expires_at=UNSET if speech.expires_at is None else speech.expires_at,
        transcript=speech.transcript,
    )


def build_calls(choice: CollectedChoice) -> list[ToolCallShape]:
    return [
        ToolCallShape(
            id=call.id,
            function=FunctionCall(call.name, call.arguments),
            extra_content=build_extras(call.signature),
        )
        for call in choice.calls
    ]


def build_extras(signature: str | None) -> CallExtras | UnsetType:
    """Builds a vendor's data about a call; UNSET if there is none."""
    return UNSET if signature is None else CallExtras(ThoughtSignature(signature))


def choose_spelling(call: GenerationCall) -> TokenSpelling:
    """Returns the function that names tokens in the log-probabilities of this call."""
    return spell_by_id if call.request.output.names_by_id else spell_by_text


def choose_text_logprobs(call: GenerationCall) -> LogprobsBuilder:
    """Returns the function that builds the log-probabilities of this text completion."""
    is_ranked, spell = bool(call.request.output.logprobs), choose_spelling(call)
    return lambda scores: build_text_logprobs(scores, is_ranked, spell)


def choose_chat_logprobs(call: GenerationCall) -> LogprobsBuilder:
    """Returns the function that builds log-probabilities of this call in the form of chats."""
    spell = choose_spelling(call)
    return lambda scores: build_chat_logprobs(scores, spell)


def build_meta(prefix: str, meta: ResponseMeta) -> MetaFields:
    """Returns the common fields of an answer. `prefix` begins its id."""
    return {"id": prefix + meta.id, "created": meta.created, "model": meta.model}


def build_usage(usage: Usage) -> UsageShape | None:
    """Builds the usage in OpenAI's form. Returns None for an estimate, because callers must get only counted
    numbers."""
    if usage.source is UsageSource.ESTIMATED:
        return None
    accepted_tokens, rejected_tokens = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
    has_prediction = bool(accepted_tokens or rejected_tokens)
    completion: CompletionTokensDetails | UnsetType = UNSET
    if has_prediction or usage.reasoning_tokens or usage.completion_audio_tokens:
        completion = CompletionTokensDetails(
            usage.reasoning_tokens or UNSET,
            usage.completion_audio_tokens or UNSET,
            accepted_tokens if has_prediction else UNSET,
            rejected_tokens if has_prediction else UNSET,
        )
    return UsageShape(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens + usage.completion_tokens,
        PromptTokensDetails(
            usage.cached_tokens,
            usage.cache_write_tokens or UNSET,
            usage.prompt_audio_tokens or UNSET,
            usage.prompt_image_tokens or UNSET,
        ),
        completion,
    )


def encode_error(error: AntiphonError) -> bytes:
    """Encodes an error as `{"error": {"message", "type", "param", "code"}}`. The type is one of OpenAI's
    types, and the code is Antiphon's own."""
    return _encode(ErrorEnvelope(ErrorBody(error.message, get_error_type(error), error.param, error.code)))


def get_error_type(error: AntiphonError) -> str:
    """Returns OpenAI's type of an error, which tells whether the caller or the server caused it."""
    if isinstance(error, BudgetExceeded):
        return error.code
    if error.status >= SERVER_ERROR:
        return "server_error"
    return "rate_limit_error" if error.status == TOO_MANY_REQUESTS else "invalid_request_error"


def spell_token(piece: bytes) -> str:
    r"""Returns a token as text. For incomplete characters it returns OpenAI's form: `bytes:\xe2\x98`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def spell_by_text(_token: int, piece: bytes) -> str:
    return spell_token(piece)


def spell_by_id(token: int, _piece: bytes) -> str:
    """Names a token by its id, as vLLM does with `return_tokens_as_token_ids`."""
    return f"token_id:{token}"


def build_chat_logprobs(scores: Scores, spell: TokenSpelling = spell_by_text) -> ChatLogprobs:
    """Builds one entry per token, with the token's alternatives."""
    return ChatLogprobs(content=encode_list(scores, lambda score: _build_entry(score, spell)))


def build_text_logprobs(
    scores: Scores, has_alternatives: bool, spell: TokenSpelling = spell_by_text
) -> TextLogprobs:
    """Builds OpenAI's arrays of equal length. `has_alternatives`: whether the array of alternatives is
    present instead of null. Each of its items also contains the chosen token."""
    columns: tuple[list[bytes], ...] = ([], [], [], [])
    for block in _split_blocks(scores):
        columns[0].append(_encode([spell(score.token, score.piece) for score in block]))
        columns[1].append(_encode([clamp_logprob(score.logprob) for score in block]))
        columns[2].append(
            _encode([build_top_logprobs(score, spell) for score in block] if has_alternatives else [])
        )
        columns[3].append(_encode([score.offset for score in block]))
    lists: dict[str, Any] = dict(zip(TextLogprobs.__struct_fields__, map(_join_lists, columns), strict=True))
    return TextLogprobs(**(lists if has_alternatives else lists | {"top_logprobs": None}))


def encode_prompt_logprobs(scores: Scores) -> Any:  # noqa: ANN401 - PromptLogprobs, already written
    """Encodes a prompt's tokens by id, as PromptLogprobs."""
    return encode_list(scores, _rank_alternatives)


def encode_list(scores: Scores, build_item: Callable[[TokenScore], object]) -> Any:  # noqa: ANN401 - as of any list
    """Encodes a list with one item per token. `build_item` builds the item of a token."""
    return _join_lists(_encode(list(map(build_item, block))) for block in _split_blocks(scores))


def _rank_alternatives(score: TokenScore) -> dict[str, RankedToken] | None:
    """Returns the token and the likeliest tokens at its position. Raises ValueError if the engine computed no
    ranks."""
    if score.logprob is None:
        return None
    if score.rank is None:
        raise ValueError("the prompt's tokens have no ranks")
    ranked = {score.token: (score.logprob, score.rank, score.piece)}
    rank, previous_value = 0, inf
    for position, (token, piece, value) in enumerate(score.alternatives, start=1):
        rank, previous_value = (position if value < previous_value else rank), value
        ranked.setdefault(token, (value, rank, piece))
    return {
        str(token): RankedToken(logprob=max(value, UNLIKELY), rank=rank, decoded_token=spell_token(piece))
        for token, (value, rank, piece) in ranked.items()
    }


def _build_entry(score: TokenScore, spell: TokenSpelling) -> TokenLogprob:
    """Builds the entry of one token, with its alternatives."""
    alternatives = [
        TopLogprob(token=spell(token, piece), logprob=max(value, UNLIKELY), bytes=list(piece))
        for token, piece, value in score.alternatives
    ]
    value = UNLIKELY if score.logprob is None else max(score.logprob, UNLIKELY)
    token = spell(score.token, score.piece)
    return TokenLogprob(
        token=token,
        logprob=value,
        bytes=list(score.piece),
        top_logprobs=alternatives,
        origin=UNSET if score.origin is None else score.origin.value,
    )


def build_top_logprobs(score: TokenScore, spell: TokenSpelling = spell_by_text) -> dict[str, float] | None:
    """Returns the log-probabilities of the alternatives, keyed by spelling, best first. Of two alternatives
    with the same spelling, only the likelier one is included."""
    if score.logprob is None:
        return None
    top_logprobs: dict[str, float] = {}
    for token, piece, value in (*score.alternatives, (score.token, score.piece, score.logprob)):
        top_logprobs.setdefault(spell(token, piece), max(value, UNLIKELY))
    return top_logprobs


def clamp_logprob(value: float | None) -> float | None:
    """Returns the log-probability as a finite number, or None if there is none."""
    return None if value is None else max(value, UNLIKELY)


def _split_blocks(scores: Iterable[T]) -> Iterator[list[T]]:
    """Yields the scores in lists of at most BLOCK_TOKENS items."""
    remaining = iter(scores)
    while block := list(islice(remaining, BLOCK_TOKENS)):
        yield block


def _join_lists(lists: Iterable[bytes]) -> msgspec.Raw:
    """Joins several encoded JSON lists to one."""
    return msgspec.Raw(b"[%b]" % b",".join(items for encoded in lists if (items := encoded[1:-1])))
