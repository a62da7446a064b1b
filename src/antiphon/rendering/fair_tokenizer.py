"""Texts to token ids, in the order of turns. A long text takes an engine's tokenizer up to seconds, one after
the other: callers take turns for it, so that one who sends many keeps nobody else waiting. Short texts pass
by."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from antiphon.domain.context import Clock
from antiphon.domain.fair_queue import Bounds, FairSemaphore
from antiphon.domain.identity import Actor
from antiphon.engines.base import TextPiece, TokenEngine

LONG_TEXT = 8192
"""Characters above which callers take turns: the worst text of this size takes some twenty milliseconds."""

BOUNDS = Bounds(at_once=1, queue=512, queue_per_actor=256, usual=0.1, waiting="long texts")
"""As many as may wait for the engine itself."""


class TextTokenizer(Protocol):
    """Whoever makes token ids of texts; a `TokenEngine` does."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Token ids of the pieces joined to one text."""


class FairTokenizer:
    """An engine's tokenizer, for one request: its long texts take their turns one after the other, so that a
    request of many waits where a request of one does."""

    __slots__ = ("_actor", "_clock", "_engine", "_one", "_places")

    def __init__(self, engine: TokenEngine, places: FairSemaphore, actor: Actor, clock: Clock) -> None:
        self._engine = engine
        self._places = places
        self._actor = actor
        self._clock = clock
        self._one = asyncio.Lock()

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Raises Overloaded or EngineBusy where too many long texts wait."""
        if sum(len(piece.text) for piece in pieces) <= LONG_TEXT:
            return await self._engine.tokenize(pieces, add_bos)
        async with self._one, self._places.taken(self._actor.caller, self._clock):
            return await self._engine.tokenize(pieces, add_bos)
