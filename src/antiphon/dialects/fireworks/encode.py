"""Encodes answers, log-probabilities and errors in Fireworks' form.

A chunk belongs to one choice. The last chunk of each choice contains the usage of the whole request.
Fireworks' clients accept only numbers, so the first token of an echoed prompt has the log-probability 0.
"""

from collections.abc import Mapping
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.chunks import (
    BaseChatChunkBuilder,
    BaseTextChunkBuilder,
    ChunkBuilder,
    MaybeUsage,
    OpenAIStreamEncoder,
    replace_fields,
)
from antiphon.dialects.common.encode import (
    UNLIKELY,
    MetaFields,
    build_collected_references,
    build_message,
    build_top_logprobs,
    build_usage,
    encode_list,
    spell_token,
)
from antiphon.dialects.common.response_types import Delta, UsageShape
from antiphon.dialects.fireworks.decode import FireworksCall
from antiphon.dialects.fireworks.wire_types import (
    FireworksChatChoice,
    FireworksChatChunkChoice,
    FireworksChatCompletion,
    FireworksChatCompletionChunk,
    FireworksCompletion,
    FireworksErrorBody,
    FireworksErrorEnvelope,
    FireworksFinishName,
    FireworksRankedToken,
    FireworksTextChoice,
    Logprobs,
    TokenEntry,
)
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.events import NO_ID, Finished, FinishReason, Scores, TokenScore, Usage
from antiphon.errors import AntiphonError, BudgetExceeded

_encode = msgspec.json.Encoder().encode

STATUSES: Mapping[int, int] = {415: 400, 431: 400, 504: 408}
"""Fireworks' status for each status that it does not use."""

BUDGET_STATUS = 402
"""Fireworks' status for an exceeded budget. It uses 429 for rates."""

CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHORIZED",
    402: "PAYMENT_REQUIRED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "PAYLOAD_TOO_LARGE",
    429: "RATE_LIMIT_EXCEEDED",
    503: "SERVICE_UNAVAILABLE",
}

INTERNAL_CODE = "INTERNAL_SERVER_ERROR"

MESSAGE_STARTS: Mapping[str, str] = {
    "model_not_found": "Model not found, inaccessible, and/or not deployed",
    "invalid_api_key": "The API key you provided is invalid",
    "context_length_exceeded": "The prompt is too long",
}
"""The starts of Fireworks' error messages. Antiphon's message follows."""

FINISH_NAMES: Mapping[FinishReason, FireworksFinishName] = MappingProxyType(
    {
        FinishReason.STOP: "stop",
        FinishReason.LENGTH: "length",
        FinishReason.TOOL_CALLS: "tool_calls",
        FinishReason.CONTENT_FILTER: "error",
    }
)
"""Fireworks has no reason for a choice that a filter cut. Its clients treat `error` as an incomplete
choice."""

FIRST_LOGPROB = 0.0
"""The log-probability of the first token."""


def encode_text(meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered text completion."""
    build_logprobs, output = LogprobsBuilder(call), call.request.output
    choices = [
        FireworksTextChoice(
            index=choice.index,
            text=choice.text,
            logprobs=None if choice.scores is None else build_logprobs(choice.scores),
            finish_reason=FINISH_NAMES[choice.reason],
            prompt_token_ids=list(generation.prompts[choice.index // output.choices])
            if output.token_ids
            else UNSET,
            token_ids=list(choice.ids) if output.token_ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        FireworksCompletion(**_build_meta(meta), choices=choices, usage=build_usage(generation.usage))
    )


def encode_chat(meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered chat completion."""
    build_logprobs = LogprobsBuilder(call)
    choices = [
        FireworksChatChoice(
            index=choice.index,
            message=build_message(choice),
            logprobs=None if choice.scores is None else build_logprobs(choice.scores),
            finish_reason=FINISH_NAMES[choice.reason],
            token_ids=list(choice.ids) if call.request.output.token_ids else UNSET,
        )
        for choice in generation.choices
    ]
    return _encode(
        FireworksChatCompletion(
            **_build_meta(meta),
            choices=choices,
            usage=build_usage(generation.usage),
            prompt_token_ids=list(generation.prompts[0]) if generation.prompts else UNSET,
            references=build_collected_references(generation),
        )
    )


def _build_meta(meta: ResponseMeta) -> MetaFields:
    """Returns the common fields of an answer. Its id is a UUID without a prefix."""
    parts = (meta.id[begin:end] for begin, end in pairwise((0, 8, 12, 16, 20, None)))
    return {"id": "-".join(parts), "created": meta.created, "model": meta.model}


class LogprobsBuilder:
    """Builds log-probabilities in the form of a call."""

    def __init__(self, call: GenerationCall) -> None:
        self._has_entries = isinstance(call, FireworksCall) and call.has_entries
        self._is_ranked = bool(call.request.output.logprobs)

    def __call__(self, scores: Scores) -> Logprobs:
        return (
            build_entry_logprobs(scores)
            if self._has_entries
            else build_array_logprobs(scores, self._is_ranked)
        )


Part = TypeVar("Part")


class FireworksChunkBuilder(ChunkBuilder[Part], Protocol[Part]):
    """A chunk builder that can also end a failed choice."""

    def build_failure(self, choice: int) -> Part:
        """Builds the last part of a choice that failed."""


class FireworksChatChunkBuilder(BaseChatChunkBuilder[FireworksChatChunkChoice]):
    """Builds a chat's chunks."""

    prefix = ""

    def __init__(self, call: GenerationCall) -> None:
        self._logprobs = LogprobsBuilder(call)

    def build_opening(self, choice: int, content: str | None = "") -> FireworksChatChunkChoice:
        return self.build_part(choice, Delta(role="assistant", content=content))

    def build_part(
        self, choice: int, delta: Delta, scores: Scores = (), reason: FinishReason | None = None
    ) -> FireworksChatChunkChoice:
        logprobs = self._logprobs(scores) if scores else None
        finish_name = None if reason is None else FINISH_NAMES[reason]
        return FireworksChatChunkChoice(
            index=choice, delta=delta, logprobs=logprobs, finish_reason=finish_name
        )

    def build_failure(self, choice: int) -> FireworksChatChunkChoice:
        return FireworksChatChunkChoice(index=choice, delta=Delta(), finish_reason="error")

    def build_chunk(
        self, meta: MetaFields, choices: list[FireworksChatChunkChoice], usage: MaybeUsage
    ) -> FireworksChatCompletionChunk:
        return FireworksChatCompletionChunk(**meta, choices=choices, usage=usage or None)


class FireworksTextChunkBuilder(BaseTextChunkBuilder[FireworksTextChoice]):
    """Builds a text completion's chunks."""

    prefix = ""

    def __init__(self, call: GenerationCall) -> None:
        self._logprobs = LogprobsBuilder(call)

    def build_part(
        self, choice: int, text: str, scores: Scores = (), reason: FinishReason | None = None
    ) -> FireworksTextChoice:
        logprobs = self._logprobs(scores) if scores else None
        finish_name = None if reason is None else FINISH_NAMES[reason]
        return FireworksTextChoice(index=choice, text=text, logprobs=logprobs, finish_reason=finish_name)

    def build_failure(self, choice: int) -> FireworksTextChoice:
        return FireworksTextChoice(index=choice, text="", finish_reason="error")

    def build_chunk(
        self, meta: MetaFields, choices: list[FireworksTextChoice], usage: MaybeUsage
    ) -> FireworksCompletion:
        return FireworksCompletion(**meta, choices=choices, usage=usage or None)


class FireworksStreamEncoder(OpenAIStreamEncoder[Part]):
    """Encodes one stream. The end of each choice is delayed until the usage is known, because the last chunk
    of a choice contains the usage."""

    def __init__(
        self, builder: FireworksChunkBuilder[Part], meta: ResponseMeta, call: GenerationCall
    ) -> None:
        super().__init__(builder, meta, call)
        self._meta = _build_meta(meta)
        self._finishes: dict[int, Finished] = {}
        self._build_failure = builder.build_failure

    def encode_finish(self, event: Finished) -> bytes:
        """Stores the end of the choice until the usage is known. Returns nothing."""
        self._finishes[event.choice] = event
        return b""

    def encode_usage(self, usage: Usage) -> bytes:
        """Encodes the end of each choice, with the usage of the whole request."""
        usage_shape = build_usage(usage)
        return b"".join(self._encode_end(event, usage_shape) for event in self._finishes.values())

    def encode_error(self, error: AntiphonError) -> bytes:
        """Encodes the end of each choice, and then the error. The stream has no `[DONE]`."""
        finish_chunks = b"".join(self._encode_end(event, None) for event in self._finishes.values())
        open_choices = (choice for choice in range(self._choice_count) if choice not in self._finishes)
        failure_chunks = b"".join(
            self._encode_chunk([self._build_failure(choice)]) for choice in open_choices
        )
        return finish_chunks + failure_chunks + b"data: %b\n\n" % encode_fireworks_error(error)

    def _encode_end(self, event: Finished, usage: UsageShape | None) -> bytes:
        """Encodes the last chunk of a choice."""
        part = self._builder.build_closing(event.choice, event.reason, event.scores or ())
        if self._sends_ids:
            part = replace_fields(part, token_ids=event.ids)
        return self._encode_chunk([part], usage)


def build_array_logprobs(scores: Scores, has_alternatives: bool) -> Logprobs:
    """Builds arrays of equal length. `has_alternatives`: whether the array of alternatives is included."""
    has_ids = all(score.token != NO_ID for score in islice(scores, 1))
    return Logprobs(
        tokens=encode_list(scores, lambda score: spell_token(score.piece)),
        token_logprobs=encode_list(scores, _clamp_logprob),
        top_logprobs=encode_list(scores, _build_top_logprobs) if has_alternatives else None,
        text_offset=encode_list(scores, lambda score: score.offset),
        token_ids=encode_list(scores, lambda score: score.token) if has_ids else UNSET,
    )


def build_entry_logprobs(scores: Scores) -> Logprobs:
    """Builds one entry per token, with the token's alternatives."""
    return Logprobs(content=encode_list(scores, _build_entry))


def _build_entry(score: TokenScore) -> TokenEntry:
    """Builds the entry of one token, with its alternatives."""
    alternatives = [
        FireworksRankedToken(
            token=spell_token(piece),
            logprob=max(value, UNLIKELY),
            token_id=_get_id(token),
            bytes=list(piece),
        )
        for token, piece, value in score.alternatives
    ]
    return TokenEntry(
        token=spell_token(score.piece),
        logprob=_clamp_logprob(score),
        token_id=_get_id(score.token),
        bytes=list(score.piece),
        text_offset=score.offset,
        top_logprobs=alternatives,
    )


def _get_id(token: int) -> int | UnsetType:
    """Returns the id of a token; UNSET for a vendor's token, whose id is unknown."""
    return UNSET if token == NO_ID else token


def _build_top_logprobs(score: TokenScore) -> dict[str, float]:
    """Returns the alternatives of a token. The first token of a prompt has only itself."""
    return build_top_logprobs(score) or {spell_token(score.piece): FIRST_LOGPROB}


def _clamp_logprob(score: TokenScore) -> float:
    """Returns the log-probability as a finite number."""
    return FIRST_LOGPROB if score.logprob is None else max(score.logprob, UNLIKELY)


def map_status(error: AntiphonError) -> int:
    if isinstance(error, BudgetExceeded):
        return BUDGET_STATUS
    return STATUSES.get(error.status, error.status)


def encode_fireworks_error(error: AntiphonError) -> bytes:
    """Encodes an error as `{"error": {"message", "param", "code"}}`. The code is one of Fireworks' words."""
    message_start = MESSAGE_STARTS.get(error.code)
    message = f"{message_start}: {error.message}" if message_start else error.message
    return _encode(
        FireworksErrorEnvelope(
            FireworksErrorBody(message, error.param, CODES.get(map_status(error), INTERNAL_CODE))
        )
    )
