"""POST /v1/rerank: ranks documents for a query, in the form of Cohere and Jina."""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.calls import RerankCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.decode import read_attribution
from antiphon.dialects.common.endpoints import add_attribution, build_report_headers, decode_body
from antiphon.dialects.common.fields import FIELD_TABLE, FieldScope
from antiphon.dialects.common.request_types import RerankBody, RerankDocument
from antiphon.dialects.http_types import JSON, Answer, Request, Response
from antiphon.dialects.services import ResponseMeta, Services
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import Ranking, RerankRequest
from antiphon.errors import InvalidValue

ORIGIN = Origin("openai", "/v1/rerank")

_encode = msgspec.json.Encoder().encode


RERANK_BODY = BodyDecoder(RerankBody, FIELD_TABLE, FieldScope.RERANK)


class RerankResult(Struct, frozen=True, kw_only=True):
    """The score of one document."""

    index: int
    """The document's index in the request."""
    relevance_score: float
    """A probability if the reranker is local. A vendor can use another scale."""
    document: RerankDocument | UnsetType = UNSET


class RerankUsage(Struct, frozen=True):
    """Tokens of the query with each document."""

    prompt_tokens: int
    total_tokens: int


class InputTokens(Struct, frozen=True):
    """The number of tokens, under Cohere's name."""

    input_tokens: int


class RerankMeta(Struct, frozen=True):
    """The usage, in Cohere's form."""

    tokens: InputTokens


class RerankAnswer(Struct, frozen=True, kw_only=True):
    """The documents, best first."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[RerankResult]
    usage: RerankUsage
    meta: RerankMeta


class Rerank:
    """The endpoint that ranks documents."""

    def __init__(self, report_unknown: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused."""
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> RerankCall:
        """Decodes a body. Raises a RequestError."""
        wire, report = RERANK_BODY.decode(body, self._reports_unknown)
        documents = tuple(
            document if isinstance(document, str) else document.text for document in wire.documents
        )
        for index, text in enumerate(documents):
            if not text:
                field = f"documents[{index}]"
                raise InvalidValue(f"{field} is empty; send at least one character", param=field)
        return RerankCall(
            RerankRequest(wire.model, wire.query, documents, wire.max_tokens_per_doc),
            top_n=wire.top_n,
            returns_documents=bool(wire.return_documents),
            ignored=report.names,
            attribution=read_attribution(wire.user),
        )

    def encode_answer(self, meta: ResponseMeta, call: RerankCall, ranking: Ranking) -> bytes:
        documents, tokens = call.request.documents, ranking.prompt_tokens
        results = [
            RerankResult(
                index=index,
                relevance_score=ranking.scores[index],
                document=RerankDocument(documents[index]) if call.returns_documents else UNSET,
            )
            for index in ranking.order()[: call.top_n]
        ]
        return _encode(
            RerankAnswer(
                id=f"rerank-{meta.id}",
                model=meta.model,
                results=results,
                usage=RerankUsage(tokens, tokens),
                meta=RerankMeta(InputTokens(tokens)),
            )
        )

    async def rank(self, request: Request, services: Services) -> Answer:
        call = await decode_body(self.decode, request, services)
        context = services.build_context(request, add_attribution(ORIGIN, call.attribution))
        ranking = await services.rerank(call.request, context)
        body = self.encode_answer(services.create_meta(call.request.model), call, ranking)
        return Response(body, headers=build_report_headers(call, request, services))

    def declare(self) -> Endpoint:
        return Endpoint(
            method="POST",
            path=ORIGIN.operation,
            aliases=("/v2/rerank", "/rerank"),
            handler=self.rank,
            right=Right.GENERATE,
            body=RequestBody(shape=RerankBody),
            summary="Rank documents by a query",
            tag="rerank",
            answers={JSON: RerankAnswer},
        )
