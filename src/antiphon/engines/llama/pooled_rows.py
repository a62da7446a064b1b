"""Turns the rows that an embedding model pools into vectors of unit length, or into a reranker's scores."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

FinishRows = Callable[[Rows], tuple[Rows, NDArray[np.bool_]]]
"""Turns the model's rows into what the engine gives, and tells which rows can be used."""

CLASS_COUNTS = (1, 2)
"""The numbers that a reranker can give for a pair: one, or the probabilities of yes and no."""

LARGEST_ODDS = 104.0
"""The logarithm of the odds of the smallest probability that float32 can express."""


def scale_rows(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Scales rows to unit length."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        units = (rows / lengths).astype("<f4")
    return units, np.isfinite(lengths[:, 0]) & (lengths[:, 0] > 0)


def find_log_odds(rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Returns one number for each row of a reranker: the logarithm of the odds that the texts match.

    A model of one class gives this number. A model of two classes gives the probabilities of yes and no.
    """
    odds = rows
    if rows.shape[1] > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(rows[:, :1]) - np.log(rows[:, 1:])
        odds = np.clip(odds, -LARGEST_ODDS, LARGEST_ODDS)  # a probability can be rounded to zero
    return odds.astype("<f4"), np.isfinite(odds[:, 0])
