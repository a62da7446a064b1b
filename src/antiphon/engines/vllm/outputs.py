"""Translates what vLLM reports to events. The values are read by their names, so this module imports no
vLLM."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from antiphon.engines.base import PromptScores, Steps, TokenRequest


class VllmLogprob(Protocol):
    """A log-probability with its rank."""

    logprob: float
    rank: int | None


Logprobs = Mapping[int, VllmLogprob]
"""The log-probabilities at one place: the token's own, and those of the likeliest tokens."""

LOWEST = -3.4028234663852886e38
"""The lowest finite float32, for impossible tokens: JSON has no infinity."""


def build_steps(tokens: Sequence[int], logprobs: Sequence[Logprobs] | None, request: TokenRequest) -> Steps:
    """Builds the event of new tokens."""
    if request.logprobs is None or logprobs is None:
        return Steps(tuple(tokens))
    rows = list(zip(tokens, logprobs, strict=True))
    values = tuple(read_logprob(row[token]) for token, row in rows)
    if request.logprob_token_ids:
        wanted = request.logprob_token_ids
        return Steps(
            tuple(tokens),
            values,
            tuple(tuple((each, read_logprob(row[each])) for each in wanted) for _, row in rows),
        )
    count = request.logprobs
    return Steps(tuple(tokens), values, tuple(list_best(token, row, count) for token, row in rows))


def read_logprob(entry: VllmLogprob) -> float:
    return max(float(entry.logprob), LOWEST)


def list_best(token: int, row: Logprobs, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens of a place, best first. vLLM adds the place's own token if it is not among
    them."""
    entries = [(each, read_logprob(entry)) for each, entry in row.items()]
    if len(entries) > count:
        entries = [entry for entry in entries if entry[0] != token]
    return tuple(sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:count])


def build_scores(prompt: Sequence[int], rows: Sequence[Logprobs | None], count: int) -> PromptScores | None:
    """Builds the scores of a prompt; None for a prompt of one token. vLLM has no scores for the first
    token."""
    places = [(token, row) for token, row in zip(prompt, rows, strict=True) if row is not None]
    if not places:
        return None
    best = [list_best(token, row, count) for token, row in places]
    return PromptScores(
        start=1,
        logprobs=_pack("f", (read_logprob(row[token]) for token, row in places)),
        alternative_ids=_pack("i", (token for row in best for token, _ in row)),
        alternative_logprobs=_pack("f", (value for row in best for _, value in row)),
        ranks=_pack("i", (row[token].rank or 1 for token, row in places)),
    )


def _pack(kind: str, values: Iterable[float]) -> bytes:
    """Packs numbers of four bytes, little-endian."""
    numbers = list(values)
    return struct.pack(f"<{len(numbers)}{kind}", *numbers)
