"""Reads the log-probabilities of OpenAI's answers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from antiphon.domain.logprobs import NO_ID, TokenScore
from antiphon.domain.request import Output
from antiphon.engines.vendors.openai.wire_types import LogprobsWire


def count_alternatives(output: Output) -> int | None:
    """Returns how many alternatives of a token the caller gets. None means all that the vendor sends."""
    return output.logprobs if output.logprobs is not None and output.logprobs >= 0 else None


def read_scores(
    logprobs: LogprobsWire, offset: int, max_alternatives: int | None = None
) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a choice's new tokens. `offset`: the characters
    before them. `max_alternatives` cuts the alternatives of each token, because some servers send more than
    the request asked for."""
    if logprobs.content is None:
        yield from _read_arrays(logprobs, offset, max_alternatives)
        return
    for token in logprobs.content:
        alternatives = tuple(
            (NO_ID, _get_piece(alternative.token, alternative.bytes), alternative.logprob)
            for alternative in (token.top_logprobs or ())[:max_alternatives]
        )
        yield TokenScore(NO_ID, _get_piece(token.token, token.bytes), token.logprob, alternatives, offset)
        offset += len(token.token)


def _get_piece(token: str, piece: list[int] | None) -> bytes:
    """Returns the bytes of a token."""
    return token.encode() if piece is None else bytes(piece)


def _read_arrays(logprobs: LogprobsWire, offset: int, max_alternatives: int | None) -> Iterator[TokenScore]:
    """Yields the log-probabilities of a text completion, which has an array for each property of tokens."""
    tokens, values = logprobs.tokens or [], logprobs.token_logprobs or []
    top_logprobs = logprobs.top_logprobs or [None] * len(tokens)
    offsets = _find_offsets(tokens, logprobs.text_offset, offset)
    for token, value, top, token_offset in zip(tokens, values, top_logprobs, offsets, strict=True):
        ranked = sorted((top or {}).items(), key=lambda each: -each[1])
        alternatives = tuple((NO_ID, text.encode(), number) for text, number in ranked[:max_alternatives])
        yield TokenScore(NO_ID, token.encode(), value, alternatives, token_offset)


def _find_offsets(tokens: Sequence[str], reported: Sequence[int] | None, offset: int) -> Iterable[int]:
    """Returns the offset of each token in the text. Uses the server's offsets if they are valid, because
    names of control tokens have a length but are not in the text. Otherwise sums the tokens' lengths. Some
    servers send -1, which is not valid."""
    if reported is not None and len(reported) == len(tokens) and min(reported, default=0) >= 0:
        return reported
    return accumulate(map(len, tokens[:-1]), initial=offset) if tokens else ()
