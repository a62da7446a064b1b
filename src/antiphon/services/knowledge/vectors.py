"""Embeds texts with the server's embedding models. Each call has the rights of a caller."""

import re
from collections.abc import Sequence
from typing import Protocol

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.domain.values import Struct
from antiphon.errors import AntiphonError, EngineError, InvalidValue
from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.knowledge import ChunkSizes

TEXTS_PER_CALL = 64
"""Texts per embedding call."""

RESERVED_TOKENS = 6
"""Tokens of a model's context that are reserved for special tokens around a text. Known models need two or
three."""

DEFAULT_CHUNK_TOKENS = 512
"""The default size of a chunk in tokens, if the model can read so many."""

DEFAULT_CHUNK_CHARACTERS = 2000
"""The default size of a chunk in characters, if the model's tokens cannot be counted."""

OVERLAP_DIVISOR = 10
"""The default overlap of chunks is this fraction of their size: one tenth."""

INPUT_FIELD = re.compile(r"input(?:\[(\d+)\])?")
"""Matches the field that an error about one of the texts names: `input`, or `input[3]`."""

PROBE_TEXT = "word"
"""This text is embedded to measure the dimensions of a model."""


class EmbeddingModelInfo(Struct, frozen=True):
    """An embedding model that a caller can use."""

    name: str
    """The name of the model, also if the caller used an alias."""
    context_length: int | None
    """The most tokens of one text; None if it is unknown."""
    counts_tokens: bool
    """Whether this server can count its tokens."""

    @property
    def longest_text(self) -> int | None:
        """The most tokens of a chunk; None if this server cannot count the tokens or does not know the
        limit."""
        if self.context_length is None or not self.counts_tokens:
            return None
        return max(1, self.context_length - RESERVED_TOKENS)


class EmbeddingModels(Protocol):
    """The server's embedding models."""

    async def find(self, name: str, actor: Actor) -> EmbeddingModelInfo:
        """Returns the model with this name or alias. Raises ModelNotFound, PermissionDenied, and
        UnsupportedParameter if the model does not make vectors."""

    async def find_first(self, actor: Actor) -> EmbeddingModelInfo | None:
        """Returns the first embedding model that the actor can use; None if there is none."""

    async def count_tokens(self, model: str, texts: Sequence[str], actor: Actor) -> list[int]:
        """Returns the number of tokens of each text, without special tokens."""

    async def embed(self, request: EmbeddingRequest, context: Context) -> Embeddings:
        """Embeds texts as `Pipeline.embed` does."""


def choose_sizes(
    model: EmbeddingModelInfo | None, size: int | None, overlap: int | None, unit: SizeUnit | None
) -> ChunkSizes:
    """Returns the sizes of chunks, with defaults for missing values. Raises InvalidValue if the model does
    not support them."""
    max_tokens = None if model is None else model.longest_text
    if unit is None:
        unit = SizeUnit.CHARACTERS if max_tokens is None else SizeUnit.TOKENS
    if unit is SizeUnit.TOKENS:
        if max_tokens is None:
            raise InvalidValue(
                "chunk_unit can be tokens only if this server can count the tokens of the embedding model "
                "and knows its context length; send characters",
                param="chunk_unit",
            )
        size = min(DEFAULT_CHUNK_TOKENS, max_tokens) if size is None else size
        if size > max_tokens:
            raise InvalidValue(
                f"chunk_size can be at most {max_tokens} tokens, the most that the embedding model reads",
                param="chunk_size",
            )
    size = DEFAULT_CHUNK_CHARACTERS if size is None else size
    return ChunkSizes(size, size // OVERLAP_DIVISOR if overlap is None else overlap, unit)


async def embed_texts(
    models: EmbeddingModels,
    model: str,
    dimensions: int,
    texts: Sequence[str],
    context: Context,
    fields: Sequence[str],
) -> list[bytes]:
    """Returns the vector of each text, in order. Equal texts are embedded once. `dimensions`: those of the
    table. `fields`: the request field of each text, for errors. Raises InvalidValue if the model now makes
    vectors of other dimensions."""
    vectors: dict[str, bytes] = {}
    unique_texts = list(dict.fromkeys(texts))
    for start in range(0, len(unique_texts), TEXTS_PER_CALL):
        batch = unique_texts[start : start + TEXTS_PER_CALL]
        request = EmbeddingRequest(model, tuple(RawPrompt(text) for text in batch))
        try:
            embeddings = await models.embed(request, context)
        except AntiphonError as error:
            match = INPUT_FIELD.fullmatch(error.param or "")
            if match is not None:  # the error is about `input[N]`, and the caller sent another field
                field = fields[texts.index(batch[int(match[1] or 0)])]
                error.message = error.message.replace(match[0], field)
                error.param = field
            raise
        if len(embeddings) != len(batch):
            raise EngineError(f"{model} did not return a vector for each text")
        if embeddings.dimensions != dimensions:
            raise InvalidValue(
                f"the table has vectors of {dimensions} numbers, and {model} now returns "
                f"vectors of {embeddings.dimensions}: serve the model that the table was "
                "created with, or create another knowledge table",
                param="table",
            )
        vectors.update(zip(batch, embeddings, strict=True))
    return [vectors[text] for text in texts]


async def measure_dimensions(models: EmbeddingModels, model: str, context: Context) -> int:
    """Returns the dimensions of a model's vectors, by embedding one word."""
    return (await models.embed(EmbeddingRequest(model, (RawPrompt(PROBE_TEXT),)), context)).dimensions
