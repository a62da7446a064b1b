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

from antiphon.dialects.common.answers import (
    ChatLogprobs,
    RankedToken,
    TextLogprobs,
    TokenLogprob,
    TopLogprob,
)
from antiphon.domain.scores import Scores, TokenScore

UNLIKELY = -9999.0
"""OpenAI's number for what is less likely than any number should say; JSON has no infinity."""

BLOCK = 256
"""Tokens that are objects at once."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def spell_token(piece: bytes) -> str:
    r"""A token as text; one that holds part of a character as OpenAI spells it: `bytes:\xe2\x98`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


TokenSpelling = Callable[[int, bytes], str]
"""How a token is called: from its id and its piece."""


def spell_by_text(_token: int, piece: bytes) -> str:
    return spell_token(piece)


def spell_by_id(token: int, _piece: bytes) -> str:
    """As vLLM writes it with `return_tokens_as_token_ids`."""
    return f"token_id:{token}"


def build_chat_logprobs(scores: Scores, spell: TokenSpelling = spell_by_text) -> ChatLogprobs:
    """An entry for each token, with its alternatives."""
    return ChatLogprobs(content=encode_list(scores, lambda score: _build_entry(score, spell)))


def build_text_logprobs(
    scores: Scores, alternatives: bool, spell: TokenSpelling = spell_by_text
) -> TextLogprobs:
    """Four arrays of equal length; that of the alternatives, which always hold the token itself too, only
    when some were asked for."""
    columns: tuple[list[bytes], ...] = ([], [], [], [])
    for block in _split_blocks(scores):
        columns[0].append(_encode([spell(score.token, score.piece) for score in block]))
        columns[1].append(_encode([clamp_logprob(score.logprob) for score in block]))
        columns[2].append(
            _encode([build_top_logprobs(score, spell) for score in block] if alternatives else [])
        )
        columns[3].append(_encode([score.offset for score in block]))
    made: dict[str, Any] = dict(zip(TextLogprobs.__struct_fields__, map(_join_lists, columns), strict=True))
    return TextLogprobs(**(made if alternatives else made | {"top_logprobs": None}))


def encode_prompt_logprobs(scores: Scores) -> Any:  # noqa: ANN401 - PromptLogprobs, already written
    """A prompt's tokens by their ids: stands where a wire type has PromptLogprobs."""
    return encode_list(scores, _rank_alternatives)


def encode_list(scores: Scores, make: Callable[[TokenScore], object]) -> Any:  # noqa: ANN401 - as of any list
    """What is made of every token, as a list that is written already and stands where a wire type has one."""
    return _join_lists(_encode(list(map(make, block))) for block in _split_blocks(scores))


def _rank_alternatives(score: TokenScore) -> dict[str, RankedToken] | None:
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
        str(token): RankedToken(logprob=max(value, UNLIKELY), rank=rank, decoded_token=spell_token(piece))
        for token, (value, rank, piece) in found.items()
    }


def _build_entry(score: TokenScore, spell: TokenSpelling) -> TokenLogprob:
    best = [
        TopLogprob(token=spell(token, piece), logprob=max(value, UNLIKELY), bytes=list(piece))
        for token, piece, value in score.alternatives
    ]
    value = UNLIKELY if score.logprob is None else max(score.logprob, UNLIKELY)
    token = spell(score.token, score.piece)
    return TokenLogprob(token=token, logprob=value, bytes=list(score.piece), top_logprobs=best)


def build_top_logprobs(score: TokenScore, spell: TokenSpelling = spell_by_text) -> dict[str, float] | None:
    """The alternatives by their spelling, best first; of two that are spelt alike the likelier."""
    if score.logprob is None:
        return None
    found: dict[str, float] = {}
    for token, piece, value in (*score.alternatives, (score.token, score.piece, score.logprob)):
        found.setdefault(spell(token, piece), max(value, UNLIKELY))
    return found


def clamp_logprob(value: float | None) -> float | None:
    """A log-probability as JSON can say it."""
    return None if value is None else max(value, UNLIKELY)


def _split_blocks(scores: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(scores)
    while block := list(islice(rest, BLOCK)):
        yield block


def _join_lists(lists: Iterable[bytes]) -> msgspec.Raw:
    """JSON lists as one, which stands where the wire type has the list."""
    return msgspec.Raw(b"[%b]" % b",".join(inner for each in lists if (inner := each[1:-1])))
