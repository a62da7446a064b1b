"""Decodes one choice: converts the tokens of its sequence to text, and finds its stop strings, its end and
its counts.

`ScoredDecoder` in `logprobs` also matches stop strings: it decodes the tokens of choices with
log-probabilities.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.domain.events import Event, EventGroup, Finished, FinishReason, Started, TextDelta
from antiphon.domain.request import GenerationRequest
from antiphon.domain.values import Struct
from antiphon.engines.base import SequenceFinished, SequenceStarted, Steps, StopCause, TokenEvent
from antiphon.rendering.detokenizer import Detokenizer, Pieces
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning import ReasoningCounter
from antiphon.rendering.stop_strings import NO_STOP_STRINGS, StopFilter, StopStrings


class DecodeOptions(Struct, frozen=True):
    """Options for converting tokens to text, shared by all choices of a request."""

    pieces: Pieces
    silent_tokens: frozenset[int]
    """Tokens that show no text, although the vocabulary has a text for them."""
    stop_strings: StopStrings
    min_tokens: int = 0
    """The decoder searches for stop strings only after this many tokens."""


def build_decode_options(request: GenerationRequest, model_info: ModelInfo) -> DecodeOptions:
    """Builds the options for a request. A stop token shows no text, unless the request includes stop tokens.
    A token that ends the model's turn shows its name only if the request shows control tokens, and also
    includes stop tokens or ignores the end of the turn."""
    output, sampling = request.output, request.sampling
    stop_tokens = frozenset(() if output.include_stop else output.stop_token_ids)
    shows_end_tokens = output.show_special and (output.include_stop or bool(sampling.ignore_eos))
    return DecodeOptions(
        pieces=model_info.named_pieces if output.show_special else model_info.pieces,
        silent_tokens=stop_tokens if shows_end_tokens else model_info.end_tokens | stop_tokens,
        stop_strings=StopStrings(output.stop, output.include_stop) if output.stop else NO_STOP_STRINGS,
        min_tokens=sampling.min_tokens or 0,
    )


class ChoiceDecoder:
    """The decoding state of one choice."""

    __slots__ = (
        "_detokenizer",
        "_finish_reason",
        "_min_tokens",
        "_silent_tokens",
        "_stop_filter",
        "_unreported_tokens",
        "cached_tokens",
        "choice",
        "completion_tokens",
        "mispredicted_tokens",
        "predicted_tokens",
        "queue_seconds",
        "reasoning_counter",
    )

    def __init__(self, choice: int, options: DecodeOptions) -> None:
        self.choice = choice
        self.completion_tokens = 0
        """Number of tokens, up to and including the token that completes a stop string."""
        self.predicted_tokens = 0
        """The number of these tokens that came from the request's prediction."""
        self.mispredicted_tokens = 0
        """The number of tokens of the prediction that the engine computed in vain."""
        self.cached_tokens: int | None = None
        """Number of the choice's prompt tokens that the engine did not compute; None before the engine admits
        the choice."""
        self.queue_seconds: float | None = None
        """Seconds that the choice waited for admission."""
        self.reasoning_counter: ReasoningCounter | None = None
        """Counts the tokens of reasoning; None if the model does not reason."""
        self._min_tokens = options.min_tokens
        self._silent_tokens = options.silent_tokens
        self._detokenizer = Detokenizer(options.pieces)
        self._stop_filter = StopFilter(options.stop_strings)
        self._finish_reason = FinishReason.STOP
        self._unreported_tokens = 0

    async def decode(self, sequence: AsyncGenerator[TokenEvent, None]) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of this choice: Started with its first token, deltas, Finished. Closes the
        sequence at once when the choice stops."""
        group: list[Event] = []
        async with aclosing(sequence) as events:
            async for event in events:
                group = self._convert_event(event)
                if self._stop_filter.found_stop is not None:
                    break
                if group:
                    yield group
                    group = []
        yield [*group, *self._end_events()]

    def _convert_event(self, event: TokenEvent) -> list[Event]:
        """Converts an event of the sequence to events of the choice. Its Started has no counts, because
        `RequestTally` builds the request's own Started."""
        if isinstance(event, Steps):
            tokens_before = self.completion_tokens
            text = self._decode_steps(event)
            self.predicted_tokens += min(event.predicted, self.completion_tokens - tokens_before)
            self.mispredicted_tokens += event.mispredicted
            group: list[Event] = [self._build_delta(text)] if text else []
            return group if tokens_before else [Started(0), *group]
        if isinstance(event, SequenceStarted):
            self.cached_tokens, self.queue_seconds = event.cached_tokens, event.queued
        elif isinstance(event, SequenceFinished):
            if event.cause is StopCause.LENGTH:
                self._finish_reason = FinishReason.LENGTH
            if not self.completion_tokens:
                return [Started(0)]
        return []

    def resume(self, held_bytes: bytes) -> None:
        """Starts with the first bytes of a character that is incomplete at the end of the prompt."""
        self._detokenizer.resume(held_bytes)

    def _end_events(self) -> list[Event]:
        """Returns the rest of the text and the event that ends the choice."""
        last_text = ""
        if self._stop_filter.found_stop is None:
            last_text = self._stop_filter.add(self._detokenizer.end())
        if self._stop_filter.found_stop is None:
            last_text += self._stop_filter.end()
        group: list[Event] = [self._build_delta(last_text)] if last_text else []
        reason = FinishReason.STOP if self._stop_filter.found_stop is not None else self._finish_reason
        return [*group, self._build_finished(reason)]

    def _decode_steps(self, steps: Steps) -> str:
        """Returns the text of these tokens that the stop filter lets through. Tokens after a stop string are
        neither shown nor counted."""
        text = ""
        for token in steps.tokens:
            self.completion_tokens += 1
            self._unreported_tokens += 1
            piece = "" if token in self._silent_tokens else self._detokenizer.add(token)
            if self.reasoning_counter is not None:
                self.reasoning_counter.add_token(len(piece))
            if piece:
                text += self._stop_filter.add(piece) if self.completion_tokens > self._min_tokens else piece
                if self._stop_filter.found_stop is not None:
                    break
        return text

    def _build_delta(self, text: str) -> TextDelta:
        """Builds a delta of the text, with the number of tokens since the last event."""
        return TextDelta(self.choice, text, self._take_unreported())

    def _build_finished(self, reason: FinishReason) -> Finished:
        """Builds the last event, with the number of tokens since the previous event."""
        return Finished(self.choice, reason, self._take_unreported(), stop=self._stop_filter.found_stop)

    def _take_unreported(self) -> int:
        """Returns the number of tokens that no event has reported yet, and sets it to 0."""
        tokens, self._unreported_tokens = self._unreported_tokens, 0
        return tokens
