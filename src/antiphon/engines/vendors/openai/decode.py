"""Reads OpenAI's answers: whole ones, streams, log-probabilities and errors."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.logprobs import NO_ID, Scores, TokenScore
from antiphon.domain.request import GenerationRequest
from antiphon.engines.vendors.base import StreamFailure, VendorError
from antiphon.engines.vendors.estimate import estimate_usage
from antiphon.engines.vendors.openai.wire_types import (
    AnswerWire,
    ChoiceWire,
    ErrorAnswer,
    ErrorWire,
    LogprobsWire,
    MessageWire,
    ToolCallWire,
    UsageWire,
)
from antiphon.engines.vendors.parameters import shows_reasoning

DONE = b"[DONE]"

FINISHES: Mapping[str, FinishReason] = MappingProxyType(
    {
        "stop": FinishReason.STOP,
        "eos": FinishReason.STOP,
        "length": FinishReason.LENGTH,
        "model_length": FinishReason.LENGTH,
        "tool_calls": FinishReason.TOOL_CALLS,
        "function_call": FinishReason.TOOL_CALLS,
        "content_filter": FinishReason.CONTENT_FILTER,
    }
)

EMPTY = MessageWire()

read_answer = msgspec.json.Decoder(AnswerWire).decode
read_error = msgspec.json.Decoder(ErrorAnswer).decode

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "rate_limit_exceeded": 429,
        "rate_limit_error": 429,
        "insufficient_quota": 429,
        "invalid_request_error": 400,
        "overloaded_error": 503,
        "server_overloaded": 503,
        "engine_unavailable": 503,
    }
)
"""The HTTP status that belongs to a code or type of an error inside a stream."""


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body in another form gives an empty message."""
    try:
        said = read_error(body.strip().removeprefix(b"[").removesuffix(b"]"))
    except msgspec.MsgspecError:
        return VendorError("")
    if said.error is not None:
        return build_error(said.error)
    message = said.message or (said.detail if isinstance(said.detail, str) else "")
    return VendorError(message, str(said.code or said.type or ""))


def build_error(said: ErrorWire | str) -> VendorError:
    """Converts an error in an answer."""
    if isinstance(said, str):
        return VendorError(said)
    code = said.code
    kind = str(code or said.type or "")
    status = code if isinstance(code, int) else STATUSES.get(kind, STATUSES.get(said.type or ""))
    return VendorError(said.message or "", kind, status if status is None or 400 <= status < 600 else None)


class AnswerReader:
    """Reads the choices of one answer, whole or in chunks, and returns their events."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._choices = len(request.prompts) * request.output.choices
        self._shows_reasoning = shows_reasoning(request)
        self._finished: set[int] = set()
        self._calls: dict[tuple[int, int], bool] = {}
        """The calls that have begun, by choice and number. True where arguments have come."""
        self._lengths: dict[int, int] = {}
        """Characters of each choice so far, for the offsets of tokens."""
        self._size = 0
        """Bytes of all output so far."""
        self._usage: UsageWire | None = None
        self._has_started = False
        self.is_complete = False

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """`StreamDecoder.feed`."""
        if data == DONE:
            self.is_complete = True
            return ()
        return list(self.read(read_answer(data)))

    def read(self, answer: AnswerWire) -> Iterator[Event]:
        """Yields the events of a whole answer or of a chunk. Raises StreamFailure and ValueError."""
        if answer.error is not None:
            raise StreamFailure(build_error(answer.error))
        if not self._has_started:
            self._has_started = True
            yield Started(0, source=UsageSource.ESTIMATED)
        if answer.usage is not None:
            self._usage = answer.usage
        for choice in answer.choices:
            yield from self._read_choice(choice)

    def close(self) -> Sequence[Event]:
        """`StreamDecoder.close`."""
        if len(self._finished) < self._choices:
            raise ValueError("the answer ended before its finish")
        return (self._build_usage(),)

    def _read_choice(self, choice: ChoiceWire) -> Iterator[Event]:
        """Yields the events of one choice, or of a part of it."""
        index = choice.index
        if not 0 <= index < self._choices or index in self._finished:
            if choice.finish_reason is None and choice.delta in (None, EMPTY):
                return
            raise ValueError("the answer has a choice that was not asked for, or one twice")
        scores = self._read_scores(choice.logprobs, index) if choice.logprobs is not None else ()
        message = choice.message or choice.delta or EMPTY
        for block in message.thinking_blocks or ():
            yield ThinkingBlock(index, block)
        if thought := message.reasoning_content or message.reasoning:
            self._size += len(thought.encode())
            if self._shows_reasoning:
                yield ReasoningDelta(index, thought)
        text = (message.content or "") + (message.refusal or "") if choice.text is None else choice.text
        if text:
            self._size += len(text.encode())
            self._lengths[index] = self._lengths.get(index, 0) + len(text)
            yield TextDelta(index, text, scores=scores)
            scores = ()
        for at, call in enumerate(message.tool_calls or ()):
            yield from self._read_call(call, index, at)
        if choice.finish_reason is not None:
            self._finished.add(index)
            yield from self._complete_calls(index)
            yield self._finish(index, choice.finish_reason, scores)

    def _finish(self, index: int, reason: str, scores: Scores) -> Finished:
        """Returns the end of a choice. Raises StreamFailure for a reason that is a failure."""
        found = FINISHES.get(reason)
        if found is None:
            raise StreamFailure(VendorError(f"the answer ended with finish_reason {reason}", reason))
        asked = self._request.output.logprobs is not None
        return Finished(index, found, scores=scores if asked else None)

    def _complete_calls(self, choice: int) -> Iterator[Event]:
        """Yields empty arguments for the calls that have none."""
        for (owner, number), has_arguments in self._calls.items():
            if owner == choice and not has_arguments:
                yield ToolCallDelta(choice, number, "{}")

    def _read_call(self, call: ToolCallWire, choice: int, at: int) -> Iterator[Event]:
        """Yields the events of a call, or of a part of it."""
        number = call.index if call.index is not None else at
        key, function = (choice, number), call.function
        if key not in self._calls:
            if not function.name:
                raise ValueError("a call of a tool has no name")
            self._calls[key] = False
            yield ToolCallStarted(
                choice,
                number,
                call.id or f"call_{choice}_{number}",
                function.name,
                signature=_read_signature(call),
            )
        arguments = function.arguments
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        if arguments:
            self._size += len(arguments)
            self._calls[key] = True
            yield ToolCallDelta(choice, number, arguments)

    def _read_scores(self, said: LogprobsWire, index: int) -> Scores:
        """Returns the log-probabilities of a choice's new tokens."""
        if said.content is not None:
            return tuple(
                TokenScore(
                    NO_ID,
                    _get_piece(token.token, token.bytes),
                    token.logprob,
                    tuple(
                        (NO_ID, _get_piece(each.token, each.bytes), each.logprob)
                        for each in token.top_logprobs
                    ),
                )
                for token in said.content
            )
        return tuple(_read_arrays(said, self._lengths.get(index, 0)))

    def _build_usage(self) -> Usage:
        """Returns the vendor's usage, or an estimate if it told none."""
        said = self._usage
        if said is None or said.completion_tokens is None:
            return estimate_usage(self._request, self._size)
        cached = said.prompt_tokens_details and said.prompt_tokens_details.cached_tokens
        thought = said.completion_tokens_details and said.completion_tokens_details.reasoning_tokens
        return Usage(
            said.prompt_tokens, said.completion_tokens, cached or 0, thought or 0, UsageSource.REPORTED
        )


def _read_signature(call: ToolCallWire) -> str | None:
    """Returns Google's mark of a call; None if there is none."""
    google = (call.extra_content or {}).get("google")
    found = google.get("thought_signature") if isinstance(google, dict) else None
    return found if isinstance(found, str) else None


def _get_piece(token: str, piece: list[int] | None) -> bytes:
    """Returns the bytes of a token."""
    return token.encode() if piece is None else bytes(piece)


def _read_arrays(said: LogprobsWire, offset: int) -> Iterator[TokenScore]:
    """Yields the tokens of a text's arrays."""
    tokens, values = said.tokens or [], said.token_logprobs or []
    best = said.top_logprobs or [None] * len(tokens)
    for token, value, others in zip(tokens, values, best, strict=False):
        ranked = sorted((others or {}).items(), key=lambda each: -each[1])
        alternatives = tuple((NO_ID, text.encode(), number) for text, number in ranked)
        yield TokenScore(NO_ID, token.encode(), value, alternatives, offset)
        offset += len(token)
