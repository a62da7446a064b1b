"""Log-probabilities of the model's own distribution: before masks, bias, penalties and temperature."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.engines.llama.sampling.block import ROWS, Block, Floats, Head
from antiphon.errors import EngineError

CHUNK = 1 << 17
"""Numbers that are worked on at once: they stay in the processor's cache."""

NO_NUMBER = "the model's output is not a number; its weights or the KV cache are damaged"


def chunk_rows(vocabulary: int) -> int:
    """Rows that are worked on at once."""
    return max(1, min(ROWS, CHUNK // vocabulary))


def top_chances(rows: Floats, tops: Floats, room: Floats) -> NDArray[np.float64]:
    """(rows,) log-probability of the likeliest token. Overwrites as many rows of `room`."""
    shifted = np.subtract(rows, tops[:, None], out=room[: len(rows)])
    sums = np.exp(shifted, out=shifted).sum(axis=1)
    said: NDArray[np.float64] = -np.log(sums.astype(np.float64))
    return said


Pairs = tuple[tuple[int, float], ...]
"""Token ids with their log-probabilities."""


def list_likeliest(block: Block, best: NDArray[np.float64], count: int) -> list[Pairs]:
    """The likeliest (id, log-probability) of each row, best first; `best`: those of the likeliest."""
    head = block.head(count)
    values = head.values - block.tops[:, None].astype(np.float64) + best[:, None]
    rows = zip(head.ids.tolist(), values.tolist(), head.found.tolist(), strict=True)
    return [tuple(zip(ids[:found], said[:found], strict=True)) for ids, said, found in rows]


def pick_logprobs(block: Block, best: NDArray[np.float64], row: int, tokens: Sequence[int]) -> Pairs:
    """Log-probabilities of these tokens in a row."""
    values = block.rows[row, np.asarray(tokens, dtype=np.intp)].astype(np.float64)
    said = values - float(block.tops[row]) + float(best[row])
    return tuple(zip(tokens, said.tolist(), strict=True))


def prompt_scores(
    logits: Floats, tokens: Sequence[int] | NDArray[np.int32], k: int
) -> tuple[bytes, bytes, bytes, bytes]:
    """Log-probabilities of the tokens that followed each row, those of the k likeliest, and the rank of each
    token: (float32, int32 ids, float32, int32), little-endian, row by row. Raises EngineError when logits are
    no numbers.

    `logits`: (rows, vocabulary), only read.
    """
    size = chunk_rows(logits.shape[1])
    room = np.empty((min(size, len(logits)), logits.shape[1]), dtype=np.float32)
    wanted = np.asarray(tokens, dtype=np.intp)
    parts = [
        _score(logits[at : at + size], wanted[at : at + size], k, room) for at in range(0, len(logits), size)
    ]
    if not parts:
        return b"", b"", b"", b""
    joined = (np.concatenate(each) for each in zip(*parts, strict=True))
    said, ids, values, ranks = (
        each.astype(kind).tobytes() for each, kind in zip(joined, ("<f4", "<i4", "<f4", "<i4"), strict=True)
    )
    return said, ids, values, ranks


def _score(
    rows: Floats, tokens: NDArray[np.intp], k: int, room: Floats
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64], NDArray[np.intp]]:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        block = Block.of(rows)
        if not np.isfinite(block.tops).all():
            raise EngineError(NO_NUMBER)
        best, tops = top_chances(rows, block.tops, room), block.tops.astype(np.float64)
        chosen = rows[np.arange(len(rows)), tokens]
        said, ranks = chosen - tops + best, 1 + np.count_nonzero(rows > chosen[:, None], axis=1)
        if k == 0:
            return said, np.empty((len(rows), 0), dtype=np.intp), np.empty((len(rows), 0)), ranks
        head = block.head(k)
        for row in np.flatnonzero(head.found < head.ids.shape[1]):
            complete(head, int(row), rows.shape[1])
        return said, head.ids, head.values - tops[:, None] + best[:, None], ranks


def complete(head: Head, row: int, vocabulary: int) -> None:
    """Fills what a row lacks with ids of no probability."""
    found, wanted = int(head.found[row]), head.ids.shape[1]
    others = np.setdiff1d(np.arange(min(vocabulary, 2 * wanted)), head.ids[row, :found])
    head.ids[row, found:] = others[: wanted - found]
