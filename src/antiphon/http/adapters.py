"""The handlers that load and unload adapters while requests run."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from antiphon.errors import PermissionDenied
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.routes import awaited, edge_of
from antiphon.pipeline.adapters import Adapters, Wanted
from antiphon.pipeline.authorize import authorize_name

REMEDY = (
    "adapters are loaded and unloaded at run time only where the operator names the directories that they "
    "may come from: set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)


async def load(request: Request) -> Response:
    """Makes an adapter on the server's disk a model."""
    edge = edge_of(request)
    operations = edge.dialect.adapters
    call = operations.decode_load(exchange_of(request.scope).body)
    actor = exchange_of(request.scope).actor
    authorize_name(actor, call.name, "lora_name")
    wanted = Wanted(call.name, call.path, call.base, call.in_place, may_use=actor.may_use)
    await awaited(request, _changing(edge).load(wanted))
    return PlainTextResponse(operations.loaded(call.name))


async def unload(request: Request) -> Response:
    """Takes an adapter's name away; what runs with it ends."""
    edge = edge_of(request)
    operations = edge.dialect.adapters
    name = operations.decode_unload(exchange_of(request.scope).body)
    authorize_name(exchange_of(request.scope).actor, name, "lora_name")
    await _changing(edge).unload(name)
    return PlainTextResponse(operations.unloaded(name))


def _changing(edge: Edge) -> Adapters:
    if edge.adapters is None:
        raise PermissionDenied(REMEDY)
    return edge.adapters
