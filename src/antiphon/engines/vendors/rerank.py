"""Translates requests to rank documents to the format of Cohere, Jina, vLLM and llama-server.

It reads their answers, and those of Fireworks, where the list of results has another name.
"""

from math import isfinite

import msgspec
from msgspec import Struct

from antiphon.domain.events import UsageSource
from antiphon.domain.messages import estimate_tokens, measure_text
from antiphon.domain.request import (
    Ranking,
    RerankRequest,
)
from antiphon.engines.vendors.base import MAX_TOKENS, UpstreamCall, VendorModel
from antiphon.errors import UnsupportedParameter

RERANK, TOKENS_PER_DOCUMENT = "rerank", "max_tokens_per_doc"
"""Names among the parameters that a provider takes."""


class ScoreWire(Struct):
    """One document's score."""

    index: int
    relevance_score: float


class RerankUsageWire(Struct):
    """Token counts, where the vendor gives them."""

    prompt_tokens: int | None = None
    total_tokens: int | None = None


class CohereTokens(Struct):
    """Cohere's counts."""

    input_tokens: float | None = None


class CohereMeta(Struct):
    """The object in which Cohere puts its counts."""

    tokens: CohereTokens | None = None


class RerankWire(Struct):
    """The scores of the documents, in any order."""

    results: list[ScoreWire] | None = None
    data: list[ScoreWire] | None = None
    """Fireworks' name of the results."""
    usage: RerankUsageWire | None = None
    meta: CohereMeta | None = None


_read_scores = msgspec.json.Decoder(RerankWire).decode

_write_rerank = msgspec.json.Encoder().encode


def build_rerank_refusal(model: VendorModel) -> UnsupportedParameter:
    """Builds the error for a provider that ranks no documents."""
    return UnsupportedParameter(
        f"model: the provider {model.provider} ranks no documents; choose another model, or let the operator "
        f'write takes = ["rerank"] into [providers.{model.provider}] if it has POST /rerank',
        param="model",
    )


def encode_rerank(request: RerankRequest, model: VendorModel) -> UpstreamCall:
    """Translates a request. Raises UnsupportedParameter if the provider ranks no documents, or for a
    parameter that it does not take."""
    supported = model.extra_parameters - model.refused_parameters
    if RERANK not in supported:
        raise build_rerank_refusal(model)
    body: dict[str, object] = {
        "model": model.name,
        "query": request.query,
        "documents": request.documents,
        "top_n": len(request.documents),  # some vendors' default is fewer
    }
    if request.tokens_per_document is not None:
        if TOKENS_PER_DOCUMENT not in supported:
            raise UnsupportedParameter(
                f"max_tokens_per_doc is not supported by the provider {model.provider}; leave it out",
                param=TOKENS_PER_DOCUMENT,
            )
        body[TOKENS_PER_DOCUMENT] = request.tokens_per_document
    return UpstreamCall("/rerank", _write_rerank(body), is_streamed=False)


def decode_rerank(request: RerankRequest, body: bytes) -> Ranking:
    """Reads the scores. Raises ValueError if they do not match the documents."""
    answer = _read_scores(body)
    results = answer.results or answer.data or []
    scores = {result.index: result.relevance_score for result in results}
    if scores.keys() != set(range(len(request.documents))) or len(scores) != len(results):
        raise ValueError("the scores do not match the documents")
    if not all(map(isfinite, scores.values())):
        raise ValueError("a score is infinity or NaN")
    ordered_scores = tuple(scores[index] for index in range(len(scores)))
    tokens = _find_rerank_tokens(answer)
    if tokens is None or not 0 < tokens <= MAX_TOKENS:
        query = measure_text(request.query)
        estimate = estimate_tokens(sum(query + measure_text(document) for document in request.documents))
        return Ranking(ordered_scores, estimate, UsageSource.ESTIMATED)
    return Ranking(ordered_scores, tokens, UsageSource.REPORTED)


def _find_rerank_tokens(answer: RerankWire) -> int | None:
    """Returns the number of tokens that the vendor reports, or None."""
    if answer.usage is not None:
        return answer.usage.prompt_tokens or answer.usage.total_tokens
    if answer.meta is not None and answer.meta.tokens is not None:
        input_tokens = answer.meta.tokens.input_tokens
        return None if input_tokens is None else int(input_tokens)
    return None
