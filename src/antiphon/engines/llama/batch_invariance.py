"""Which numbers of decode rows compute every row alike, bit for bit, with these weights on this machine.

Matrix kernels of llama.cpp differ with the number of rows: one row of F16 weights takes another path than
two, K quantizations one for each four or eight rows. Rather than believe a table of types, exact mode tries
it out at load: a few tokens of each sequence must give the same logits in every number of rows that is
allowed, wherever among the rows they stand.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.libllama_context import Decoded, NativeContext
from antiphon.errors import LoadError

STEPS = 2
"""Tokens of each sequence: the second one's logits also show what of the first went into the cache."""

LONE_TRIES = 8
"""Sequences that are tried alone: a lone row is what differs most often, and may be equal by luck."""


def alike_row_counts(context: NativeContext, vocabulary: int) -> tuple[int, ...]:
    """The numbers of rows, up to all sequences, that compute rows alike. Raises LoadError when none do."""
    most = context.shape.sequences
    tokens = np.linspace(1, vocabulary - 1, STEPS * most, dtype=np.int32).reshape(STEPS, most)
    probe = _Probe(context, tokens)
    # Where lone rows, three, and all but one agree with all, no kernel looks at the number of rows.
    few = {1, min(3, most), max(1, most - 1)}
    alike = [count for count in sorted(few) if probe.agrees(count)]
    if set(alike) == few:
        return tuple(range(1, most + 1))
    if not probe.agrees_in_any_order():
        raise LoadError(
            "on this machine the library computes a row of this model by its place among the rows, so "
            "exact = true cannot be kept; leave it out, or use weights of another type"
        )
    others = [count for count in range(1, most) if count not in few and probe.agrees(count)]
    return tuple(sorted({*alike, *others, most}))


class _Probe:
    """The same tokens of the same sequences, computed all together and in parts."""

    def __init__(self, context: NativeContext, tokens: NDArray[np.int32]) -> None:
        self._context = context
        self._tokens = tokens
        self._whole = list(self._logits(0, tokens.shape[1], tokens))

    def agrees(self, count: int) -> bool:
        """Whether windows of so many neighbouring sequences give what they give among all."""
        last = self._tokens.shape[1] - count
        starts = np.linspace(0, last, LONE_TRIES if count == 1 else 2, dtype=int)
        return all(self._agrees_at(int(start), count) for start in {*starts})

    def agrees_in_any_order(self) -> bool:
        """Whether all together give the same in another order."""
        turned = list(self._logits(0, self._tokens.shape[1], self._tokens[:, ::-1]))
        return all((part[::-1] == whole).all() for part, whole in zip(turned, self._whole, strict=True))

    def _agrees_at(self, start: int, count: int) -> bool:
        parts = list(self._logits(start, count, self._tokens))
        window = slice(start, start + count)
        return all((part == whole[window]).all() for part, whole in zip(parts, self._whole, strict=True))

    def _logits(self, start: int, count: int, table: NDArray[np.int32]) -> Iterator[NDArray[np.float32]]:
        """The logits of each step of these sequences; their cells are free again when all were taken."""
        context, slots = self._context, np.arange(start, start + count)
        for step, tokens in enumerate(table):
            context.tokens[:count] = tokens[slots]
            context.positions[:count] = step
            context.sequences[:count] = slots
            context.outputs[:count] = 1
            if context.decode(count) != Decoded.DONE:
                raise LoadError("the library could not compute a first token with this model; check the file")
            yield context.logits(count).copy()
        for slot in slots:
            context.remove(int(slot))
