"""Which numbers of decode rows compute every row alike, bit for bit, with these weights on this machine.

Matrix kernels of llama.cpp differ with the number of rows: one row of F16 weights takes another path than
two, K quantizations one for each four or eight rows. Rather than believe a table of types, exact mode tries
it out at load: the same token in every row must give the same logits at every number of rows that is allowed.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.libllama_context import Decoded, NativeContext
from antiphon.errors import LoadError

TOKENS = (0.3, 0.8)
"""Places in the vocabulary of the tokens that are tried."""


def alike_row_counts(context: NativeContext, vocabulary: int) -> tuple[int, ...]:
    """The numbers of rows, up to all sequences, that compute rows alike. Raises LoadError when none do."""
    most = context.shape.sequences
    allowed = set(range(1, most + 1))
    for place in TOKENS:
        token = int(vocabulary * place)
        whole = _logits(context, most, token)
        reference = whole[0].copy()
        if not (whole == reference).all():
            raise LoadError(
                "the library computes equal rows of this model unequally on this machine, so exact = true "
                "cannot be kept; leave it out, or use weights of another type"
            )
        # Where a lone row, three and all but one agree with all, no kernel looks at the number of rows.
        few = sorted({1, min(3, most), max(1, most - 1)})
        if _agree(context, few, token, reference) != few:
            allowed &= {*_agree(context, range(1, most), token, reference), most}
    return tuple(sorted(allowed))


def _agree(
    context: NativeContext, counts: Iterable[int], token: int, reference: NDArray[np.float32]
) -> list[int]:
    """Those of these numbers of rows whose logits all equal the reference."""
    return [count for count in counts if (_logits(context, count, token) == reference).all()]


def _logits(context: NativeContext, rows: int, token: int) -> NDArray[np.float32]:
    """The logits of the same first token in each of the first sequences; the cache is empty again
    afterwards.
    """
    context.tokens[:rows] = token
    context.positions[:rows] = 0
    context.sequences[:rows] = np.arange(rows)
    context.outputs[:rows] = 1
    if context.decode(rows) != Decoded.DONE:
        raise LoadError("the library could not compute a first token with this model; check the file")
    for slot in range(rows):
        context.remove(slot)
    return context.logits(rows)
