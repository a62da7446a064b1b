"""Endpoints that several products have. Each takes the product's codec, which is pure; the handler here uses
nothing of the server but `Services`."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import GenericAlias
from typing import Any, Protocol, TypeVar

from antiphon.dialects.base import (
    EVENT_STREAM,
    JSON,
    PLAIN,
    UNASCRIBED,
    Answer,
    ApplyCall,
    Attribution,
    Call,
    DetokenizeCall,
    EmbeddingCall,
    Endpoint,
    EventStream,
    Handler,
    Headers,
    LoadCall,
    ModelEntry,
    Request,
    RequestBody,
    Response,
    ResponseMeta,
    Services,
    StreamEncoder,
    TokenizeCall,
    Tokens,
)
from antiphon.domain.collect import Generation, collect
from antiphon.domain.context import Origin
from antiphon.domain.deployment import Deployed, DeployedBase, Deployment
from antiphon.domain.embedding import Embeddings
from antiphon.domain.identity import Right
from antiphon.domain.tokenizer import TokenizerInfo
from antiphon.domain.values import changed

LARGE_BODY = 1 << 16
"""Bytes of a body from which it is decoded in a thread: reading as many takes a millisecond."""

MANY_SCORES = 512
"""Scored tokens of an answer from which it is encoded in a thread: with all alternatives they take some ten
milliseconds."""

MANY_VECTOR_BYTES = 1 << 16
"""Bytes of vectors from which an answer is encoded in a thread: as many take some milliseconds in JSON."""

MODEL_QUERY: Mapping[str, Any] = {
    "name": "model",
    "in": "query",
    "description": "Name of a model; may be left out when there is only one",
    "schema": {"type": "string"},
}

T = TypeVar("T")


class GenerationCodec(Protocol):
    """One product's body and answers of a generating endpoint."""

    @property
    def shapes(self) -> tuple[type, type, type]:
        """Wire types of the body, of the buffered answer, and of one event of a stream."""

    def decode(self, body: bytes) -> Call:
        """Raises a RequestError that names the field at fault."""

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        """The buffered answer."""

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        """The encoder of one streamed answer."""


def declare_generation(dialect: str, path: str, summary: str, codec: GenerationCodec) -> Endpoint:
    """An endpoint that generates text, buffered or streamed."""
    origin = Origin(dialect, path)

    async def generate(request: Request, services: Services) -> Answer:
        call = await decode_body(codec.decode, request, services)
        request.progress.body = request.body
        context = services.context(request, ascribe(origin, call.attribution))
        meta = services.start(call.request.model)
        if call.stream:
            headers = partial(report_headers, call, request, services)
            return EventStream(services.generate(call.request, context), codec.encoder(meta, call), headers)
        async with services.generate(call.request, context) as events:
            made = await collect(events)
        if _is_large(made):
            body = await services.offload(partial(codec.answer, meta, call, made))
        else:
            body = codec.answer(meta, call, made)
        return Response(body, headers=report_headers(call, request, services))

    body, answer, chunk = codec.shapes
    return Endpoint(
        method="POST",
        path=path,
        handler=generate,
        right=Right.GENERATE,
        body=RequestBody(shape=body),
        summary=summary,
        tag="completions",
        answers={JSON: answer, EVENT_STREAM: chunk},
    )


class EmbeddingCodec(Protocol):
    """One product's body and answer of the endpoint that makes vectors."""

    @property
    def shapes(self) -> tuple[type, type]:
        """Wire types of the body and of the answer."""

    def decode(self, body: bytes) -> EmbeddingCall:
        """Raises a RequestError that names the field at fault."""

    def answer(self, call: EmbeddingCall, embeddings: Embeddings) -> bytes:
        """All vectors, in the order of the inputs."""


def embedding(dialect: str, path: str, summary: str, codec: EmbeddingCodec) -> Endpoint:
    """An endpoint that makes vectors of texts."""
    origin = Origin(dialect, path)

    async def embed(request: Request, services: Services) -> Answer:
        call = await decode_body(codec.decode, request, services)
        context = services.context(request, ascribe(origin, call.attribution))
        found = await services.embed(call.request, context)
        if len(found.vectors) > MANY_VECTOR_BYTES:
            body = await services.offload(partial(codec.answer, call, found))
        else:
            body = codec.answer(call, found)
        return Response(body, headers=report_headers(call, request, services))

    body, answer = codec.shapes
    return Endpoint(
        method="POST",
        path=path,
        handler=embed,
        right=Right.GENERATE,
        body=RequestBody(shape=body),
        summary=summary,
        tag="embeddings",
        answers={JSON: answer},
    )


class ModelCodec(Protocol):
    """One product's list of models."""

    @property
    def shapes(self) -> tuple[type, type]:
        """Wire types of the list and of one model."""

    @property
    def has_profiles(self) -> bool:
        """Whether the list shows what each model can do."""

    def listed(self, models: Iterable[ModelEntry]) -> bytes:
        """The list of models."""

    def shown(self, model: ModelEntry) -> bytes:
        """One model with its profile."""


def model_list(path: str, codec: ModelCodec, shown: str = "Show one model") -> tuple[Endpoint, Endpoint]:
    """The endpoints of a list of models, and of each model below it."""

    async def list_models(request: Request, services: Services) -> Answer:
        if codec.has_profiles:
            return Response(codec.listed(await services.profiled_models(request.actor)))
        return Response(codec.listed(services.models(request.actor)))

    async def show_model(request: Request, services: Services) -> Answer:
        return Response(codec.shown(await services.model(request.path_params["model"], request)))

    whole, one = codec.shapes
    return (
        get(path, list_models, "List the models", "models", whole),
        get(f"{path}/{{model:path}}", show_model, shown, "models", one),
    )


class TokenCodec(Protocol):
    """Bodies and answers of the endpoints that show what a prompt becomes."""

    @property
    def shapes(self) -> Mapping[str, tuple[type, type]]:
        """Wire types of body and answer of `tokenize`, `detokenize` and `apply`."""

    @property
    def tokenizer_shape(self) -> type:
        """Wire type of what a tokenizer is."""

    def decode_tokenize(self, body: bytes) -> TokenizeCall:
        """Raises a RequestError that names the field at fault."""

    def decode_detokenize(self, body: bytes) -> DetokenizeCall:
        """Raises a RequestError that names the field at fault."""

    def decode_apply(self, body: bytes) -> ApplyCall:
        """Raises a RequestError that names the field at fault."""

    def tokenized(self, tokens: Tokens) -> bytes:
        """The answer to tokenize."""

    def detokenized(self, text: str) -> bytes:
        """The answer to detokenize."""

    def applied(self, text: str) -> bytes:
        """The answer to apply-template."""

    def tokenizer(self, info: TokenizerInfo) -> bytes:
        """What a model's tokenizer is."""


def token_endpoints(codec: TokenCodec) -> tuple[Endpoint, ...]:
    """The endpoints of token ids, of the template's text, and of the tokenizer."""

    async def tokenize(request: Request, services: Services) -> Answer:
        call = await decode_body(codec.decode_tokenize, request, services)
        return Response(codec.tokenized(await services.tokenize(call, request)))

    async def detokenize(request: Request, services: Services) -> Answer:
        call = await decode_body(codec.decode_detokenize, request, services)
        return Response(codec.detokenized(await services.detokenize(call, request)))

    async def apply_template(request: Request, services: Services) -> Answer:
        call = await decode_body(codec.decode_apply, request, services)
        return Response(codec.applied(await services.apply_template(call, request)))

    async def show_tokenizer(request: Request, services: Services) -> Answer:
        model = dict(request.query()).get("model")
        return Response(codec.tokenizer(await services.tokenizer(model, request)))

    def declare_post(name: str, path: str, handler: Handler, summary: str) -> Endpoint:
        body, answer = codec.shapes[name]
        return Endpoint(
            method="POST",
            path=path,
            aliases=(f"/v1{path}",),
            handler=handler,
            right=Right.READ,
            body=RequestBody(shape=body),
            summary=summary,
            tag="tokens",
            answers={JSON: answer},
        )

    return (
        declare_post("tokenize", "/tokenize", tokenize, "Show the token ids of a prompt"),
        declare_post("detokenize", "/detokenize", detokenize, "Show the text of token ids"),
        declare_post(
            "apply",
            "/apply-template",
            apply_template,
            "Show the prompt that the chat template makes of a conversation",
        ),
        get(
            "/tokenizer_info",
            show_tokenizer,
            "Show a model's tokenizer",
            "models",
            codec.tokenizer_shape,
            MODEL_QUERY,
        ),
    )


class AdapterCodec(Protocol):
    """Bodies and answers of the endpoints that load and unload adapters."""

    @property
    def shapes(self) -> tuple[type, type]:
        """Wire types of the two bodies."""

    def decode_load(self, body: bytes) -> LoadCall:
        """Raises a RequestError that names the field at fault."""

    def decode_unload(self, body: bytes) -> str:
        """The adapter's name. Raises a RequestError that names the field at fault."""

    def loaded(self, name: str) -> str:
        """The answer to load, plain text."""

    def unloaded(self, name: str) -> str:
        """The answer to unload, plain text."""


def adapter_endpoints(codec: AdapterCodec) -> tuple[Endpoint, Endpoint]:
    """The endpoints that load and unload adapters of the server's disk."""

    async def load(request: Request, services: Services) -> Answer:
        call = codec.decode_load(request.body)
        await services.load_adapter(call, request.actor)
        return Response(codec.loaded(call.name).encode(), media_type=PLAIN)

    async def unload(request: Request, services: Services) -> Answer:
        name = codec.decode_unload(request.body)
        await services.unload_adapter(name, request.actor)
        return Response(codec.unloaded(name).encode(), media_type=PLAIN)

    def declare_post(path: str, handler: Handler, summary: str, shape: object, ends: bool = True) -> Endpoint:
        return Endpoint(
            method="POST",
            path=path,
            handler=handler,
            right=Right.ADAPT,
            body=RequestBody(shape=shape),
            summary=summary,
            tag="adapters",
            answers={PLAIN: str},
            ends_with_caller=ends,
        )

    loads, unloads = codec.shapes
    return (
        declare_post("/v1/load_lora_adapter", load, "Make a LoRA adapter a model", loads),
        declare_post(
            "/v1/unload_lora_adapter",
            unload,
            "Take a LoRA adapter's name away",
            unloads,
            ends=False,
        ),
    )


class DeploymentCodec(Protocol):
    """Bodies and answers of the endpoints that deploy adapters from elsewhere."""

    @property
    def shapes(self) -> tuple[type, type, type]:
        """Wire types of the body, of an adapter, and of a base model."""

    def decode_deploy(self, body: bytes) -> Deployment:
        """Raises a RequestError that names the field at fault."""

    def deployed(self, lora: Deployed) -> bytes:
        """One adapter."""

    def removed(self, name: str) -> bytes:
        """The answer to a removal."""

    def listed(self, loras: Iterable[Deployed]) -> bytes:
        """All adapters."""

    def base(self, base: DeployedBase) -> bytes:
        """One base model."""

    def bases(self, bases: Iterable[DeployedBase]) -> bytes:
        """All base models."""


def deployment_endpoints(loras: str, bases: str, codec: DeploymentCodec) -> tuple[Endpoint, ...]:
    """The endpoints that deploy adapters by their names, which hold slashes, and that show base models."""

    async def deploy(request: Request, services: Services) -> Answer:
        services.require_owner(request)
        wanted = await decode_body(codec.decode_deploy, request, services)
        return Response(codec.deployed(await services.deployments.deploy(wanted, request.actor)))

    async def remove(request: Request, services: Services) -> Answer:
        services.require_owner(request)
        name = request.path_params["name"]
        await services.deployments.remove(name, request.actor)
        return Response(codec.removed(name))

    async def show(request: Request, services: Services) -> Answer:
        return Response(codec.deployed(services.deployments.find(request.path_params["name"], request.actor)))

    async def list_all(request: Request, services: Services) -> Answer:
        return Response(codec.listed(services.deployments.listed(request.actor)))

    async def show_base(request: Request, services: Services) -> Answer:
        return Response(codec.base(services.deployments.base(request.path_params["name"], request.actor)))

    async def list_bases(request: Request, services: Services) -> Answer:
        return Response(codec.bases(services.deployments.bases(request.actor)))

    body, lora, base = codec.shapes
    return (
        Endpoint(
            method="POST",
            path=loras,
            handler=deploy,
            right=Right.ADAPT,
            body=RequestBody(shape=body),
            summary="Deploy a LoRA",
            tag="loras",
            answers={JSON: lora},
        ),
        get(loras, list_all, "List the LoRAs", "loras", GenericAlias(list, (lora,))),
        get(f"{loras}/{{name:path}}", show, "Show one LoRA", "loras", lora),
        Endpoint(
            method="DELETE",
            path=f"{loras}/{{name:path}}",
            handler=remove,
            right=Right.ADAPT,
            summary="Remove a LoRA",
            tag="loras",
            answers={JSON: lora},
            ends_with_caller=False,
        ),
        get(bases, list_bases, "List the base models", "loras", GenericAlias(list, (base,))),
        get(f"{bases}/{{name:path}}", show_base, "Show one base model", "loras", base),
    )


def get(
    path: str, handler: Handler, summary: str, tag: str, answer: object, *parameters: Mapping[str, Any]
) -> Endpoint:
    """An endpoint that shows something to whoever may read."""
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
    """What the body says; a large one is read in a thread, so that nobody else waits."""
    if len(request.body) <= LARGE_BODY:
        return decode(request.body)
    return await services.offload(partial(decode, request.body))


def ascribe(origin: Origin, attribution: Attribution) -> Origin:
    """Where a request comes from, with what its caller says of it."""
    if attribution is UNASCRIBED:
        return origin
    return changed(origin, end_user=attribution.end_user, tags=attribution.tags)


def report_headers(call: Call | EmbeddingCall, request: Request, services: Services) -> Headers:
    """The headers that name the fields which were accepted and do nothing, and the keywords of schemas that
    are not kept."""
    ignored = call.ignored + request.progress.unread
    if not services.keeps_records:
        ignored += call.attribution.fields
    relaxed = call.relaxed if isinstance(call, Call) else ()
    named = ((b"x-antiphon-ignored", ignored), (b"x-antiphon-relaxed", relaxed))
    return tuple((name, ", ".join(fields).encode()) for name, fields in named if fields)


def _is_large(declare_generation: Generation) -> bool:
    scored = (
        *(choice.scores or () for choice in declare_generation.choices),
        *declare_generation.prompt_scores,
    )
    return sum(map(len, scored)) > MANY_SCORES
