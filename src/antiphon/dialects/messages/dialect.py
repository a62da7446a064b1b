"""The dialect of Anthropic's Messages API: its endpoints, and its part of the OpenAPI document."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Self

import msgspec

from antiphon.dialects.base import DialectOptions, Endpoint, RequestBody
from antiphon.dialects.calls import GenerationCall, TokenizeCall
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.endpoints import answer_generation, decode_body
from antiphon.dialects.common.seals import SealReader
from antiphon.dialects.http_types import (
    EVENT_STREAM,
    JSON,
    Answer,
    EventStream,
    Headers,
    Request,
    Response,
    StreamEncoder,
)
from antiphon.dialects.messages import wire_types
from antiphon.dialects.messages.decode import OPTIONAL, MessagesCall, decode_count, decode_messages
from antiphon.dialects.messages.encode import (
    MessagesStreamEncoder,
    Seal,
    encode_error,
    encode_message,
)
from antiphon.dialects.messages.fields import FIELD_TABLE, PREFIX
from antiphon.dialects.services import ResponseMeta, Services
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.limits import LimitStatus
from antiphon.domain.request import Reasoning
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, UnsupportedParameter

NAME = "messages"

SCHEMA_PREFIX = "Messages"

COUNT_PATH = f"{PREFIX}/count_tokens"

TALK = {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]}

EXAMPLES: Mapping[str, object] = {"MessagesRequest": TALK | {"max_tokens": 64}, "CountRequest": TALK}

_encode = msgspec.json.Encoder().encode


class MessagesEncoder:
    """Encodes the answer of one POST /v1/messages."""

    def __init__(self, request: Request, services: Services) -> None:
        self._request = request
        self._services = services

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_message(meta, call, generation, self._choose_seal(call))

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return MessagesStreamEncoder(meta, call, self._request.id, self._choose_seal(call))

    def _choose_seal(self, call: GenerationCall) -> Seal | None:
        """Returns what seals the reasoning, if the caller gets it only in that form."""
        if isinstance(call, MessagesCall) and call.omits_thinking:
            return partial(self._services.seal, actor=self._request.actor)
        return None


def unseal_text(seals: SealReader, signature: str) -> str:
    """Returns the reasoning that a signature of this server carries; empty if it cannot be read."""
    sealed = seals.open(signature)
    return "" if sealed is None else sealed.text


class Messages(DescribedDialect):
    """The dialect of the Messages API. It has no state."""

    name = NAME
    prefix = PREFIX
    field_table = FIELD_TABLE
    shared_table = None
    error_type = wire_types.ErrorAnswer
    examples = EXAMPLES
    schema_prefix = SCHEMA_PREFIX
    page = None

    def __init__(
        self, report_unknown: bool = True, strict_schemas: bool = False, refuses_hosted: bool = False
    ) -> None:
        """Unknown fields are reported and never refused, whatever `report_unknown` says. `refuses_hosted`:
        tools that Anthropic runs are refused, not left out."""
        self.endpoints = (declare_messages(strict_schemas, refuses_hosted), declare_count(refuses_hosted))

    @classmethod
    def create(cls, options: DialectOptions) -> Self:
        return cls(options.report_unknown, options.strict_schemas, options.refuses_hosted)

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_error(error, None if request is None else request.id)

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        return build_id_header(request)

    def build_limit_headers(self, measure: str, status: LimitStatus, now: float) -> Headers:
        prefix = f"anthropic-ratelimit-{measure}-".encode()
        reset = datetime.fromtimestamp(math.ceil(now + status.reset), UTC)
        return (
            (prefix + b"limit", b"%d" % status.limit.amount),
            (prefix + b"remaining", b"%d" % status.remaining),
            (prefix + b"reset", reset.strftime("%Y-%m-%dT%H:%M:%SZ").encode()),
        )


def build_id_header(request: Request) -> Headers:
    """Builds the header in which Anthropic's clients read the id of a request."""
    return ((b"request-id", request.id.encode()),)


def declare_messages(strict: bool, refuses_hosted: bool) -> Endpoint:
    """Declares POST /v1/messages."""
    origin = Origin(NAME, PREFIX)

    async def read_call(request: Request, services: Services) -> tuple[GenerationCall, ResponseMeta]:
        betas = b",".join(request.headers.get(b"anthropic-beta", ())).decode("latin-1")
        betas = betas if betas.isascii() and betas.isprintable() else ""
        unseal = partial(unseal_text, SealReader("messages", request, services))
        decode = partial(
            decode_messages, strict=strict, betas=betas, unseal=unseal, refuses_hosted=refuses_hosted
        )
        call = await decode_body(decode, request, services)
        services.count_unused(NAME, call.unused)
        return call, services.create_meta(call.request.model)

    async def answer(request: Request, services: Services) -> Answer:
        encoder = MessagesEncoder(request, services)
        answered = await answer_generation(read_call, encoder, origin, request, services)
        request_id = build_id_header(request)
        if isinstance(answered, EventStream):
            build_headers = answered.headers
            return replace(answered, headers=lambda: build_headers() + request_id)
        return replace(answered, headers=answered.headers + request_id)

    return Endpoint(
        method="POST",
        path=PREFIX,
        handler=answer,
        right=Right.GENERATE,
        body=RequestBody(shape=wire_types.MessagesRequest),
        summary="Answer a conversation, as Anthropic does",
        tag="completions",
        answers={JSON: wire_types.MessageAnswer, EVENT_STREAM: wire_types.StreamEvent},
    )


def declare_count(refuses_hosted: bool) -> Endpoint:
    """Declares POST /v1/messages/count_tokens."""
    return Endpoint(
        method="POST",
        path=COUNT_PATH,
        handler=partial(count_tokens, refuses_hosted),
        right=Right.GENERATE,
        body=RequestBody(shape=wire_types.CountRequest),
        summary="Count the tokens of a conversation",
        tag="tokens",
        answers={JSON: wire_types.TokenCount},
    )


async def count_tokens(refuses_hosted: bool, request: Request, services: Services) -> Answer:
    """Counts the tokens of a conversation with the model's own template and tokenizer."""
    unseal = partial(unseal_text, SealReader("messages", request, services))
    decode = partial(decode_count, unseal=unseal, refuses_hosted=refuses_hosted)
    model, conversation, ignored = await decode_body(decode, request, services)
    try:
        prompt = await services.tokenize(TokenizeCall(model, conversation), request)
    except UnsupportedParameter as error:  # left out and named, as POST /v1/messages does
        if error.param not in OPTIONAL:
            raise
        ignored += (error.param,)
        conversation = replace(conversation, reasoning=Reasoning())
        prompt = await services.tokenize(TokenizeCall(model, conversation), request)
    headers = build_id_header(request)
    if ignored:
        headers += ((b"x-antiphon-ignored", ", ".join(ignored).encode()),)
    return Response(_encode(wire_types.TokenCount(len(prompt.ids))), headers=headers)
