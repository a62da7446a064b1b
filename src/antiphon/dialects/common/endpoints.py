"""Endpoints that generate text and list models, and code that the handlers of all products share.

Each product has a codec, which does no I/O. Handlers use only `Services`.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.calls import NO_ATTRIBUTION, Attribution, EmbeddingCall, GenerationCall, RerankCall
from antiphon.dialects.common.field_table import INDEX
from antiphon.dialects.http_types import (
    EVENT_STREAM,
    JSON,
    PROJECT_HEADERS,
    USER_HEADERS,
    Answer,
    EventStream,
    Headers,
    Request,
    Response,
    StreamEncoder,
)
from antiphon.dialects.services import ModelEntry, ResponseMeta, Services
from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.context import Origin
from antiphon.domain.identity import Right
from antiphon.domain.values import replace

LARGE_BODY = 1 << 16
"""A thread decodes a body with more bytes. Decoding this many bytes takes a millisecond."""

MANY_SCORES = 512
"""A thread encodes an answer with more scored tokens. With all alternatives, encoding this many tokens takes
about ten milliseconds."""

T = TypeVar("T")


class GenerationEncoder(Protocol):
    """Encodes one product's answers of a generating endpoint."""

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        """Encodes the buffered answer."""

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        """Creates the encoder of one streamed answer."""


class GenerationCodec(GenerationEncoder, Protocol):
    """Decodes and encodes one product's body and answers of a generating endpoint."""

    @property
    def shapes(self) -> tuple[type, type, type]:
        """The wire types of the body, of the buffered answer, and of a stream's event."""

    def decode(self, body: bytes) -> GenerationCall:
        """Decodes a body. Raises a RequestError that names the wrong field."""


def declare_generation(dialect: str, path: str, summary: str, codec: GenerationCodec) -> Endpoint:
    """Declares an endpoint that generates text, buffered or streamed."""

    async def read_call(request: Request, services: Services) -> tuple[GenerationCall, ResponseMeta]:
        call = await decode_body(codec.decode, request, services)
        return call, services.create_meta(call.request.model)

    body, answer, chunk = codec.shapes
    return Endpoint(
        method="POST",
        path=path,
        handler=partial(answer_generation, read_call, codec, Origin(dialect, path)),
        right=Right.GENERATE,
        body=RequestBody(shape=body),
        summary=summary,
        tag="completions",
        answers={JSON: answer, EVENT_STREAM: chunk},
    )


async def answer_generation(
    read_call: Callable[[Request, Services], Awaitable[tuple[GenerationCall, ResponseMeta]]],
    codec: GenerationEncoder,
    origin: Origin,
    request: Request,
    services: Services,
) -> Response | EventStream:
    """Generates text, buffered or streamed. `read_call` decodes the body."""
    call, meta = await read_call(request, services)
    if call.attribution is not NO_ATTRIBUTION:
        origin = add_attribution(origin, call.attribution)
    context = services.build_context(request, origin)
    if call.stream:
        headers = partial(build_report_headers, call, request, services)
        return EventStream(
            services.generate(call.request, context), codec.create_encoder(meta, call), headers
        )
    async with services.generate(call.request, context) as events:
        generation = await collect(events)
    if call.request.output.logprobs is None and call.request.output.prompt_logprobs is None:
        body = codec.encode_answer(meta, call, generation)
    else:
        encode = partial(codec.encode_answer, meta, call, generation)
        body = await services.offload(encode) if _has_many_scores(generation) else encode()
    return Response(body, headers=build_report_headers(call, request, services))


class ModelCodec(Protocol):
    """Encodes one product's list of models."""

    @property
    def shapes(self) -> tuple[type, type]:
        """The wire types of the list and of one model."""

    @property
    def has_profiles(self) -> bool:
        """Whether the list contains the profiles of the models."""

    def encode_list(self, models: Iterable[ModelEntry]) -> bytes:
        """Encodes the list of models."""

    def encode_model(self, model: ModelEntry) -> bytes:
        """Encodes one model with its profile."""


def declare_models(
    path: str, codec: ModelCodec, summary: str = "Show one model"
) -> tuple[Endpoint, Endpoint]:
    async def list_models(request: Request, services: Services) -> Answer:
        if codec.has_profiles:
            return Response(codec.encode_list(await services.list_profiled_models(request.actor)))
        return Response(codec.encode_list(services.list_models(request.actor)))

    async def show_model(request: Request, services: Services) -> Answer:
        name = request.path_params["model"]
        if not name:  # the path of the list with a slash at its end
            return await list_models(request, services)
        return Response(codec.encode_model(await services.load_model(name, request)))

    list_shape, model_shape = codec.shapes
    return (
        declare_get(path, list_models, "List the models", "models", list_shape),
        declare_get(f"{path}/{{model:path}}", show_model, summary, "models", model_shape),
    )


def declare_get(
    path: str, handler: Handler, summary: str, tag: str, answer: object, *parameters: Mapping[str, Any]
) -> Endpoint:
    """Declares a GET endpoint that needs the right to read."""
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        right=Right.READ,
        summary=summary,
        tag=tag,
        answers={JSON: answer},
        parameters=parameters,
    )


async def decode_body(decode: Callable[[bytes], T], request: Request, services: Services) -> T:
    """Decodes a body. A thread decodes a large body, so that other requests do not wait."""
    if len(request.body) <= LARGE_BODY:
        return decode(request.body)
    return await services.offload(partial(decode, request.body))


def add_attribution(origin: Origin, attribution: Attribution) -> Origin:
    """Returns the origin with the end user and the tags that the caller sent."""
    if attribution is NO_ATTRIBUTION:
        return origin
    return replace(origin, end_user=attribution.end_user, tags=attribution.tags)


def build_report_headers(
    call: GenerationCall | EmbeddingCall | RerankCall, request: Request, services: Services
) -> Headers:
    """Returns the headers that name the route, ignored fields, schema keywords that are not enforced, and the
    messages that the memory strategy dropped."""
    progress = request.progress
    report = progress.report
    ignored, relaxed = call.ignored + progress.ignored, report.relaxed
    if report.ignored:
        ignored += tuple([INDEX.sub("[]", path) for path in report.ignored])
    if not services.keeps_records:
        ignored += call.attribution.fields
        for name in (*PROJECT_HEADERS, *USER_HEADERS):
            if any(map(bytes.strip, request.headers.get(name, ()))):
                ignored += (name.decode(),)
    if isinstance(call, GenerationCall) and not report.has_own_schemas:
        relaxed = call.relaxed
    headers = [(b"x-antiphon-route", progress.route)] if progress.route else []
    if ignored:
        headers.append((b"x-antiphon-ignored", ", ".join(dict.fromkeys(ignored)).encode()))
    if relaxed:
        headers.append((b"x-antiphon-relaxed", ", ".join(dict.fromkeys(relaxed)).encode()))
    if (memory := progress.memory) is not None:
        memory_report = f"kept={memory.kept}, dropped={memory.dropped}, summarised={memory.summarised}"
        headers.append((b"x-antiphon-memory", memory_report.encode()))
    return tuple(headers)


def _has_many_scores(generation: CollectedGeneration) -> bool:
    """Whether a thread must encode an answer, because it has many scored tokens."""
    score_count = sum(map(len, generation.prompt_scores))
    for choice in generation.choices:
        score_count += len(choice.scores or ())
    return score_count > MANY_SCORES
