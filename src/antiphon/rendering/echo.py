"""Repeats the prompt at the beginning of its choices (`echo`), with log-probabilities if the caller requests
them.

The engine scores a prompt once, for the first of its choices. The other choices wait for the scores
(`PromptLogprobs`).
"""

import asyncio
from array import array
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise

from antiphon.domain.events import Event, EventGroup, Finished, Scores, Started, TextDelta, join_scores
from antiphon.domain.request import RawPrompt
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Counts, SequenceFinished, StopCause, TokenEvent
from antiphon.rendering.choice_decoder import ChoiceDecoder
from antiphon.rendering.detokenizer import Detokenizer, Pieces
from antiphon.rendering.logprobs import PromptLogprobs
from antiphon.rendering.model_info import ModelInfo

DELTA_TOKENS = 256
"""The number of tokens in one delta of a scored prompt. A delta with all alternatives takes seven
milliseconds to encode. After each delta, other requests run."""

MANY_TOKENS = 10_000
"""For more tokens than this, a thread computes the layout. This many tokens take about ten milliseconds."""


class PromptLayout(Struct, frozen=True):
    """The positions of a prompt's tokens in its text."""

    text: str
    offsets: Sequence[int]
    """For each token, the index of the character that contains the token's first byte."""
    incomplete: bytes = b""
    """The bytes of an incomplete character at the end of the prompt. The completion can complete the
    character."""


async def compute_layout(prompt: RawPrompt, tokens: tuple[int, ...], model_info: ModelInfo) -> PromptLayout:
    """Returns the layout of a prompt. Its text is the caller's text, or the text of the caller's token
    ids."""
    if len(tokens) > MANY_TOKENS:
        return await asyncio.to_thread(_compute_layout, prompt, tokens, model_info)
    return _compute_layout(prompt, tokens, model_info)


def _compute_layout(prompt: RawPrompt, tokens: tuple[int, ...], model_info: ModelInfo) -> PromptLayout:
    """Computes the layout; `compute_layout` chooses the thread."""
    if not prompt.text:
        return _detokenize(tokens, model_info.pieces)
    text, vocabulary = prompt.text, model_info.vocabulary
    bos_name = vocabulary.names.get(-1 if vocabulary.bos_id is None else vocabulary.bos_id)
    added_tokens = int(tokens[:1] == (vocabulary.bos_id,) and not (bos_name and text.startswith(bos_name)))
    decoded_layout = _detokenize(tokens[added_tokens:], model_info.named_pieces)
    # The tokenizer can have added a space at the start. If it normalises texts, the offsets are those of the
    # decoded tokens.
    added_spaces = int(decoded_layout.text != text and decoded_layout.text.startswith(f" {text[0]}"))
    offsets = array("q", [0] * added_tokens)
    offsets.extend(min(max(offset - added_spaces, 0), len(text)) for offset in decoded_layout.offsets)
    return PromptLayout(text, offsets)


def _detokenize(tokens: Sequence[int], pieces: Pieces) -> PromptLayout:
    """Returns the text of the tokens, with the position of each token in the text."""
    detokenizer, parts, offsets, length = Detokenizer(pieces), [], array("q"), 0
    for token in tokens:
        offsets.append(length + detokenizer.breaks_character(token))
        parts.append(text := detokenizer.add(token))
        length += len(text)
    return PromptLayout("".join(parts), offsets, detokenizer.get_pending())


class PromptEcho:
    """One prompt, repeated by each of its choices."""

    def __init__(self, layout: PromptLayout, logprobs: PromptLogprobs | None = None, width: int = 0) -> None:
        """`logprobs`: log-probabilities of the prompt's tokens; None if the choices report none. `width`:
        number of alternatives of each token."""
        self.layout = layout
        self._logprobs = logprobs
        self._width = width

    def decode(
        self, decoder: ChoiceDecoder, sequence: AsyncGenerator[TokenEvent, None]
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of a choice, with the prompt before the choice's own text."""
        decoder.resume(self.layout.incomplete)
        return self._insert_prompt(decoder.choice, decoder.decode(sequence))

    async def _insert_prompt(
        self, choice: int, events: AsyncGenerator[EventGroup, None]
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of a choice with the prompt after Started. Waits until the engine has scored the
        prompt."""
        carried_scores: list[Scores] = []
        async with aclosing(events):
            async for group in events:
                for event in group:
                    if isinstance(event, Started) and self._logprobs is not None:
                        await self._logprobs.wait_until_scored()
                    for expanded in self._expand_event(event, choice, carried_scores):
                        yield (expanded,)
                        if expanded is not event:  # a part of the prompt, and many follow without waiting
                            await asyncio.sleep(0)

    def _expand_event(self, event: Event, choice: int, carried_scores: list[Scores]) -> Iterator[Event]:
        """Yields the event, and the prompt after Started. `carried_scores`: scores without text; they are
        added to the next event."""
        if carried_scores and isinstance(event, TextDelta | Finished):
            yield replace(event, scores=join_scores((*carried_scores, event.scores or ())))
            carried_scores.clear()
        else:
            yield event
        if isinstance(event, Started):
            for text, scores in self._split_parts():
                if text:
                    yield TextDelta(choice, text, 0, scores)
                elif scores:
                    carried_scores.append(scores)

    def _split_parts(self) -> Iterator[tuple[str, Scores]]:
        """Yields the parts of the prompt's text with their scores. The last part can have scores but no
        text."""
        if self._logprobs is None:
            yield self.layout.text, ()
            return
        text, offsets = self.layout.text, self.layout.offsets
        for begin, end in pairwise(self._find_cuts()):
            end_offset = len(text) if end == len(offsets) else offsets[end]
            scores = self._logprobs.pack_scores(begin, end, offsets[begin:end], self._width)
            yield text[offsets[begin] if begin else 0 : end_offset], scores

    def _find_cuts(self) -> Iterator[int]:
        """Yields the index of each part's first token, and last the number of tokens. A part begins only at a
        token that begins a new character, so only the last part can be without text."""
        token_count, offsets = len(self.layout.offsets), self.layout.offsets
        yield 0
        begin = 0
        for target in range(DELTA_TOKENS, token_count, DELTA_TOKENS):
            cut = next(
                (index for index in range(target, begin, -1) if offsets[index - 1] < offsets[index]), begin
            )
            if cut > begin:
                yield (begin := cut)
        yield token_count


async def repeat_prompt(
    choice: int, text: str, events: AsyncGenerator[EventGroup, None]
) -> AsyncGenerator[EventGroup, None]:
    """Yields the events of a choice with a text before the choice's own text."""
    async with aclosing(events):
        async for group in events:
            if text and isinstance(group[0], Started):
                yield (group[0], TextDelta(choice, text), *group[1:])
            else:
                yield group


async def generate_nothing(prompt_tokens: int) -> AsyncGenerator[TokenEvent, None]:
    """Yields the end of a sequence without tokens, for a choice that only repeats its prompt."""
    yield SequenceFinished(StopCause.LENGTH, Counts(prompt_tokens, 0))
