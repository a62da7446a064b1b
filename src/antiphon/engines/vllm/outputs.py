"""Translates vLLM's outputs to events. The values are read by attribute names, so this module does not import
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
"""The log-probabilities at one position: of the token there, and of the likeliest tokens."""

LOWEST = -3.4028234663852886e38
"""The lowest finite float32, for impossible tokens: JSON has no infinity."""


def build_steps(tokens: Sequence[int], logprobs: Sequence[Logprobs] | None, request: TokenRequest) -> Steps:
    """Builds the event of new tokens."""
    if request.logprobs is None or logprobs is None:
        return Steps(tuple(tokens))
    rows = list(zip(tokens, logprobs, strict=True))
    values = tuple(clamp_logprob(row[token]) for token, row in rows)
    if request.logprob_token_ids:
        listed_ids = request.logprob_token_ids
        return Steps(
            tuple(tokens),
            values,
            tuple(
                tuple((token_id, clamp_logprob(row[token_id])) for token_id in listed_ids) for _, row in rows
            ),
        )
    count = request.logprobs
    return Steps(tuple(tokens), values, tuple(list_best(token, row, count) for token, row in rows))


def clamp_logprob(entry: VllmLogprob) -> float:
    """Returns a log-probability, at least LOWEST."""
    return max(float(entry.logprob), LOWEST)


def list_best(token: int, row: Logprobs, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` likeliest tokens of a position, best first. `token`: the token at the position. vLLM
    reports it too, so it is left out if it is not among the likeliest."""
    entries = [(token_id, clamp_logprob(entry)) for token_id, entry in row.items()]
    if len(entries) > count:
        entries = [entry for entry in entries if entry[0] != token]
    return tuple(sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:count])


def build_scores(prompt: Sequence[int], rows: Sequence[Logprobs | None], count: int) -> PromptScores | None:
    """Builds the scores of a prompt; None for a prompt of one token. vLLM reports no score for the first
    token."""
    scored_tokens = [(token, row) for token, row in zip(prompt, rows, strict=True) if row is not None]
    if not scored_tokens:
        return None
    likeliest = [list_best(token, row, count) for token, row in scored_tokens]
    return PromptScores(
        start=1,
        logprobs=_pack("f", (clamp_logprob(row[token]) for token, row in scored_tokens)),
        alternative_ids=_pack("i", (token for row in likeliest for token, _ in row)),
        alternative_logprobs=_pack("f", (value for row in likeliest for _, value in row)),
        ranks=_pack("i", (row[token].rank or 1 for token, row in scored_tokens)),
    )


def _pack(type_code: str, values: Iterable[float]) -> bytes:
    """Packs numbers of four bytes, little-endian."""
    number_list = list(values)
    return struct.pack(f"<{len(number_list)}{type_code}", *number_list)
