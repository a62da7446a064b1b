"""Log-probabilities of tokens, as objects or packed in arrays. Objects for a long prompt would need fifteen
times the memory."""

import dataclasses
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from math import isnan
from typing import overload

from antiphon.domain.values import Struct

NO_ID = -1
"""The placeholder for an unknown token id."""


class TokenScore(Struct, frozen=True):
    """One token of a text with its log-probability in the model's raw distribution: before bias, penalties,
    temperature and cuts."""

    token: int
    """The token's id; `NO_ID` if a vendor does not tell it. The same holds for alternatives."""
    piece: bytes
    """The bytes of the token, which may be a part of a character. A control token, which adds no text, has
    its name here."""
    logprob: float | None
    """The log-probability; None for the first token of a prompt, which follows no token."""
    alternatives: tuple[tuple[int, bytes, float], ...] = ()
    """The likeliest tokens at this position as (id, piece, log-probability), the likeliest first."""
    offset: int = 0
    """The index, in the choice's text, of the character that contains the token's first byte. For a control
    token at the end it is the text's length."""
    rank: int | None = None
    """The token's rank by probability: 1 for the likeliest. None if the caller does not request ranks, and
    for a prompt's first token."""


Scores = Sequence[TokenScore]
"""The scores of consecutive tokens of one text."""


@dataclasses.dataclass(frozen=True, slots=True)
class PackedScores(Sequence[TokenScore]):
    """Scores in arrays. Reading a score creates a `TokenScore`."""

    tokens: Sequence[int]
    offsets: Sequence[int]
    logprobs: "array[float]"
    """The log-probability of each token; NaN for a token without one."""
    pieces: Sequence[bytes]
    """The bytes of every token of the vocabulary."""
    alternatives_per_token: int = 0
    """The number of alternatives in each `TokenScore`."""
    alternative_ids: "array[int]" = dataclasses.field(default_factory=lambda: array("i"))
    """The alternatives' ids, `stored_per_token` for each token."""
    alternative_logprobs: "array[float]" = dataclasses.field(default_factory=lambda: array("f"))
    stored_per_token: int | None = None
    """The number of alternatives that the arrays contain for each token; None means `alternatives_per_token`.
    A `TokenScore` gets only the first `alternatives_per_token` of them."""
    ranks: "array[int] | None" = None
    """One rank for each token; None if not requested."""

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[TokenScore]:
        return map(self._build_score, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Scores:
        if isinstance(index, slice):
            return tuple(self._build_score(position) for position in range(*index.indices(len(self))))
        return self._build_score(range(len(self))[index])

    def _build_score(self, position: int) -> TokenScore:
        """Builds the score of the token at this index."""
        token, value = self.tokens[position], self.logprobs[position]
        has_logprob = not isnan(value)
        return TokenScore(
            token,
            self.pieces[token],
            value if has_logprob else None,
            self._list_alternatives(position) if has_logprob else (),
            self.offsets[position],
            self.ranks[position] if has_logprob and self.ranks is not None else None,
        )

    def _list_alternatives(self, position: int) -> tuple[tuple[int, bytes, float], ...]:
        """Returns the alternatives of the token at this index."""
        begin = position * (
            self.alternatives_per_token if self.stored_per_token is None else self.stored_per_token
        )
        end = begin + self.alternatives_per_token
        ids = self.alternative_ids[begin:end]
        return tuple(
            (token, self.pieces[token], value)
            for token, value in zip(ids, self.alternative_logprobs[begin:end], strict=True)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class JoinedScores(Sequence[TokenScore]):
    """Several sequences of scores as one, without copying them."""

    parts: tuple[Scores, ...]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[TokenScore]:
        return chain.from_iterable(self.parts)

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Scores:
        return tuple(self)[index]


def join_scores(parts: Sequence[Scores]) -> Scores:
    """Joins the scores to one sequence, without unpacking packed scores."""
    nonempty = tuple(part for part in parts if part)
    if all(isinstance(part, tuple) for part in nonempty):
        return tuple(chain.from_iterable(nonempty))
    return nonempty[0] if len(nonempty) == 1 else JoinedScores(nonempty)
