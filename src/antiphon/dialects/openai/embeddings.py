"""POST /v1/embeddings: vectors of texts, as JSON numbers or as base64."""

from typing import Any

from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.calls import EmbeddingCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.decode import read_attribution
from antiphon.dialects.common.embeddings import (
    EmbeddingsAnswer,
    answer_embeddings,
    build_prompts,
    encode_embeddings,
    require_encoding_format,
)
from antiphon.dialects.common.endpoints import decode_body
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import FIELD_TABLE, FieldScope, filter_fields
from antiphon.dialects.common.request_types import EmbeddingsRequest
from antiphon.dialects.http_types import JSON, Answer, Request
from antiphon.dialects.services import Services
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import EmbeddingRequest, Embeddings

ORIGIN = Origin("openai", "/v1/embeddings")


def filter_embeddings(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body."""
    accepted_fields = filter_fields(fields, FieldScope.EMBEDDINGS, report=report)
    require_encoding_format(accepted_fields.get("encoding_format"))
    return accepted_fields


EMBEDDINGS_BODY = BodyDecoder(EmbeddingsRequest, FIELD_TABLE, FieldScope.EMBEDDINGS, filter_embeddings)


class OpenAIEmbeddings:
    """The endpoint that makes vectors of texts."""

    def __init__(self, report_unknown: bool = False) -> None:
        """`report_unknown`: the answer names unknown fields, which are not refused."""
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> EmbeddingCall:
        """Decodes a body. Raises a RequestError."""
        wire, report = EMBEDDINGS_BODY.decode(body, self._reports_unknown)
        request = EmbeddingRequest(wire.model, build_prompts(wire.input), wire.dimensions)
        return EmbeddingCall(
            request,
            as_base64=wire.encoding_format == "base64",
            ignored=report.names,
            attribution=read_attribution(wire.user),
        )

    def encode_answer(self, call: EmbeddingCall, embeddings: Embeddings) -> bytes:
        return encode_embeddings(call.request.model, embeddings, call.as_base64)

    async def embed(self, request: Request, services: Services) -> Answer:
        call = await decode_body(self.decode, request, services)
        return await answer_embeddings(call, call.request.model, ORIGIN, request, services)

    def declare(self) -> Endpoint:
        return Endpoint(
            method="POST",
            path=ORIGIN.operation,
            handler=self.embed,
            right=Right.GENERATE,
            body=RequestBody(shape=EmbeddingsRequest),
            summary="Make vectors of texts",
            tag="embeddings",
            answers={JSON: EmbeddingsAnswer},
        )
