"""Reads Gemini's answers: whole ones, streams, log-probabilities and errors.

Gemini's signed texts become thinking blocks for the caller. When the caller sends the blocks back, they are
inserted again at their position. The signature of a call is not stored in a block, but in
`ToolCall.signature`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from antiphon.domain.events import (
    NO_ID,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Scores,
    Started,
    TextDelta,
    ThinkingBlock,
    TokenScore,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.request import GenerationRequest
from antiphon.engines.vendors.base import (
    MAX_ERROR_BODY,
    StreamFailure,
    VendorError,
    estimate_usage,
    has_value,
    is_possible,
    read_free_json,
)
from antiphon.engines.vendors.gemini.wire_types import (
    OTHER_KINDS,
    GeminiAnswer,
    GeminiBlock,
    GeminiCandidate,
    GeminiFeedback,
    GeminiFunctionCall,
    GeminiLogprobs,
    GeminiPart,
    GeminiStatus,
    GeminiToken,
    GeminiUsage,
    SignedPart,
)
from antiphon.engines.vendors.parameters import shows_reasoning

FINISHES: Mapping[str, FinishReason] = MappingProxyType(
    {"STOP": FinishReason.STOP, "MAX_TOKENS": FinishReason.LENGTH, "CONTINUATION": FinishReason.LENGTH}
    | dict.fromkeys(
        (
            "SAFETY",
            "RECITATION",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "IMAGE_SAFETY",
            "IMAGE_PROHIBITED_CONTENT",
            "IMAGE_RECITATION",
            "MODEL_ARMOR",
            "ESCALATION",
        ),
        FinishReason.CONTENT_FILTER,
    )
)
"""The finish reason of each of Gemini's reasons that ends an answer. Every other reason is a failure."""

CALLER_FAULTS: Mapping[str, int] = MappingProxyType({"MISSING_THOUGHT_SIGNATURE": 400})
"""The HTTP status of the failures that the caller can correct."""

KEY_INVALID = "API_KEY_INVALID"
"""Gemini's reason for a wrong key, for which its status is 400."""

read_answers = msgspec.json.Decoder(GeminiAnswer | list[GeminiAnswer]).decode
"""Reads an answer, a chunk or an error; or a list of them, which is Gemini's form of a stream without
server-sent events."""


def build_block(offset: int, text: str, thought: bool, signature: str) -> Mapping[str, object]:
    """Returns the block of a signed text. `offset`: the characters before it."""
    block: dict[str, object] = msgspec.to_builtins(GeminiBlock(offset, SignedPart(signature, text, thought)))
    return block


def read_blocks(blocks: Iterable[Mapping[str, object]]) -> Iterator[GeminiBlock | None]:
    """Yields each block. Yields None for a block of another vendor."""
    for block in blocks:
        try:
            yield msgspec.convert(block, GeminiBlock)
        except msgspec.ValidationError:
            yield None


def split_text(text: str, blocks: Iterable[GeminiBlock]) -> list[dict[str, Any]] | None:
    """Splits the text into parts, and adds the signatures to the signed parts. Returns None if the text does
    not contain a signed text at its position, because the caller has changed it."""
    parts: list[dict[str, Any]] = []
    end = 0
    for block in sorted(blocks, key=lambda block: block.at):
        signed = block.part.text
        if block.at < end or text[block.at : block.at + len(signed)] != signed or block.at > len(text):
            return None
        if block.at > end:
            parts.append({"text": text[end : block.at]})
        parts.append(encode_part(block.part))
        end = block.at + len(signed)
    if end < len(text):
        parts.append({"text": text[end:]})
    return parts


def encode_part(part: SignedPart) -> dict[str, Any]:
    """Returns a signed part as Gemini sent it, even with an empty text."""
    encoded: dict[str, Any] = {"text": part.text, "thoughtSignature": part.thought_signature}
    return encoded | ({"thought": True} if part.thought else {})


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body that cannot be read, or is too large for an error, gives an empty
    message."""
    if len(body) > MAX_ERROR_BODY:
        return VendorError("")
    try:
        answers = read_answers(body)
    except msgspec.MsgspecError:
        return VendorError("")
    answer_list = answers if isinstance(answers, list) else [answers]
    status = next((answer.error for answer in answer_list if answer.error is not None), None)
    return VendorError("") if status is None else build_error(status)


def build_error(error: GeminiStatus) -> VendorError:
    """Converts an error."""
    details = read_free_json(error.details, list[Any]) if has_value(error.details) else []
    details = [detail for detail in details if isinstance(detail, dict)]
    if any(detail.get("reason") == KEY_INVALID for detail in details):
        return VendorError(error.message, KEY_INVALID, 401)
    delays = (_read_seconds(detail.get("retryDelay")) for detail in details)
    retry_after = next((seconds for seconds in delays if seconds is not None), None)
    status = error.code if error.code is not None and 400 <= error.code < 600 else None
    return VendorError(error.message, error.status, status, retry_after)


def _read_seconds(duration: object) -> float | None:
    """Returns the seconds of a duration, which is written as `17.5s`; None if the value is no duration."""
    if not isinstance(duration, str) or not duration.endswith("s"):
        return None
    try:
        seconds = float(duration[:-1])
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


class GeminiDecoder:
    """Reads one answer, whole or in chunks, and returns its events."""

    is_complete = False
    """Gemini has no mark of the end: an answer ends with its body."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._candidates = [CandidateDecoder(request, index) for index in range(request.output.choices)]
        self._usage: GeminiUsage | None = None
        self._has_started = False

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """`StreamDecoder.feed`."""
        answers = read_answers(data)
        if isinstance(answers, GeminiAnswer):
            return list(self.read(answers))
        return [event for answer in answers for event in self.read(answer)]

    def read(self, answer: GeminiAnswer) -> Iterator[Event]:
        """Yields the events of a whole answer or of a chunk. Raises StreamFailure and ValueError."""
        if answer.error is not None:
            raise StreamFailure(build_error(answer.error))
        if answer.prompt_feedback is not None and not answer.candidates:
            _require_unblocked(answer.prompt_feedback)
        if not self._has_started:
            self._has_started = True
            yield Started(0, source=UsageSource.ESTIMATED)
        if answer.usage_metadata is not None:
            self._usage = answer.usage_metadata
        for candidate in answer.candidates:
            if not 0 <= candidate.index < len(self._candidates):
                raise ValueError("the answer has a candidate that was not asked for")
            yield from self._candidates[candidate.index].read(candidate, answer.response_id)

    def close(self) -> Sequence[Event]:
        """`StreamDecoder.close`."""
        if not all(candidate.is_finished for candidate in self._candidates):
            raise ValueError("the answer ended before its finish")
        return (self._build_usage(),)

    def _build_usage(self) -> Usage:
        """Returns Gemini's usage. Returns an estimate if Gemini reported none, or impossible numbers."""
        reported = self._usage
        size = sum(candidate.byte_count for candidate in self._candidates)
        if reported is None or reported.prompt_token_count is None:
            return estimate_usage(self._request, size)
        if reported.candidates_token_count is None and reported.thoughts_token_count is None and size:
            return estimate_usage(self._request, size)
        thoughts = reported.thoughts_token_count or 0
        usage = Usage(
            reported.prompt_token_count + (reported.tool_use_prompt_token_count or 0),
            (reported.candidates_token_count or 0) + thoughts,
            reported.cached_content_token_count or 0,
            thoughts,
            UsageSource.REPORTED,
        )
        return usage if is_possible(usage) else estimate_usage(self._request, size)


def _require_unblocked(feedback: GeminiFeedback) -> None:
    """Raises StreamFailure if the prompt was refused."""
    reason = feedback.block_reason
    if reason is None:
        return
    detail = f": {feedback.block_reason_message}" if feedback.block_reason_message else ""
    raise StreamFailure(VendorError(f"the prompt was blocked ({reason}){detail}", reason, 400))


class CandidateDecoder:
    """Reads one candidate, which is one choice of the answer."""

    def __init__(self, request: GenerationRequest, index: int) -> None:
        self._request = request
        self._index = index
        self._shows_reasoning = shows_reasoning(request)
        self._asks_scores = request.output.logprobs is not None
        self._scores: list[TokenScore] = []
        """Log-probabilities that no event contains yet."""
        self._scored_length = 0
        """Characters of the scored tokens."""
        self._text_length = 0
        """Characters of text."""
        self._reasoning_length = 0
        """Characters of reasoning."""
        self._call_count = 0
        self.byte_count = 0
        """Bytes of all output."""
        self._finish_reason: str | None = None
        """Gemini's reason, once it has arrived."""

    @property
    def is_finished(self) -> bool:
        return self._finish_reason is not None

    def read(self, candidate: GeminiCandidate, response_id: str | None) -> Iterator[Event]:
        """Yields the events of the candidate, or of a part of it. Raises StreamFailure for a finish reason
        that means a failure, and ValueError for invalid content or a second, different finish reason."""
        if self._asks_scores and candidate.logprobs_result is not None:
            self._scores += self._read_scores(candidate.logprobs_result)
        if candidate.content is not None:
            for part in candidate.content.parts:
                yield from self._read_part(part, response_id)
        reason = candidate.finish_reason
        if reason and self._finish_reason not in (None, reason):
            raise ValueError("the answer has two finish reasons for one candidate")
        if reason is not None and not self.is_finished:
            self._finish_reason = reason
            yield self._finish(reason, candidate.finish_message)

    def _read_part(self, part: GeminiPart, response_id: str | None) -> Iterator[Event]:
        """Yields the events of one part."""
        if part.function_call is not None:
            yield from self._read_call(part.function_call, part.thought_signature, response_id)
        elif part.text is None and any(has_value(getattr(part, kind)) for kind in OTHER_KINDS):
            raise ValueError("the answer has a part that is neither text nor a call")
        elif part.text or part.thought_signature:
            yield from self._read_text(part.text or "", part)

    def _read_text(self, text: str, part: GeminiPart) -> Iterator[Event]:
        """Yields the events of a text or of a thought, and of its signature."""
        self._require_unfinished()
        index, offset = self._index, self._reasoning_length if part.thought else self._text_length
        self.byte_count += len(text.encode())
        if part.thought:
            self._reasoning_length += len(text)
            if text and self._shows_reasoning:
                yield ReasoningDelta(index, text, scores=self._take_scores())
        elif text:
            self._text_length += len(text)
            yield TextDelta(index, text, scores=self._take_scores())
        if part.thought_signature:
            yield ThinkingBlock(index, build_block(offset, text, part.thought, part.thought_signature))

    def _read_call(
        self, call: GeminiFunctionCall, signature: str | None, response_id: str | None
    ) -> Iterator[Event]:
        """Yields the events of a call. Raises ValueError for a partial call, because requests never ask for
        partial calls."""
        self._require_unfinished()
        if not call.name or has_value(call.partial_args) or call.will_continue:
            raise ValueError("a call has no name, or comes in pieces")
        arguments = msgspec.json.format(call.args, indent=-1).decode() if bytes(call.args) else "{}"
        if not arguments.startswith("{"):
            raise ValueError("the arguments of a call are not an object")
        call_index = self._call_count
        self._call_count += 1
        self.byte_count += len(arguments)
        index = self._index
        call_id = call.id or self._make_id(call_index, response_id)
        yield ToolCallStarted(
            index, call_index, call_id, call.name, scores=self._take_scores(), signature=signature
        )
        yield ToolCallDelta(index, call_index, arguments)

    def _make_id(self, call_index: int, response_id: str | None) -> str:
        """Returns an id for a call without one. The id contains the answer's id, or, if the answer has none,
        the number of earlier calls in the conversation."""
        base = response_id or str(_count_calls(self._request))
        return f"call_{base}_{self._index}_{call_index}"

    def _require_unfinished(self) -> None:
        """Raises ValueError for content after the finish."""
        if self.is_finished:
            raise ValueError("the answer has content after its finish")

    def _finish(self, reason: str, message: str | None) -> Finished:
        """Returns the end of the candidate. Raises StreamFailure for a reason that is a failure."""
        finish_reason = FINISHES.get(reason)
        if finish_reason is None:
            detail = f": {message}" if message else ""
            status = CALLER_FAULTS.get(reason)
            raise StreamFailure(
                VendorError(f"the answer ended with finishReason {reason}{detail}", reason, status)
            )
        if finish_reason is FinishReason.STOP and self._call_count:
            finish_reason = FinishReason.TOOL_CALLS
        return Finished(self._index, finish_reason, scores=self._take_scores() if self._asks_scores else None)

    def _take_scores(self) -> Scores:
        """Removes and returns the log-probabilities that no event contains yet."""
        scores, self._scores = tuple(self._scores), []
        return scores

    def _read_scores(self, logprobs: GeminiLogprobs) -> Iterator[TokenScore]:
        """Yields the log-probabilities of new tokens."""
        for position, token in enumerate(logprobs.chosen_candidates):
            top = (
                logprobs.top_candidates[position].candidates
                if position < len(logprobs.top_candidates)
                else ()
            )
            yield TokenScore(
                *_read_token(token),
                tuple(
                    (token_id, piece, value)
                    for token_id, piece, value in map(_read_token, top)
                    if value is not None
                ),
                self._scored_length,
            )
            self._scored_length += len(token.token)


def _read_token(token: GeminiToken) -> tuple[int, bytes, float | None]:
    """Returns a token's id, bytes and log-probability."""
    token_id = NO_ID if token.token_id is None else token.token_id
    return token_id, token.token.encode(), token.log_probability


def _count_calls(request: GenerationRequest) -> int:
    """Returns the number of calls in the messages of a request."""
    return sum(
        len(message.tool_calls) for prompt in request.prompts for message in getattr(prompt, "messages", ())
    )
