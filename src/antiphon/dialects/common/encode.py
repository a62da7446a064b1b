"""Encodes buffered answers, log-probabilities and errors in OpenAI's form.

A chat has its log-probabilities as a list of entries, a text as parallel arrays; those of a prompt have
vLLM's form. Lists are encoded in blocks, because objects take several times as much memory as JSON.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar

import msgspec
from msgspec import UNSET

from antiphon.dialects.base import GenerationCall, ResponseMeta
from antiphon.dialects.common.response_types import (
    AssistantMessage,
    CachedTokens,
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    ErrorBody,
    ErrorEnvelope,
    FinishName,
    FunctionCall,
    RankedToken,
    ReasoningTokens,
    TextChoice,
    TextLogprobs,
    TokenLogprob,
    ToolCallShape,
    TopLogprob,
    UsageShape,
)
from antiphon.domain.collect import CollectedChoice, CollectedGeneration
from antiphon.domain.events import (
    FinishReason,
    Usage,
)
from antiphon.domain.logprobs import Scores, TokenScore
from antiphon.errors import AntiphonError, BudgetExceeded

SERVER = 500
"""From this status on, the server is at fault."""

TOO_MANY = 429

CHAT_PREFIX = "chatcmpl-"

TEXT_PREFIX = "cmpl-"

FINISHES: Mapping[FinishReason, FinishName] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.TOOL_CALLS: "tool_calls"}
)

UNLIKELY = -9999.0
"""OpenAI's number for an extremely unlikely token. JSON has no infinity."""

BLOCK = 256
"""Tokens that exist as objects at the same time."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class MetaFields(TypedDict):
    """The fields that every part of an answer repeats."""

    id: str
    created: int
    model: str


TokenSpelling = Callable[[int, bytes], str]
"""Names a token by its id and its bytes."""


def encode_chat(head: ResponseMeta, call: GenerationCall, generation: CollectedGeneration) -> bytes:
    """A buffered chat completion."""
    spell, ids = choose_spelling(call), call.request.output.token_ids
    choices = [
        ChatChoice(
            index=choice.index,
            message=build_message(choice),
            logprobs=None if choice.scores is None else build_chat_logprobs(choice.scores, spell),
            finish_reason=FINISHES[choice.reason],
            token_ids=list(choice.ids) if ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        ChatCompletion(
            **build_meta(CHAT_PREFIX, head),
            choices=choices,
            usage=build_usage(generation.usage),
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
            **(_encode_prompt_scores(generation)[0] if generation.prompt_scores else {}),
        )
    )


def encode_text(head: ResponseMeta, call: GenerationCall, generation: CollectedGeneration) -> bytes:
    """A buffered text completion."""
    output, spell = call.request.output, choose_spelling(call)
    scored = _encode_prompt_scores(generation)
    choices = [
        TextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None
            if choice.scores is None
            else build_text_logprobs(choice.scores, bool(output.logprobs), spell),
            finish_reason=FINISHES[choice.reason],
            prompt_token_ids=list(generation.prompts[choice.index // output.choices])
            if output.token_ids
            else UNSET,
            token_ids=list(choice.ids) if output.token_ids else UNSET,
            **(scored[choice.index // output.choices] if scored else {}),
        )
        for choice in generation.choices
    ]
    return _encode(
        Completion(**build_meta(TEXT_PREFIX, head), choices=choices, usage=build_usage(generation.usage))
    )


def _encode_prompt_scores(generation: CollectedGeneration) -> list[dict[str, Any]]:
    """Of each prompt what its scores add to where they stand; written once, however many choices show it."""
    return [{"prompt_logprobs": encode_prompt_logprobs(scores)} for scores in generation.prompt_scores]


def build_message(choice: CollectedChoice) -> AssistantMessage:
    """What a choice of a chat said."""
    calls = [
        ToolCallShape(id=call.id, function=FunctionCall(call.name, call.arguments)) for call in choice.calls
    ]
    content = None if calls and not choice.text else choice.text
    thought = choice.reasoning or UNSET
    return AssistantMessage(
        content=content, reasoning_content=thought, reasoning=thought, tool_calls=calls or UNSET
    )


def choose_spelling(call: GenerationCall) -> TokenSpelling:
    """How log-probabilities name tokens."""
    return spell_by_id if call.token_names else spell_by_text


def build_meta(prefix: str, head: ResponseMeta) -> MetaFields:
    return {"id": prefix + head.id, "created": head.created, "model": head.model}


def build_usage(usage: Usage) -> UsageShape:
    """The usage in OpenAI's form."""
    cached = CachedTokens(usage.cached_tokens)
    thought = ReasoningTokens(usage.reasoning_tokens) if usage.reasoning_tokens else UNSET
    return UsageShape(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, cached, thought)


def encode_error(error: AntiphonError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`. The type is one of OpenAI's; the code is ours."""
    return _encode(ErrorEnvelope(ErrorBody(error.message, error_type(error), error.param, error.code)))


def error_type(error: AntiphonError) -> str:
    """OpenAI's type for the party at fault."""
    if isinstance(error, BudgetExceeded):
        return error.code
    if error.status >= SERVER:
        return "server_error"
    return "rate_limit_error" if error.status == TOO_MANY else "invalid_request_error"


def spell_token(piece: bytes) -> str:
    r"""A token as text. Bytes that are not whole characters are written as OpenAI does: `bytes:\xe2\x98`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def spell_by_text(_token: int, piece: bytes) -> str:
    return spell_token(piece)


def spell_by_id(token: int, _piece: bytes) -> str:
    """The form that vLLM uses with `return_tokens_as_token_ids`."""
    return f"token_id:{token}"


def build_chat_logprobs(scores: Scores, spell: TokenSpelling = spell_by_text) -> ChatLogprobs:
    """One entry per token, with its alternatives."""
    return ChatLogprobs(content=encode_list(scores, lambda score: _build_entry(score, spell)))


def build_text_logprobs(
    scores: Scores, alternatives: bool, spell: TokenSpelling = spell_by_text
) -> TextLogprobs:
    """Four arrays of equal length. The array of alternatives is left out unless some were wanted. It always
    contains the token itself."""
    columns: tuple[list[bytes], ...] = ([], [], [], [])
    for block in _split_blocks(scores):
        columns[0].append(_encode([spell(score.token, score.piece) for score in block]))
        columns[1].append(_encode([clamp_logprob(score.logprob) for score in block]))
        columns[2].append(
            _encode([build_top_logprobs(score, spell) for score in block] if alternatives else [])
        )
        columns[3].append(_encode([score.offset for score in block]))
    made: dict[str, Any] = dict(zip(TextLogprobs.__struct_fields__, map(_join_lists, columns), strict=True))
    return TextLogprobs(**(made if alternatives else made | {"top_logprobs": None}))


def encode_prompt_logprobs(scores: Scores) -> Any:  # noqa: ANN401 - PromptLogprobs, already written
    """A prompt's tokens by id, encoded as PromptLogprobs."""
    return encode_list(scores, _rank_alternatives)


def encode_list(scores: Scores, make: Callable[[TokenScore], object]) -> Any:  # noqa: ANN401 - as of any list
    """The encoded list of what `make` makes of each token."""
    return _join_lists(_encode(list(map(make, block))) for block in _split_blocks(scores))


def _rank_alternatives(score: TokenScore) -> dict[str, RankedToken] | None:
    """The token and the likeliest tokens at its place. Raises ValueError if no ranks were computed."""
    if score.logprob is None:
        return None
    if score.rank is None:
        raise ValueError("the prompt's tokens have no ranks")
    found = {score.token: (score.logprob, score.rank, score.piece)}
    rank, before = 0, inf
    for place, (token, piece, value) in enumerate(score.alternatives, start=1):
        rank, before = (place if value < before else rank), value
        found.setdefault(token, (value, rank, piece))
    return {
        str(token): RankedToken(logprob=max(value, UNLIKELY), rank=rank, decoded_token=spell_token(piece))
        for token, (value, rank, piece) in found.items()
    }


def _build_entry(score: TokenScore, spell: TokenSpelling) -> TokenLogprob:
    best = [
        TopLogprob(token=spell(token, piece), logprob=max(value, UNLIKELY), bytes=list(piece))
        for token, piece, value in score.alternatives
    ]
    value = UNLIKELY if score.logprob is None else max(score.logprob, UNLIKELY)
    token = spell(score.token, score.piece)
    return TokenLogprob(token=token, logprob=value, bytes=list(score.piece), top_logprobs=best)


def build_top_logprobs(score: TokenScore, spell: TokenSpelling = spell_by_text) -> dict[str, float] | None:
    """The alternatives by their spelling, best first. Of two with the same spelling, the likelier one."""
    if score.logprob is None:
        return None
    found: dict[str, float] = {}
    for token, piece, value in (*score.alternatives, (score.token, score.piece, score.logprob)):
        found.setdefault(spell(token, piece), max(value, UNLIKELY))
    return found


def clamp_logprob(value: float | None) -> float | None:
    """The log-probability as a finite number."""
    return None if value is None else max(value, UNLIKELY)


def _split_blocks(scores: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(scores)
    while block := list(islice(rest, BLOCK)):
        yield block


def _join_lists(lists: Iterable[bytes]) -> msgspec.Raw:
    """Several encoded JSON lists as one."""
    return msgspec.Raw(b"[%b]" % b",".join(inner for each in lists if (inner := each[1:-1])))
