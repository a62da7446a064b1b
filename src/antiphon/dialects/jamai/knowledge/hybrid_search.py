"""Searches knowledge tables in JamAI Base's form: by words and vectors, and then by a reranker."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from antiphon.dialects.base import Answer, Endpoint, Headers, Request, RequestBody, Response, Services
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.jamai.knowledge.columns import SCORE, RowView, build_row, load_columns
from antiphon.dialects.jamai.knowledge.endpoints import TableId, build_context, declare, encode
from antiphon.dialects.jamai.knowledge.rows import MOST_DECIMALS, Row
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.wire_types import ModelId
from antiphon.domain.identity import Right
from antiphon.domain.rerank import RerankRequest
from antiphon.errors import AntiphonError, ModelNotFound, PermissionDenied, UnsupportedParameter
from antiphon.retrieval.base import LONGEST_TEXT, MAX_HITS, SearchHit
from antiphon.retrieval.knowledge import TableSearch

PATH = "/hybrid_search"

DEFAULT_HITS = 100

RERANKER = "reranking_model"

RELEVANCE = "relevance_score"
"""The reranker's score of a row."""


class JamaiSearch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search."""

    table_id: TableId
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = DEFAULT_HITS
    metric: Literal["cosine"] = "cosine"
    float_decimals: Annotated[int, Meta(ge=0, le=MOST_DECIMALS)] = 0
    vec_decimals: Annotated[int, Meta(le=MOST_DECIMALS)] = 0
    """Has no effect: results have no vectors."""
    reranking_model: ModelId | None = None


def declare_search() -> Endpoint:
    """Declares the endpoint of search."""
    summary, body = "Search a knowledge table", RequestBody(shape=JamaiSearch)
    return declare("POST", PATH, search_rows, summary, Right.GENERATE, body=body, answer=list[Row])


async def search_rows(request: Request, services: Services) -> Answer:
    """Answers a search with rows, the best first."""
    body = convert(read_object(request.body), JamaiSearch)
    info = await services.knowledge.get_table(request.actor, body.table_id)
    model = await _find_reranker(body.reranking_model, request, services)
    context = build_context(request, services, PATH)
    hits = await services.knowledge.search(body.table_id, TableSearch(body.query, body.limit), context)
    headers: Headers = ((b"x-antiphon-ignored", b"vec_decimals"),) if body.vec_decimals >= 0 else ()
    scores: Sequence[float | None] = [None] * len(hits)
    if model is not None and hits:
        try:
            hits, scores = await _rank(
                hits, RerankRequest(model, body.query, _list_texts(hits)), request, services
            )
        except AntiphonError as error:
            headers += (_build_warning(model, error),)
    columns, view = load_columns(info), RowView(float_decimals=body.float_decimals, vec_decimals=-1)
    rows = [
        build_row(hit.chunk, columns, view) | _build_scores(hit, score)
        for hit, score in zip(hits, scores, strict=True)
    ]
    return Response(encode(rows), headers=headers)


async def _find_reranker(name: str | None, request: Request, services: Services) -> str | None:
    """Returns the name of the reranker. Raises a RequestError about the field."""
    if not name:
        return None
    model, _ = await choose_model(name, frozenset({"rerank"}), request, services)
    try:
        entry = await services.load_model(model, request)
    except (ModelNotFound, PermissionDenied) as error:
        raise type(error)(f"{RERANKER}: {error.message}", param=RERANKER) from None
    profile = entry.profile
    if profile is not None and (profile.embedding is None or not profile.embedding.ranks):
        raise UnsupportedParameter(f"{RERANKER}: {model} ranks no documents; name a reranker", param=RERANKER)
    return model


def _list_texts(hits: Sequence[SearchHit]) -> tuple[str, ...]:
    return tuple(hit.chunk.text for hit in hits)


async def _rank(
    hits: tuple[SearchHit, ...], rerank_request: RerankRequest, request: Request, services: Services
) -> tuple[tuple[SearchHit, ...], Sequence[float | None]]:
    """Returns the hits in the reranker's order, and their scores."""
    ranking = await services.rerank(rerank_request, build_context(request, services, PATH))
    order = ranking.order()
    return tuple(hits[index] for index in order), [ranking.scores[index] for index in order]


def _build_warning(model: str, error: AntiphonError) -> tuple[bytes, bytes]:
    """Returns the header about a failed reranker. JamAI's client shows it as a warning."""
    text = f"the reranker {model} failed ({error.code}); the order is that of the search"
    plain = text.encode("ascii", "backslashreplace").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return b"warning", b'199 antiphon "%b"' % plain


def _build_scores(hit: SearchHit, score: float | None) -> dict[str, Any]:
    """Builds the scores of a row."""
    return {SCORE: hit.score} | ({} if score is None else {RELEVANCE: score})
