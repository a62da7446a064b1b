"""Log-probabilities in OpenAI's two shapes: a list of entries for a chat, parallel arrays for a text; and a
prompt's as vLLM writes them.

All are written some hundred tokens at a time, since a long prompt with its alternatives would take several
times as much space as objects than as JSON.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import inf
from typing import Any, TypeVar

import msgspec

from antiphon.dialects.common.answers import ChatLogprobs, RankedToken, TextLogprobs, TokenLogprob, TopLogprob
from antiphon.domain.scores import Scores, TokenScore

UNLIKELY = -9999.0
"""OpenAI's number for what is less likely than any number should say; JSON has no infinity."""

BLOCK = 256
"""Tokens that are objects at once."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def spelt(piece: bytes) -> str:
    r"""A token as text; one that holds part of a character as OpenAI spells it: `bytes:\xe2\x98`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


Spell = Callable[[int, bytes], str]
"""How a token is called: from its id and its piece."""


def by_text(_token: int, piece: bytes) -> str:
    return spelt(piece)


def by_id(token: int, _piece: bytes) -> str:
    """As vLLM writes it with `return_tokens_as_token_ids`."""
    return f"token_id:{token}"


def chat_logprobs(scores: Scores, spell: Spell = by_text) -> ChatLogprobs:
    """An entry for each token, with its alternatives."""
    return ChatLogprobs(content=written(scores, lambda score: _entry(score, spell)))


def text_logprobs(scores: Scores, alternatives: bool, spell: Spell = by_text) -> TextLogprobs:
    """Four arrays of equal length; that of the alternatives, which always hold the token itself too, only
    when some were asked for."""
    columns: tuple[list[bytes], ...] = ([], [], [], [])
    for block in _blocks(scores):
        columns[0].append(_encode([spell(score.token, score.piece) for score in block]))
        columns[1].append(_encode([number(score.logprob) for score in block]))
        columns[2].append(_encode([ranked(score, spell) for score in block] if alternatives else []))
        columns[3].append(_encode([score.offset for score in block]))
    made: dict[str, Any] = dict(zip(TextLogprobs.__struct_fields__, map(_joined, columns), strict=True))
    return TextLogprobs(**(made if alternatives else made | {"top_logprobs": None}))


def prompt_logprobs(scores: Scores) -> Any:  # noqa: ANN401 - PromptLogprobs, already written
    """A prompt's tokens by their ids: stands where a wire type has PromptLogprobs."""
    return written(scores, _placed)


def written(scores: Scores, make: Callable[[TokenScore], object]) -> Any:  # noqa: ANN401 - as of any list
    """What is made of every token, as a list that is written already and stands where a wire type has one."""
    return _joined(_encode(list(map(make, block))) for block in _blocks(scores))


def _placed(score: TokenScore) -> dict[str, RankedToken] | None:
    """The token and the likeliest at its place. Raises ValueError where nobody asked for its rank."""
    if score.logprob is None:
        return None
    if score.rank is None:
        raise ValueError("the prompt's tokens have no ranks")
    found = {score.token: (score.logprob, score.rank, score.piece)}
    rank, before = 0, inf
    for place, (token, piece, value) in enumerate(score.alternatives, start=1):
        rank, before = (place if value < before else rank), value
        found.setdefault(token, (value, rank, piece))
    return {
        str(token): RankedToken(logprob=max(value, UNLIKELY), rank=rank, decoded_token=spelt(piece))
        for token, (value, rank, piece) in found.items()
    }


def _entry(score: TokenScore, spell: Spell) -> TokenLogprob:
    best = [
        TopLogprob(token=spell(token, piece), logprob=max(value, UNLIKELY), bytes=list(piece))
        for token, piece, value in score.alternatives
    ]
    value = UNLIKELY if score.logprob is None else max(score.logprob, UNLIKELY)
    token = spell(score.token, score.piece)
    return TokenLogprob(token=token, logprob=value, bytes=list(score.piece), top_logprobs=best)


def ranked(score: TokenScore, spell: Spell = by_text) -> dict[str, float] | None:
    """The alternatives by their spelling, best first; of two that are spelt alike the likelier."""
    if score.logprob is None:
        return None
    found: dict[str, float] = {}
    for token, piece, value in (*score.alternatives, (score.token, score.piece, score.logprob)):
        found.setdefault(spell(token, piece), max(value, UNLIKELY))
    return found


def number(value: float | None) -> float | None:
    """A log-probability as JSON can say it."""
    return None if value is None else max(value, UNLIKELY)


def _blocks(scores: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(scores)
    while block := list(islice(rest, BLOCK)):
        yield block


def _joined(lists: Iterable[bytes]) -> msgspec.Raw:
    """JSON lists as one, which stands where the wire type has the list."""
    return msgspec.Raw(b"[%b]" % b",".join(inner for each in lists if (inner := each[1:-1])))
