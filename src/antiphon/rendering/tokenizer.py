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
"""The number of characters above which callers take turns. The worst text of this size takes about twenty
milliseconds."""

BOUNDS = QueueLimits(at_once=1, queue=512, queue_per_actor=256, usual=0.1, waiting="long texts")
"""Limits of the queue for long texts. As many texts may wait here as requests may wait for the engine
itself."""


class TextTokenizer(Protocol):
    """Turns texts into token ids. Every `TokenEngine` is one."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the pieces, joined to one text."""


class FairTokenizer:
    """An engine's tokenizer for one request. It handles the request's long texts one after the other, so a
    request with many long texts gets no more turns than other requests."""

    __slots__ = ("_actor", "_clock", "_engine", "_one", "_places")

    def __init__(self, engine: TokenEngine, places: FairSemaphore, actor: Actor, clock: Clock) -> None:
        self._engine = engine
        self._places = places
        self._actor = actor
        self._clock = clock
        self._one = asyncio.Lock()

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the token ids of the pieces. A long text waits for its turn. Raises Overloaded or
        EngineBusy where too many long texts wait."""
        if sum(len(piece.text) for piece in pieces) <= LONG_TEXT:
            return await self._engine.tokenize(pieces, add_bos)
        async with self._one, self._places.hold(self._actor.caller, self._clock):
            return await self._engine.tokenize(pieces, add_bos)


LEADS = ("\n", ".")
"""Texts to put before a word that no space precedes, since the tokenizer puts a space before every text. The
first lead that shares no token with the word is removed again."""


async def tokenize_banned_words(
    engine: TokenEngine, model_info: ModelInfo, words: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Returns the token sequences of all words, each sequence once: for the word at the start of a text and
    for the word after a space. Other tokens with the same letters are not found. Raises InvalidValue for a
    word that has only spaces."""
    bare = [word.lstrip(" ") for word in words]
    for index, word in enumerate(bare):
        if not word:
            field = f"bad_words[{index}]"
            raise InvalidValue(f"{field} has nothing but spaces; give a word", param=field)
    if not bare:
        return ()
    prefixed = model_info.vocabulary.space_prefix
    spaced = await _tokenize_each(engine, [word if prefixed else f" {word}" for word in bare])
    initial = await (_after_leads(engine, bare) if prefixed else _tokenize_each(engine, bare))
    return tuple(tokens for tokens in dict.fromkeys((*spaced, *initial)) if tokens)


async def _after_leads(engine: TokenEngine, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of words that no space precedes. A word that shares a token with every lead gets no
    tokens."""
    leads = await _tokenize_each(engine, LEADS)
    columns = [await _tokenize_each(engine, [lead + word for word in words]) for lead in LEADS]
    return [
        next(
            (
                tokens[len(lead) :]
                for lead, tokens in zip(leads, row, strict=True)
                if _starts_with(tokens, lead)
            ),
            (),
        )
        for row in zip(*columns, strict=True)
    ]


def _starts_with(tokens: tuple[int, ...], lead: tuple[int, ...]) -> bool:
    """Whether the tokens begin with those of `lead`."""
    return tokens[: len(lead)] == lead


async def _tokenize_each(engine: TokenEngine, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Returns the tokens of each text, without the begin token."""
    return await asyncio.gather(*(engine.tokenize([TextPiece(text)], False) for text in texts))
