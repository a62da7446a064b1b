"""Reranks documents with a token engine: builds the token ids of the query with each document, and collects
scores.

Names of control tokens in query and documents are plain text. No text is truncated unless the request asks
for it.
"""

from array import array
from collections.abc import Sequence
from math import exp

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.request import (
    Ranking,
    RerankRequest,
)
from antiphon.domain.values import Struct
from antiphon.engines.base import EmbeddingEngine, RequestSize, TextPiece, TokenEngine
from antiphon.errors import ContextLengthExceeded, UnsupportedParameter
from antiphon.rendering.embedding import TokenizedTexts, map_in_groups
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.tokenizer import TextTokenizer

QUERY, DOCUMENT = "{query}", "{document}"
"""The placeholders for the texts in a model's template."""


class TokenizedPairs(Struct, frozen=True):
    """The renderer's `PreparedRerank`: pairs as token ids, each within the context length."""

    pairs: TokenizedTexts

    @property
    def size(self) -> RequestSize:
        return self.pairs.size

    @property
    def report(self) -> EngineReport:
        return self.pairs.report

    async def rank(self, context: Context) -> Ranking:
        """Returns the probability of a match for each document. Raises DeadlineExceeded."""
        embeddings = await self.pairs.embed(context)
        log_odds = array("f", embeddings.vectors)
        return Ranking(tuple(map(find_probability, log_odds)), embeddings.prompt_tokens)


def find_probability(log_odds: float) -> float:
    """Converts the logarithm of odds to a probability."""
    if log_odds >= 0:
        return 1 / (1 + exp(-log_odds))
    odds = exp(log_odds)
    return odds / (1 + odds)


class PairBuilder(Struct, frozen=True):
    """Builds the token ids of a query with one document."""

    tokenizer: TextTokenizer
    tokens_before: tuple[int, ...]
    """The tokens before the document, with the query."""
    tokens_after: tuple[int, ...]
    most_document_tokens: int | None
    """The most tokens of the document. A longer document is truncated."""
    template_texts: tuple[tuple[TextPiece, ...], tuple[TextPiece, ...]] | None = None
    """The template's text before and after the document; None for a model without a template. A document that
    is not truncated is tokenized together with this text, as the model was trained."""

    async def build(self, document: str) -> tuple[int, ...]:
        if self.template_texts is None or self.most_document_tokens is not None:
            ids = await self.tokenizer.tokenize([TextPiece(document)], False)
            if self.template_texts is None or len(ids) > (self.most_document_tokens or 0):
                return (*self.tokens_before, *ids[: self.most_document_tokens], *self.tokens_after)
        text_before, text_after = self.template_texts
        return await self.tokenizer.tokenize([*text_before, TextPiece(document), *text_after], False)


async def prepare_rerank(
    engine: TokenEngine, tokenizer: TextTokenizer, model_info: ModelInfo, request: RerankRequest
) -> TokenizedPairs:
    """Builds the pairs of the query with each document. Raises a RequestError that names the invalid
    field."""
    embedding = model_info.info.embedding
    if embedding is None or not embedding.ranks or not isinstance(engine, EmbeddingEngine):
        raise UnsupportedParameter(
            f"{request.model} is no reranker; name a model that ranks documents", param="model"
        )
    context_length = model_info.info.context_length
    builder = await _create_builder(tokenizer, model_info, request)
    # Each pair repeats the query, so this limits the memory of the pairs.
    _require_fitting_query(builder, context_length)
    pairs = await map_in_groups(builder.build, request.documents)
    _require_fitting_pairs(pairs, context_length)
    return TokenizedPairs(TokenizedTexts(engine, pairs, embedding.dimensions))


async def _create_builder(
    tokenizer: TextTokenizer, model_info: ModelInfo, request: RerankRequest
) -> PairBuilder:
    """Tokenizes the query and the other texts that all pairs share."""
    template, most_document_tokens = model_info.info.rerank_template, request.tokens_per_document
    if template is None:
        frame = model_info.vocabulary.pair_frame
        query = await tokenizer.tokenize([TextPiece(request.query)], False)
        return PairBuilder(
            tokenizer,
            (*frame.before, *query, *frame.between),
            frame.after,
            most_document_tokens,
        )
    text_before, text_after = split_template(template, request.query)
    return PairBuilder(
        tokenizer,
        await tokenizer.tokenize(text_before, False),
        await tokenizer.tokenize(text_after, False),
        most_document_tokens,
        (text_before, text_after),
    )


def split_template(template: str, query: str) -> tuple[tuple[TextPiece, ...], tuple[TextPiece, ...]]:
    """Returns the texts of a template before and after the document. Only the template's own text can contain
    control tokens."""
    text_before, _, text_after = template.partition(DOCUMENT)
    return tuple(_insert_query(text_before, query)), tuple(_insert_query(text_after, query))


def _insert_query(template_text: str, query: str) -> list[TextPiece]:
    """Returns a text of a template with the query in place of its placeholders."""
    pieces: list[TextPiece] = []
    for index, text in enumerate(template_text.split(QUERY)):
        pieces += [TextPiece(query)] * (index > 0)
        pieces += [TextPiece(text, control=True)] * bool(text)
    return pieces


def _require_fitting_query(builder: PairBuilder, context_length: int) -> None:
    """Raises ContextLengthExceeded for a query that leaves no room for a document."""
    shared_count = len(builder.tokens_before) + len(builder.tokens_after)
    if shared_count >= context_length:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens. However, the query takes "
            f"{shared_count} of them, and no document fits beside it. Shorten the query.",
            param="query",
        )


def _require_fitting_pairs(pairs: Sequence[tuple[int, ...]], context_length: int) -> None:
    """Raises ContextLengthExceeded for a document that does not fit with the query."""
    for index, pair in enumerate(pairs):
        if len(pair) > context_length:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context_length} tokens. However, the query and "
                f"documents[{index}] resulted in {len(pair)} tokens. Split the document, or send "
                "max_tokens_per_doc.",
                param=f"documents[{index}]",
            )
