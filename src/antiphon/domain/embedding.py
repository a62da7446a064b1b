"""Embeddings: texts in, a vector of unit length for each out."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from antiphon.domain.request import RawPrompt

WIDTH = 4
"""Bytes of one number of a vector: float32, little-endian."""


class Pooling(StrEnum):
    """How the rows of a text's tokens become its one vector."""

    MEAN = "mean"
    CLS = "cls"
    """The first token's row."""
    LAST = "last"
    """The last token's row."""


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """The vectors that an embedding model makes."""

    dimensions: int
    """Numbers of one vector."""
    pooling: Pooling


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """One call."""

    model: str
    inputs: tuple[RawPrompt, ...]
    """Text, in which nothing is a control token, or token ids as they are."""
    dimensions: int | None = None
    """Numbers of each vector; None is the model's own."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors of a request."""

    vectors: bytes
    """One after the other in the order of the inputs."""
    dimensions: int
    prompt_tokens: int
    """Tokens of all inputs, with the tokenizer's own before and after a text."""

    def __len__(self) -> int:
        """Number of vectors."""
        return len(self.vectors) // (self.dimensions * WIDTH)

    def __iter__(self) -> Iterator[bytes]:
        """The vectors, one by one."""
        width = self.dimensions * WIDTH
        return (self.vectors[at : at + width] for at in range(0, len(self.vectors), width))


@dataclass(frozen=True, slots=True)
class EmbedRequest:
    """A token engine's job: token ids of several texts, whose vectors are computed in order."""

    texts: tuple[tuple[int, ...], ...]
    """As the model reads them, special tokens included."""
    actor: str = ""
    """An opaque id; actors take turns."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors of consecutive texts. Several come for one request, in order, and cover it."""

    start: int
    """Index of the first text in the request."""
    values: bytes
    """Float32, little-endian: as many for each text as the model has dimensions, of unit length."""
