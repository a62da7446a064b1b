"""Encodes answers and streams of the older API. They have one choice.

The last event of a stream contains the finish reason and the usage. Nothing follows it, because the product's
client parses every event as an answer.
"""

from collections.abc import Callable

import msgspec

from antiphon.dialects.common.encode import FINISH_NAMES
from antiphon.dialects.common.response_types import FinishName
from antiphon.dialects.sgp.encode import encode_stream_error
from antiphon.dialects.sgp.legacy.wire_types import (
    LegacyAnswerMessage,
    LegacyChatAnswer,
    LegacyChatChoice,
    LegacyTextAnswer,
    LegacyTextChoice,
    LegacyUsage,
)
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.events import Event, Finished, FinishReason, TextDelta, Usage, UsageSource
from antiphon.errors import AntiphonError

_encode = msgspec.json.Encoder().encode

LegacyAnswer = LegacyChatAnswer | LegacyTextAnswer
AnswerBuilder = Callable[[str, FinishName | None, LegacyUsage | None], LegacyAnswer]
"""Builds an answer, or one event of a stream, from its text, its finish reason and its usage."""


def build_chat_answer(
    text: str, finish_reason: FinishName | None, usage: LegacyUsage | None
) -> LegacyChatAnswer:
    """Builds the answer of a chat."""
    choice = LegacyChatChoice(message=LegacyAnswerMessage(content=text), finish_reason=finish_reason)
    return LegacyChatAnswer(chat_completion=choice, token_usage=usage)


def build_text_answer(
    text: str, finish_reason: FinishName | None, usage: LegacyUsage | None
) -> LegacyTextAnswer:
    """Builds the answer of a text completion."""
    return LegacyTextAnswer(
        completion=LegacyTextChoice(text=text, finish_reason=finish_reason), token_usage=usage
    )


def encode_answer(build_answer: AnswerBuilder, generation: CollectedGeneration) -> bytes:
    """Encodes a buffered answer."""
    (choice,) = generation.choices
    return _encode(build_answer(choice.text, FINISH_NAMES[choice.reason], _build_usage(generation.usage)))


class LegacyStreamEncoder:
    """Encodes one stream."""

    def __init__(self, build_answer: AnswerBuilder) -> None:
        self._build_answer = build_answer
        self._finish_reason = FinishReason.STOP
        """The finish reason, from the choice's end until the usage."""

    def encode(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return self._encode_event(event.text)
        if isinstance(event, Finished):
            self._finish_reason = event.reason
        if isinstance(event, Usage):
            return self._encode_event("", FINISH_NAMES[self._finish_reason], _build_usage(event))
        return b""

    def end(self) -> bytes:
        return b""

    def encode_error(self, error: AntiphonError) -> bytes:
        return encode_stream_error(error)

    def _encode_event(
        self, text: str, finish_reason: FinishName | None = None, usage: LegacyUsage | None = None
    ) -> bytes:
        """Encodes one event of the stream."""
        return b"data: %b\n\n" % _encode(self._build_answer(text, finish_reason, usage))


def _build_usage(usage: Usage) -> LegacyUsage | None:
    """Builds the usage. Returns None for an estimate."""
    if usage.source is UsageSource.ESTIMATED:
        return None
    return LegacyUsage(usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
