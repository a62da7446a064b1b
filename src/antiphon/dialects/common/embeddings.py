"""Embeddings for any dialect: the wire types of the answer, its encoding, and the inputs."""

from array import array
from base64 import b64encode
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from antiphon.dialects.calls import EmbeddingCall
from antiphon.dialects.common.endpoints import add_attribution, build_report_headers
from antiphon.dialects.http_types import Answer, Request, Response
from antiphon.dialects.services import Services
from antiphon.domain.context import Origin
from antiphon.domain.fields import MAX_IDS
from antiphon.domain.request import Embeddings, RawPrompt
from antiphon.errors import InvalidValue

MAX_INPUTS = 2048
"""The most inputs of one request. OpenAI has the same limit."""

ENCODING_FORMATS = ("float", "base64")

MANY_VECTOR_BYTES = 1 << 16
"""A thread encodes an answer if its vectors have more bytes. Encoding this many bytes as JSON takes some
milliseconds."""

_encode = msgspec.json.Encoder().encode


class EmbeddingShape(Struct, frozen=True, kw_only=True):
    """The vector of one input. Its length is 1."""

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
    """An answer with vectors that are already encoded as JSON."""

    data: list[Raw]


async def answer_embeddings(
    call: EmbeddingCall, model: str, origin: Origin, request: Request, services: Services
) -> Answer:
    """Answers a request for vectors. `model`: the name in the answer."""
    context = services.build_context(request, add_attribution(origin, call.attribution))
    embeddings = await services.embed(call.request, context)
    encode = partial(encode_embeddings, model, embeddings, call.as_base64)
    body = await services.offload(encode) if len(embeddings.vectors) > MANY_VECTOR_BYTES else encode()
    return Response(body, headers=build_report_headers(call, request, services))


def encode_embeddings(model: str, embeddings: Embeddings, as_base64: bool) -> bytes:
    """Encodes an answer. `as_base64`: whether vectors are encoded as bytes instead of numbers."""
    # Each vector is encoded separately, so that other threads can run in between.
    encoded_vectors = [
        Raw(_encode(EmbeddingShape(index=index, embedding=encode_vector(vector, as_base64))))
        for index, vector in enumerate(embeddings)
    ]
    usage = EmbeddingsUsage(embeddings.prompt_tokens, embeddings.prompt_tokens)
    return _encode(EncodedEmbeddings(data=encoded_vectors, model=model, usage=usage))


def require_encoding_format(encoding_format: object) -> None:
    """Raises InvalidValue for an unknown text in `encoding_format`. The wire type refuses values that are no
    texts."""
    if isinstance(encoding_format, str) and encoding_format not in ENCODING_FORMATS:
        raise InvalidValue(
            f"encoding_format must be {' or '.join(ENCODING_FORMATS)}; got another text",
            param="encoding_format",
        )


def encode_vector(vector: bytes, as_base64: bool) -> list[float] | str:
    """Returns the vector's numbers or, if `as_base64`, their bytes as base64."""
    return b64encode(vector).decode() if as_base64 else array("f", vector).tolist()


def build_prompts(inputs: str | list[Any]) -> tuple[RawPrompt, ...]:
    """Builds one prompt from a text or a list of token ids, and several prompts from a list of texts or a
    list of such lists. Raises InvalidValue."""
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
    build_prompt = _build_text_prompt if str in kinds else _build_token_prompt
    return tuple(build_prompt(item, f"input[{index}]") for index, item in enumerate(inputs))


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
