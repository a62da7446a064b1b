"""Tokenizes texts in fair turns, and converts banned words to token sequences.

A long text occupies an engine's tokenizer for up to seconds. Callers take turns with long texts, so a caller
with many long texts delays no other caller. Short texts do not wait.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.identity import Actor
from antiphon.engines.base import TextPiece, TokenEngine
from antiphon.errors import InvalidValue
from antiphon.rendering.model_info import ModelInfo

LONG_TEXT = 8192
"""For texts with more characters, callers take turns. The slowest text of this size takes about twenty
milliseconds."""

QUEUE_LIMITS = QueueLimits(
    at_once=1, queue=512, queue_per_actor=256, seconds_per_item=0.1, item_name="long texts"
)
"""Limits of the queue for long texts. They are the same as the limits of the engine's own queue."""


class TextTokenizer(Protocol):
    """Converts texts to token ids. Every `TokenEngine` implements it."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the pieces, joined to one text."""


class FairTokenizer:
    """An engine's tokenizer for one request. It tokenizes one long text of the request at a time. So a
    request with many long texts gets no more turns than other requests."""

    __slots__ = ("_actor", "_clock", "_engine", "_one_at_a_time", "_queue")

    def __init__(self, engine: TokenEngine, queue: FairSemaphore, actor: Actor, clock: Clock) -> None:
        self._engine = engine
        self._queue = queue
        self._actor = actor
        self._clock = clock
        self._one_at_a_time = asyncio.Lock()

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the pieces. A long text waits for its turn. Raises Overloaded or
        EngineBusy if too many long texts wait."""
        if sum(len(piece.text) for piece in pieces) <= LONG_TEXT:
            return await self._engine.tokenize(pieces, add_bos)
        async with self._one_at_a_time, self._queue.hold(self._actor.caller, self._clock):
            return await self._engine.tokenize(pieces, add_bos)


LEADS = ("\n", ".")
"""Texts that are put before a word without a space, for a tokenizer that adds a space before every text. The
tokens of the lead are then removed. The second lead is for words that share a token with the first lead."""


async def tokenize_banned_words(
    engine: TokenEngine, model_info: ModelInfo, words: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Returns the token sequences of all words, at the start of a text and after a space, without duplicates.
    Other token sequences that spell the same word are not found. Raises InvalidValue for a word that has only
    spaces."""
    stripped_words = [word.lstrip(" ") for word in words]
    for index, word in enumerate(stripped_words):
        if not word:
            field = f"bad_words[{index}]"
            raise InvalidValue(f"{field} has nothing but spaces; give a word", param=field)
    if not stripped_words:
        return ()
    if model_info.vocabulary.space_prefix:
        after_space = await _tokenize_each(engine, stripped_words)
        at_start = await _tokenize_after_leads(engine, stripped_words)
    else:
        after_space = await _tokenize_each(engine, [f" {word}" for word in stripped_words])
        at_start = await _tokenize_each(engine, stripped_words)
    return tuple(tokens for tokens in dict.fromkeys((*after_space, *at_start)) if tokens)


async def _tokenize_after_leads(engine: TokenEngine, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of words without a space before them. A word that shares a token with every lead
    gets no tokens."""
    leads = await _tokenize_each(engine, LEADS)
    columns = [await _tokenize_each(engine, [lead + word for word in words]) for lead in LEADS]
    return [_remove_lead(leads, with_leads) for with_leads in zip(*columns, strict=True)]


def _remove_lead(leads: Sequence[tuple[int, ...]], with_leads: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the tokens of a word, from the first lead that can be removed. `with_leads`: the tokens of the
    word after each lead."""
    for lead, tokens in zip(leads, with_leads, strict=True):
        if tokens[: len(lead)] == lead:
            return tokens[len(lead) :]
    return ()


async def _tokenize_each(engine: TokenEngine, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of each text, without the begin token."""
    return await asyncio.gather(*(engine.tokenize([TextPiece(text)], False) for text in texts))
