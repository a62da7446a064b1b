"""The handlers beside generation: models, token ids, the OpenAPI document, the page of documentation."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from importlib.resources import files
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from antiphon.dialects.base import ModelEntry, ModelOperations
from antiphon.domain.profile import Profile
from antiphon.engines.base import Tokenizing
from antiphon.engines.registry import Model
from antiphon.errors import AntiphonError, EngineUnavailable, MissingParameter, UnsupportedParameter
from antiphon.http.connection import connection_of
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.generate import decoded
from antiphon.http.openapi import document
from antiphon.http.work import attended
from antiphon.pipeline.resolve import resolve

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that a list waits for its models' profiles. They are kept once they are known, and come to be known
within a few seconds of the start, of a busy machine too; a model that is stuck hides no other."""

PAGE_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class ModelRoutes:
    """One dialect's list of models, and each of them."""

    def __init__(self, operations: ModelOperations) -> None:
        self._operations = operations

    async def listed(self, request: Request) -> Response:
        """Every model: those of the settings in their order, then adapters."""
        actor = exchange_of(request.scope).actor
        models = [model for model in edge_of(request).models if actor.may_use(model.name)]
        if not self._operations.profiled:
            return _json(self._operations.listed(map(_entry, models)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(told(model)) for model in models]
        return _json(self._operations.listed(task.result() for task in tasks))

    async def shown(self, request: Request) -> Response:
        """One model with its profile."""
        name = request.path_params["model"]
        entry = await _profiled(request, _chosen(request, name))
        return _json(self._operations.shown(entry if entry.name == name else replace(entry, alias=name)))


async def tokenize(request: Request) -> Response:
    """The token ids of a prompt."""
    edge = edge_of(request)
    exchange = exchange_of(request.scope)
    call = await decoded(edge.dialect.tokens.decode_tokenize, exchange)
    model = _chosen(request, call.model)
    engine = _tokenizing(model)
    tokens = await awaited(request, engine.encode(call.prompt, exchange.actor))
    pieces = await awaited(request, engine.spell(tokens)) if call.texts else None
    profile = await awaited(request, model.engine.profile())
    return _json(edge.dialect.tokens.tokenized(tokens, profile.context_length, pieces))


async def apply_template(request: Request) -> Response:
    """What the chat template writes of a conversation."""
    edge = edge_of(request)
    exchange = exchange_of(request.scope)
    call = await decoded(edge.dialect.tokens.decode_apply, exchange)
    engine = _tokenizing(_chosen(request, call.model))
    text = await awaited(request, engine.apply(call.conversation, exchange.actor))
    return _json(edge.dialect.tokens.applied(text))


async def detokenize(request: Request) -> Response:
    """The text of token ids."""
    edge = edge_of(request)
    call = await decoded(edge.dialect.tokens.decode_detokenize, exchange_of(request.scope))
    text = await awaited(request, _tokenizing(_chosen(request, call.model)).decode(call.tokens))
    return _json(edge.dialect.tokens.detokenized(text))


async def tokenizer_info(request: Request) -> Response:
    """What a model's tokenizer is."""
    model = _chosen(request, request.query_params.get("model"))
    info = await awaited(request, _tokenizing(model).describe_tokenizer())
    return _json(edge_of(request).dialect.tokens.tokenizer(info))


async def openapi(request: Request) -> Response:
    """The OpenAPI document."""
    edge = edge_of(request)
    return _json(document(edge.dialects, keyed=bool(edge.verifiers), managed=edge.tenants is not None))


async def docs(_: Request) -> Response:
    """The page that shows the OpenAPI document: a shell without data, which asks for the key."""
    return _page("page.html", "text/html")


async def docs_style(_: Request) -> Response:
    """The page's style sheet."""
    return _page("page.css", "text/css")


async def docs_script(_: Request) -> Response:
    """The page's script."""
    return _page("page.js", "text/javascript")


def edge_of(request: Request) -> Edge:
    """What the application was made with."""
    edge = request.app.state.edge
    if not isinstance(edge, Edge):
        raise TypeError("the application was made without an edge")
    return edge


async def awaited(request: Request, work: Awaitable[T]) -> T:
    """The result, unless the caller leaves or the time for a generation is up."""
    edge, exchange = edge_of(request), exchange_of(request.scope)
    seconds, connection = edge.settings.request_timeout, connection_of(request.scope)
    with attended(connection, edge.ongoing, seconds, exchange.actor, exchange.progress):
        return await work


def _chosen(request: Request, name: str | None) -> Model:
    """The named model; without a name the only one, adapters of it apart. Raises PermissionDenied for a model
    that the caller's key is not for."""
    models, actor = edge_of(request).models, exchange_of(request.scope).actor
    bases = [model for model in models.bases() if actor.may_use(model.name)]
    if name is None and len(bases) != 1:
        names = ", ".join(model.name for model in bases) or "none"
        raise MissingParameter(f"model is missing; this server has: {names}", param="model")
    model = bases[0] if name is None else resolve(models, name, actor)
    exchange_of(request.scope).progress.model = model.name
    return model


def _tokenizing(model: Model) -> Tokenizing:
    if not isinstance(model.engine, Tokenizing):
        raise UnsupportedParameter(f"the engine of {model.name} does not show its token ids", param="model")
    return model.engine


def _entry(model: Model, profile: Profile | None = None) -> ModelEntry:
    state = str(model.engine.state())
    return ModelEntry(model.name, model.created, state, profile, model.parent, model.adapter)


async def told(model: Model, patience: float = PATIENCE) -> ModelEntry:
    """With its profile, if its engine tells it soon."""
    try:
        async with asyncio.timeout(patience):
            return _entry(model, await model.engine.profile())
    except (AntiphonError, TimeoutError):
        return _entry(model)


async def _profiled(request: Request, model: Model) -> ModelEntry:
    try:
        return _entry(model, await awaited(request, model.engine.profile()))
    except EngineUnavailable:
        return _entry(model)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _page(name: str, media: str) -> Response:
    return Response(files("antiphon.http").joinpath("docs", name).read_bytes(), 200, PAGE_HEADERS, media)
