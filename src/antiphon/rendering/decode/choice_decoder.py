"""Decodes one choice: converts the tokens of its sequence to text, and finds its end and its counts."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from antiphon.domain.events import Event, Finished, FinishReason, Started, TextDelta
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import SequenceFinished, SequenceStarted, Steps, StopCause, TokenEvent
from antiphon.rendering.decode.detokenizer import Detokenizer, Pieces
from antiphon.rendering.decode.stop_strings import NO_STOP_STRINGS, StopFilter, StopStrings
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning.reader import ReasoningCounter


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Options for converting tokens to text, shared by all choices of a request."""

    pieces: Pieces
    silent: frozenset[int]
    """Tokens that show no text, even if the vocabulary has a text for them."""
    stops: StopStrings
    min_tokens: int = 0
    """The decoder searches for stop strings only after this many tokens."""


def build_decode_options(request: GenerationRequest, model_info: ModelInfo) -> DecodeOptions:
    """Builds the options for a request. The token that ends a choice shows no text, unless the caller wants
    to keep it. A kept token shows its text, or its name if the caller wants names of control tokens."""
    output, sampling = request.output, request.sampling
    stop_tokens = frozenset(() if output.include_stop else output.stop_token_ids)
    shows_stop_tokens = output.show_special and (output.include_stop or bool(sampling.ignore_eos))
    return DecodeOptions(
        pieces=model_info.spelt if output.show_special else model_info.pieces,
        silent=stop_tokens if shows_stop_tokens else model_info.ends | stop_tokens,
        stops=StopStrings(output.stop, output.include_stop) if output.stop else NO_STOP_STRINGS,
        min_tokens=sampling.min_tokens or 0,
    )


class ChoiceDecoder:
    """The decoding state of one choice."""

    __slots__ = (
        "_detokenizer",
        "_filter",
        "_min_tokens",
        "_reason",
        "_silent",
        "_unreported",
        "cached",
        "choice",
        "completion_tokens",
        "queued",
        "reasoning_counter",
    )

    def __init__(self, choice: int, options: DecodeOptions) -> None:
        self.choice = choice
        self.completion_tokens = 0
        """Number of tokens, up to and including the token that completes a stop string."""
        self.cached: int | None = None
        """Number of the choice's prompt tokens that the engine did not compute; None before the engine admits
        the choice."""
        self.queued: float | None = None
        """Seconds that the choice waited for admission."""
        self.reasoning_counter: ReasoningCounter | None = None
        """Counts the tokens of reasoning; None if the model does not reason."""
        self._min_tokens = options.min_tokens
        self._silent = options.silent
        self._detokenizer = Detokenizer(options.pieces)
        self._filter = StopFilter(options.stops)
        self._reason = FinishReason.STOP
        self._unreported = 0

    async def decode(self, sequence: AsyncGenerator[TokenEvent, None]) -> AsyncGenerator[Event, None]:
        """Yields the events of this choice: Started with its first token, deltas, Finished. Closes the
        sequence at once when the choice stops."""
        async with aclosing(sequence) as events:
            async for event in events:
                for decoded in self._convert_event(event):
                    yield decoded
                if self._filter.has_stopped:
                    break
        for decoded in self._end_events():
            yield decoded

    def _convert_event(self, event: TokenEvent) -> Iterator[Event]:
        """Converts an event of the sequence to events of the choice."""
        if isinstance(event, Steps):
            is_first = not self.completion_tokens
            text = self._decode_steps(event)
            if is_first:
                yield Started(0)
            if text:
                yield self._build_delta(text)
        elif isinstance(event, SequenceStarted):
            self.cached, self.queued = event.cached_tokens, event.queued
        elif isinstance(event, SequenceFinished):
            if event.cause is StopCause.LENGTH:
                self._reason = FinishReason.LENGTH
            if not self.completion_tokens:
                yield Started(0)

    def resume(self, held_bytes: bytes) -> None:
        """Starts with the first bytes of a character that is incomplete at the end of the prompt."""
        self._detokenizer.resume(held_bytes)

    def _end_events(self) -> Iterator[Event]:
        """Yields the rest of the text and the event that ends the choice."""
        if not self._filter.has_stopped:
            last_text = self._flush()
            if last_text:
                yield self._build_delta(last_text)
        reason = FinishReason.STOP if self._filter.has_stopped else self._reason
        yield self._build_finished(reason)

    def _decode_steps(self, steps: Steps) -> str:
        """Returns the text of these tokens that the stop filter lets through. Tokens after a stop string are
        neither shown nor counted."""
        text = ""
        for token in steps.tokens:
            self.completion_tokens += 1
            self._unreported += 1
            piece = "" if token in self._silent else self._detokenizer.add(token)
            if self.reasoning_counter is not None:
                self.reasoning_counter.add_token(len(piece))
            if piece:
                text += self._filter.add(piece) if self.completion_tokens > self._min_tokens else piece
                if self._filter.has_stopped:
                    break
        return text

    def _flush(self) -> str:
        """Returns the text that the stop filter and the detokenizer held back. Call it after the last
        token."""
        text = self._filter.add(self._detokenizer.end())
        return text if self._filter.has_stopped else text + self._filter.end()

    def _build_delta(self, text: str) -> TextDelta:
        """Builds a delta of the text, with the number of tokens since the last event."""
        return TextDelta(self.choice, text, self._take_unreported())

    def _build_finished(self, reason: FinishReason) -> Finished:
        """Builds the last event, with the number of tokens since the event before."""
        return Finished(self.choice, reason, self._take_unreported())

    def _take_unreported(self) -> int:
        """Returns the number of tokens that no event has reported yet, and sets it to 0."""
        tokens, self._unreported = self._unreported, 0
        return tokens
