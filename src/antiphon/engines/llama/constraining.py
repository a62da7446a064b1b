"""Constraints of one loaded model: checked in a process of its own, then followed by guides. Both are made
when first asked for; a model that is never constrained pays nothing. Lives on the event loop.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable

from antiphon.constraints.checker import Checker
from antiphon.constraints.grammar import Grammar
from antiphon.domain.constraint import Constraint
from antiphon.engines.base import Vocabulary
from antiphon.engines.llama.masks import Guide, Masks, tokens_of

LINE_BREAK = b"\n"


def after_line_break(
    tokenize: Callable[[bytes], list[int]], table: Vocabulary
) -> Callable[[bytes], list[int]]:
    """How a tokenizer that puts a space before every text splits what stands in the middle of one: as it does
    after a line break, whose own tokens are taken away. Gives nothing where they cannot be told apart, and
    then the longest pieces are taken."""
    head = tokenize(LINE_BREAK)

    def split(text: bytes) -> list[int]:
        found = tokenize(LINE_BREAK + text)
        rest = found[len(head) :]
        same = found[: len(head)] == head and b"".join(table.pieces[token] for token in rest) == text
        return rest if same else []

    return split


class Lent:
    """The model's tokenizer for as long as the model is there: threads of the masks may outlive it."""

    def __init__(self, tokenize: Callable[[bytes], list[int]]) -> None:
        self._tokenize: Callable[[bytes], list[int]] | None = tokenize
        self._lock = threading.Lock()

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text; none once it is taken back."""
        with self._lock:
            return self._tokenize(text) if self._tokenize is not None else []

    def take_back(self) -> None:
        """Returns when nobody is in it any more, nor will be."""
        with self._lock:
            self._tokenize = None


class Constraining:
    """What the engine needs to constrain its sequences."""

    def __init__(
        self, vocabulary: Callable[[], Awaitable[Vocabulary]], tokenize: Callable[[bytes], list[int]]
    ) -> None:
        """`tokenize`: how the model splits a text; called from other threads."""
        self._vocabulary = vocabulary
        self._tokenize = Lent(tokenize)
        self._checker: Checker | None = None
        self._masks: Masks | None = None
        self._making = asyncio.Lock()

    async def check(self, constraint: Constraint) -> Grammar:
        """The grammar of a constraint that can be kept. Raises the error that refuses it."""
        checker, _ = await self._ensure_checker()
        return await checker.grammar(constraint)

    async def guide(self, constraint: Constraint) -> Guide:
        """A way through a constraint. Raises the error that refuses it."""
        grammar = await self.check(constraint)
        _, masks = await self._ensure_checker()
        return masks.guide(grammar)

    async def aclose(self) -> None:
        """Ends the process and the threads; the tokenizer is not called after it."""
        await asyncio.to_thread(self._tokenize.take_back)
        if self._checker is not None:
            await self._checker.aclose()
        if self._masks is not None:
            self._masks.close()

    async def _ensure_checker(self) -> tuple[Checker, Masks]:
        async with self._making:
            if self._checker is None or self._masks is None:
                table = await self._vocabulary()
                tokens = tokens_of(table)
                tokenize = after_line_break(self._tokenize, table) if table.space_prefix else self._tokenize
                self._masks = await asyncio.to_thread(Masks, tokens, tokenize)
                self._checker = Checker(tokens)
            return self._checker, self._masks
