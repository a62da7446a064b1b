"""Log-probabilities of tokens, one by one or packed: a long prompt has as many as it has tokens, and as
objects they would take fifteen times the space."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import isnan
from typing import overload


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of a text with its log-probability in the model's raw distribution: before bias, penalties,
    temperature and cuts."""

    token: int
    piece: bytes
    """Its bytes, perhaps part of a character; of a control token, which adds nothing to a text, the name."""
    logprob: float | None
    """None for a prompt's first token, which nothing comes before."""
    alternatives: tuple[tuple[int, bytes, float], ...] = ()
    """The likeliest (id, piece, log-probability) at its place, best first."""
    offset: int = 0
    """Which character of its choice's text holds its first byte; the text's length for a control token that
    comes last."""
    rank: int | None = None
    """1 for the likeliest token at its place; None where nobody asked, and for a prompt's first token."""


Scores = Sequence[TokenScore]
"""Of consecutive tokens of one text."""


@dataclass(frozen=True, slots=True)
class PackedScores(Sequence[TokenScore]):
    """Scores in arrays; each becomes an object only while it is looked at."""

    tokens: Sequence[int]
    offsets: Sequence[int]
    logprobs: "array[float]"
    """NaN where nothing is known."""
    pieces: Sequence[bytes]
    """Of every id."""
    width: int = 0
    """Alternatives of each token."""
    alternative_ids: "array[int]" = field(default_factory=lambda: array("i"))
    """`held` for each token; of one that has none, whatever."""
    alternative_logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    held: int | None = None
    """Alternatives of each token that are held, of which the first `width` are given; None are as many."""
    ranks: "array[int] | None" = None
    """One for each token; None where nobody asked."""

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[TokenScore]:
        return map(self._score, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> TokenScore: ...
    @overload
    def __getitem__(self, index: slice) -> Scores: ...
    def __getitem__(self, index: int | slice) -> TokenScore | Scores:
        if isinstance(index, slice):
            return tuple(self._score(place) for place in range(*index.indices(len(self))))
        return self._score(range(len(self))[index])

    def _score(self, place: int) -> TokenScore:
        token, value = self.tokens[place], self.logprobs[place]
        known = not isnan(value)
        return TokenScore(
            token,
            self.pieces[token],
            value if known else None,
            self._alternatives(place) if known else (),
            self.offsets[place],
            self.ranks[place] if known and self.ranks is not None else None,
        )

    def _alternatives(self, place: int) -> tuple[tuple[int, bytes, float], ...]:
        begin = place * (self.width if self.held is None else self.held)
        end = begin + self.width
        ids = self.alternative_ids[begin:end]
        return tuple(
            (token, self.pieces[token], value)
            for token, value in zip(ids, self.alternative_logprobs[begin:end], strict=True)
        )


@dataclass(frozen=True, slots=True)
class JoinedScores(Sequence[TokenScore]):
    """Scores after scores, as they are."""

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
    """All of them as one, without unpacking any."""
    held = tuple(part for part in parts if part)
    if all(isinstance(part, tuple) for part in held):
        return tuple(chain.from_iterable(held))
    return held[0] if len(held) == 1 else JoinedScores(held)
