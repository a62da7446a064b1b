"""POST /v1/embeddings: vectors of texts, as numbers in JSON or packed in base64."""

from array import array
from base64 import b64encode
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.dialects.base import (
    JSON,
    Answer,
    EmbeddingCall,
    Endpoint,
    Request,
    RequestBody,
    Response,
    Services,
)
from antiphon.dialects.common.endpoints import add_attribution, build_report_headers, decode_body
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import FieldScope, filter_fields
from antiphon.dialects.common.request_types import MAX_IDS, EndUser, Name, PositiveInt, TokenId
from antiphon.dialects.common.sampling import read_attribution
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.errors import InvalidValue

MAX_INPUTS = 2048
"""The most inputs of one request. The bound is OpenAI's."""

FORMS = ("float", "base64")

MANY_VECTOR_BYTES = 1 << 16
"""The size of the vectors in bytes from which a thread encodes an answer. In JSON, this many bytes take some
milliseconds."""

ORIGIN = Origin("openai", "/v1/embeddings")

_encode = msgspec.json.Encoder().encode


class EmbeddingsRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/embeddings."""

    model: Name
    input: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1, max_length=MAX_IDS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: PositiveInt | None = None
    user: EndUser | None = None


class EmbeddingShape(Struct, frozen=True, kw_only=True):
    """The vector of one input, of unit length."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """A list of numbers. With base64, their bytes as float32, little-endian."""


class EmbeddingsUsage(Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsEnvelope(Struct, frozen=True, kw_only=True):
    """An answer without its vectors."""

    object: Literal["list"] = "list"
    model: str
    usage: EmbeddingsUsage


class EmbeddingsAnswer(EmbeddingsEnvelope, frozen=True, kw_only=True):
    """A vector for each input, in order."""

    data: list[EmbeddingShape]


class EncodedEmbeddings(EmbeddingsEnvelope, frozen=True, kw_only=True):
    """An answer whose vectors are encoded as JSON already."""

    data: list[Raw]


class OpenAIEmbeddings:
    """The endpoint that makes vectors of texts."""

    def __init__(self, report: bool = False) -> None:
        """`report`: the answer names unknown fields, which are not refused."""
        self._report = report

    def decode(self, body: bytes) -> EmbeddingCall:
        """Decodes and validates the body of an embeddings request."""
        field_report = FieldReport(self._report)
        accepted = filter_fields(read_object(body), FieldScope.EMBEDDINGS, report=field_report)
        form = accepted.get("encoding_format")
        if isinstance(form, str) and form not in FORMS:
            raise InvalidValue(
                f"encoding_format must be {' or '.join(FORMS)}; got another text", param="encoding_format"
            )
        wire = convert(accepted, EmbeddingsRequest)
        request = EmbeddingRequest(wire.model, build_prompts(wire.input), wire.dimensions)
        return EmbeddingCall(
            request,
            packed=wire.encoding_format == "base64",
            ignored=field_report.names,
            attribution=read_attribution(wire.user),
        )

    def answer(self, call: EmbeddingCall, embeddings: Embeddings) -> bytes:
        # Each vector is encoded by itself, so that other threads can run in between.
        written = [
            Raw(_encode(EmbeddingShape(index=index, embedding=encode_vector(vector, call.packed))))
            for index, vector in enumerate(embeddings)
        ]
        usage = EmbeddingsUsage(embeddings.prompt_tokens, embeddings.prompt_tokens)
        return _encode(EncodedEmbeddings(data=written, model=call.request.model, usage=usage))

    async def embed(self, request: Request, services: Services) -> Answer:
        """Answers a request for vectors."""
        call = await decode_body(self.decode, request, services)
        context = services.build_context(request, add_attribution(ORIGIN, call.attribution))
        embeddings = await services.embed(call.request, context)
        if len(embeddings.vectors) > MANY_VECTOR_BYTES:
            body = await services.offload(partial(self.answer, call, embeddings))
        else:
            body = self.answer(call, embeddings)
        return Response(body, headers=build_report_headers(call, request, services))

    def declare(self) -> Endpoint:
        """Declares the endpoint."""
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


def encode_vector(vector: bytes, packed: bool) -> list[float] | str:
    """Returns the vector's numbers or, if `packed`, their bytes as base64."""
    return b64encode(vector).decode() if packed else array("f", vector).tolist()


def build_prompts(inputs: str | list[Any]) -> tuple[RawPrompt, ...]:
    """Builds one prompt from a text or a list of token ids. Builds one prompt per item from a list of texts
    or of id lists. Raises InvalidValue."""
    if isinstance(inputs, str):
        return (_build_text_prompt(inputs, "input"),)
    kinds = set(map(type, inputs))
    if len(kinds) > 1:
        raise InvalidValue(
            "input must hold only texts, only token ids, or only lists of token ids", param="input"
        )
    if int in kinds:
        return (RawPrompt(tokens=tuple(inputs)),)
    if len(inputs) > MAX_INPUTS:
        raise InvalidValue(
            f"input must hold at most {MAX_INPUTS} texts; got {len(inputs)}: send several requests",
            param="input",
        )
    make = _build_text_prompt if str in kinds else _build_token_prompt
    return tuple(make(item, f"input[{index}]") for index, item in enumerate(inputs))


def _build_text_prompt(text: str, field: str) -> RawPrompt:
    """Builds a prompt of a text. Raises InvalidValue for an empty text."""
    if not text:
        raise InvalidValue(f"{field} is empty; send at least one character", param=field)
    return RawPrompt(text=text)


def _build_token_prompt(tokens: list[int], field: str) -> RawPrompt:
    """Builds a prompt of token ids. Raises InvalidValue for an empty or too long list."""
    if not tokens:
        raise InvalidValue(f"{field} is empty; send at least one token id", param=field)
    if len(tokens) > MAX_IDS:
        raise InvalidValue(f"{field} holds more token ids than any context", param=field)
    return RawPrompt(tokens=tuple(tokens))
