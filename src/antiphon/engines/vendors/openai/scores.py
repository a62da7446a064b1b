"""Reads the log-probabilities of OpenAI's answers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from antiphon.domain.logprobs import NO_ID, TokenScore
from antiphon.domain.request import Output
from antiphon.engines.vendors.openai.wire_types import LogprobsWire


def count_alternatives(output: Output) -> int | None:
    """Returns how many alternatives of a token the caller gets. None is all that come."""
    return output.logprobs if output.logprobs is not None and output.logprobs >= 0 else None


def read_scores(said: LogprobsWire, offset: int, most: int | None = None) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a choice's new tokens. `offset`: characters before them. `most`:
    alternatives of each, since some servers give more than they are asked for."""
    if said.content is None:
        yield from _read_arrays(said, offset, most)
        return
    for token in said.content:
        alternatives = tuple(
            (NO_ID, _get_piece(each.token, each.bytes), each.logprob)
            for each in (token.top_logprobs or ())[:most]
        )
        yield TokenScore(NO_ID, _get_piece(token.token, token.bytes), token.logprob, alternatives, offset)
        offset += len(token.token)


def _get_piece(token: str, piece: list[int] | None) -> bytes:
    """Returns the bytes of a token."""
    return token.encode() if piece is None else bytes(piece)


def _read_arrays(said: LogprobsWire, offset: int, most: int | None) -> Iterator[TokenScore]:
    """Yields the tokens of a text's arrays."""
    tokens, values = said.tokens or [], said.token_logprobs or []
    best = said.top_logprobs or [None] * len(tokens)
    offsets = _find_offsets(tokens, said.text_offset, offset)
    for token, value, others, at in zip(tokens, values, best, offsets, strict=True):
        ranked = sorted((others or {}).items(), key=lambda each: -each[1])
        alternatives = tuple((NO_ID, text.encode(), number) for text, number in ranked[:most])
        yield TokenScore(NO_ID, token.encode(), value, alternatives, at)


def _find_offsets(tokens: Sequence[str], told: Sequence[int] | None, offset: int) -> Iterable[int]:
    """Returns the place of each token in the text: as the server tells, or by the tokens' lengths. Names of
    control tokens have a length, and are not in the text. Some servers tell -1, which is no place."""
    if told is not None and len(told) == len(tokens) and min(told, default=0) >= 0:
        return told
    return accumulate(map(len, tokens[:-1]), initial=offset) if tokens else ()
