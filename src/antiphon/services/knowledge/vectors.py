"""Makes the vectors of texts by the server's embedding models, as the caller."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.errors import AntiphonError, EngineError, InvalidValue
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.knowledge import ChunkSizes

BATCH = 64
"""Texts of one embedding call."""

FRAME = 6
"""Tokens of a model's context that are left for the marks around a text, two or three in known models."""

LONGEST_TOKENS = 512
"""Tokens of a chunk where the table says nothing and the model reads more."""

CHARACTERS = 2000
"""Characters of a chunk where the table says nothing and the model's tokens cannot be counted."""

OVERLAP = 10
"""A chunk repeats one in so many parts of its size where the table says nothing."""

INPUT = re.compile(r"input(?:\[(\d+)\])?")
"""The field of an error about one of the texts."""

WORD = "word"
"""The text whose vector tells a model's dimensions."""

E = TypeVar("E", bound=AntiphonError)


@dataclass(frozen=True, slots=True)
class EmbeddingModelInfo:
    """An embedding model that a caller can use."""

    name: str
    """Its own name, also where the caller used an alias."""
    context_length: int | None
    """Most tokens of one text; None if it is unknown."""
    counts_tokens: bool
    """Whether its tokens can be counted here."""

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a chunk; None if the tokens cannot be counted, or the model has no known limit."""
        if self.context_length is None or not self.counts_tokens:
            return None
        return max(1, self.context_length - FRAME)


class EmbeddingModels(Protocol):
    """The server's embedding models."""

    async def find(self, name: str, actor: Actor) -> EmbeddingModelInfo:
        """Raises ModelNotFound, PermissionDenied, and UnsupportedParameter for a model without vectors."""

    async def find_first(self, actor: Actor) -> EmbeddingModelInfo | None:
        """Returns the first embedding model that the actor can use."""

    async def count_tokens(self, model: str, texts: Sequence[str], actor: Actor) -> list[int]:
        """Returns the tokens of each text, without the marks around it."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Makes vectors as `Pipeline.embed` does."""


def choose_sizes(
    model: EmbeddingModelInfo | None, size: int | None, overlap: int | None, unit: SizeUnit | None
) -> ChunkSizes:
    """Fills in what the caller leaves out. Raises InvalidValue for what the model cannot do."""
    longest = None if model is None else model.longest_text
    if unit is None:
        unit = SizeUnit.CHARACTERS if longest is None else SizeUnit.TOKENS
    if unit is SizeUnit.TOKENS:
        if longest is None:
            raise InvalidValue(
                "chunk_unit can be tokens only with an embedding model of this server; send characters",
                param="chunk_unit",
            )
        size = min(LONGEST_TOKENS, longest) if size is None else size
        if size > longest:
            raise InvalidValue(
                f"chunk_size can be at most {longest} tokens, which is what the embedding model reads",
                param="chunk_size",
            )
    size = CHARACTERS if size is None else size
    return ChunkSizes(size, size // OVERLAP if overlap is None else overlap, unit)


async def embed_texts(
    models: EmbeddingModels,
    model: str,
    dimensions: int,
    texts: Sequence[str],
    context: Context,
    fields: Sequence[str],
) -> list[bytes]:
    """Returns the vector of each text, in order. Equal texts are embedded once. `fields`: the request field
    that an error about each text names. Raises InvalidValue where the model now makes vectors of other
    dimensions than the table's."""
    vectors: dict[str, bytes] = {}
    different = list(dict.fromkeys(texts))
    for start in range(0, len(different), BATCH):
        part = different[start : start + BATCH]
        request = EmbeddingRequest(model, tuple(RawPrompt(text) for text in part))
        try:
            made = await models.embed(request, context)
        except AntiphonError as error:
            raise _name_field(error, [fields[texts.index(text)] for text in part]) from None
        if len(made) != len(part):
            raise EngineError(f"{model} did not make a vector of each text")
        if made.dimensions != dimensions:
            raise InvalidValue(
                f"the table has vectors of {dimensions} numbers, and {model} now makes {made.dimensions}: "
                "serve the model that it was made with, or make a new table",
                param="table",
            )
        vectors.update(zip(part, made, strict=True))
    return [vectors[text] for text in texts]


async def measure_dimensions(models: EmbeddingModels, model: str, context: Context) -> int:
    """Returns the dimensions of a model's vectors, by embedding one word."""
    return (await models.embed(EmbeddingRequest(model, (RawPrompt(WORD),)), context)).dimensions


def _name_field(error: E, fields: Sequence[str]) -> E:
    """Changes an error about an input to one about the caller's field. `fields`: of the inputs."""
    found = INPUT.fullmatch(error.param or "")
    if found is not None:
        named = fields[int(found[1] or 0)]
        error.message = error.message.replace(found[0], named)
        error.param = named
    return error
