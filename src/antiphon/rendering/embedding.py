"""Embeds texts with a token engine: tokenizes inputs, checks their lengths, and collects vectors. It
truncates no text."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.request import (
    FLOAT_BYTES,
    EmbeddingFacts,
    EmbeddingRequest,
    Embeddings,
    EmbedRequest,
    RawPrompt,
    Vectors,
)
from antiphon.engines.base import EmbeddingEngine, RequestSize, TokenEngine
from antiphon.errors import ContextLengthExceeded, EngineError, InvalidValue, UnsupportedParameter
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt import require_token_ids, tokenize_text
from antiphon.rendering.streams import build_deadline_error
from antiphon.rendering.tokenizer import TextTokenizer
from antiphon.task_group import task_group

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 128
"""The most texts that are tokenized at once."""


class TokenizedTexts:
    """The renderer's `PreparedEmbedding`: texts as token ids, each within the context length."""

    def __init__(self, engine: EmbeddingEngine, texts: Sequence[tuple[int, ...]], dimensions: int) -> None:
        self._engine = engine
        self._texts = texts
        self._dimensions = dimensions
        self.size = RequestSize(sum(map(len, texts)), 0)
        self.report = EngineReport()

    async def embed(self, context: Context) -> Embeddings:
        """Returns a vector for each text, in order. Raises DeadlineExceeded."""
        try:
            async with asyncio.timeout(context.remaining()):
                return await self._embed(context)
        except TimeoutError:
            raise build_deadline_error() from None

    async def _embed(self, context: Context) -> Embeddings:
        """Collects the vectors from the engine, and counts embedded tokens in the report. Raises
        EngineError if vectors are missing."""
        vector_parts: list[bytes] = []
        request = EmbedRequest(tuple(self._texts), context.actor.caller)
        async with aclosing(self._engine.embed(request)) as events:
            async for event in events:
                if isinstance(event, Vectors):
                    vector_parts.append(event.values)
                    end_index = event.start + len(event.values) // (self._dimensions * FLOAT_BYTES)
                    self.report.embedded_tokens += sum(map(len, self._texts[event.start : end_index]))
        embeddings = Embeddings(b"".join(vector_parts), self._dimensions, self.size.prompt_tokens)
        if len(embeddings) != len(self._texts):
            raise EngineError("the engine did not make a vector of each text")
        return embeddings


async def prepare_embedding(
    engine: TokenEngine, tokenizer: TextTokenizer, model_info: ModelInfo, request: EmbeddingRequest
) -> TokenizedTexts:
    """Converts the inputs to token ids. Raises a RequestError that names the invalid input."""
    embedding = _require_embedding_model(model_info, request)
    if not isinstance(engine, EmbeddingEngine):
        raise UnsupportedParameter("this model's engine makes no vectors", param="model")
    if request.dimensions not in (None, embedding.dimensions):
        raise UnsupportedParameter(
            f"the vectors of {request.model} have {embedding.dimensions} dimensions and cannot be made "
            f"with {request.dimensions}; leave dimensions out",
            param="dimensions",
        )
    texts = await _tokenize_inputs(tokenizer, model_info, request.inputs)
    _require_fitting(texts, model_info)
    return TokenizedTexts(engine, texts, embedding.dimensions)


def _require_embedding_model(model_info: ModelInfo, request: EmbeddingRequest) -> EmbeddingFacts:
    """Returns the properties of an embedding model. Raises UnsupportedParameter for a model that makes no
    vectors."""
    embedding = model_info.info.embedding
    if embedding is None or embedding.ranks:
        ability = "generates text" if embedding is None else "ranks documents (POST /v1/rerank)"
        raise UnsupportedParameter(
            f"{request.model} {ability} and makes no vectors; name an embedding model", param="model"
        )
    return embedding


async def _tokenize_inputs(
    tokenizer: TextTokenizer, model_info: ModelInfo, inputs: Sequence[RawPrompt]
) -> list[tuple[int, ...]]:
    """Returns the token ids of each input. Texts get special tokens; token ids stay unchanged."""

    async def tokenize(prompt: RawPrompt) -> tuple[int, ...]:
        if prompt.tokens is not None:
            return prompt.tokens
        return await tokenize_text(tokenizer, model_info, prompt.text or "")

    return await map_in_groups(tokenize, inputs)


async def map_in_groups(work: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Awaits `work` for all items, at most AT_ONCE at a time. Returns the results in order."""

    async def run(item: T) -> R:
        return await work(item)

    results: list[R] = []
    for start in range(0, len(items), AT_ONCE):
        async with task_group() as group:
            jobs = [group.create_task(run(item)) for item in items[start : start + AT_ONCE]]
        results += [job.result() for job in jobs]
    return results


def _require_fitting(texts: Sequence[tuple[int, ...]], model_info: ModelInfo) -> None:
    """Raises a RequestError for a text that is empty, too long, or has an unknown token id."""
    context_length = model_info.info.context_length
    for index, text in enumerate(texts):
        field = f"input[{index}]" if len(texts) > 1 else "input"
        if not text:
            raise InvalidValue(f"{field} holds no token; send at least one", param=field)
        if len(text) > context_length:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context_length} tokens. However, your {field} "
                f"resulted in {len(text)} tokens. Please reduce the length of the input, or split it.",
                param=field,
            )
        require_token_ids(text, model_info, field)
