"""Log-probabilities of tokens, as objects or packed in arrays. Objects for a long prompt would need fifteen
times the memory."""

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
    """Its bytes, perhaps part of a character; for a control token, which adds no text, its name."""
    logprob: float | None
    """None for a prompt's first token, which follows nothing."""
    alternatives: tuple[tuple[int, bytes, float], ...] = ()
    """The likeliest (id, piece, log-probability) at its place, best first."""
    offset: int = 0
    """The character of its choice's text that holds its first byte; the text's length for a last control
    token."""
    rank: int | None = None
    """1 for the likeliest token; None if not requested, and for a prompt's first token."""


Scores = Sequence[TokenScore]
"""The scores of consecutive tokens of one text."""


@dataclass(frozen=True, slots=True)
class PackedScores(Sequence[TokenScore]):
    """Scores in arrays; a score becomes an object only while it is read."""

    tokens: Sequence[int]
    offsets: Sequence[int]
    logprobs: "array[float]"
    """NaN where there is none."""
    pieces: Sequence[bytes]
    """The bytes of every id."""
    width: int = 0
    """Alternatives of each token."""
    alternative_ids: "array[int]" = field(default_factory=lambda: array("i"))
    """`held` ids for each token."""
    alternative_logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    held: int | None = None
    """Alternatives that the arrays hold for each token, of which the first `width` are given; None means
    `width`."""
    ranks: "array[int] | None" = None
    """One rank for each token; None if not requested."""

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
    """Several scores in a row, without copying."""

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
    """Joins scores without unpacking any."""
    held = tuple(part for part in parts if part)
    if all(isinstance(part, tuple) for part in held):
        return tuple(chain.from_iterable(held))
    return held[0] if len(held) == 1 else JoinedScores(held)
