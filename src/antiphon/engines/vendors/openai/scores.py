"""Reads the log-probabilities of OpenAI's answers."""

from collections.abc import Iterator

from antiphon.domain.logprobs import NO_ID, TokenScore
from antiphon.engines.vendors.openai.wire_types import LogprobsWire


def read_scores(said: LogprobsWire, offset: int) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a choice's new tokens. `offset`: characters before them."""
    if said.content is None:
        yield from _read_arrays(said, offset)
        return
    for token in said.content:
        alternatives = tuple(
            (NO_ID, _get_piece(each.token, each.bytes), each.logprob) for each in token.top_logprobs or ()
        )
        yield TokenScore(NO_ID, _get_piece(token.token, token.bytes), token.logprob, alternatives, offset)
        offset += len(token.token)


def _get_piece(token: str, piece: list[int] | None) -> bytes:
    """Returns the bytes of a token."""
    return token.encode() if piece is None else bytes(piece)


def _read_arrays(said: LogprobsWire, offset: int) -> Iterator[TokenScore]:
    """Yields the tokens of a text's arrays."""
    tokens, values = said.tokens or [], said.token_logprobs or []
    best = said.top_logprobs or [None] * len(tokens)
    for token, value, others in zip(tokens, values, best, strict=True):
        ranked = sorted((others or {}).items(), key=lambda each: -each[1])
        alternatives = tuple((NO_ID, text.encode(), number) for text, number in ranked)
        yield TokenScore(NO_ID, token.encode(), value, alternatives, offset)
        offset += len(token)
