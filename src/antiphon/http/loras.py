"""The handlers of a dialect in which callers deploy adapters."""

from starlette.requests import Request
from starlette.responses import Response

from antiphon.dialects.base import LoraOperations
from antiphon.errors import PermissionDenied
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.generate import decoded
from antiphon.http.routes import awaited, edge_of
from antiphon.pipeline.deployments import Deployments
from antiphon.settings import is_loopback


class LoraRoutes:
    """One dialect's adapters and base models."""

    def __init__(self, operations: LoraOperations) -> None:
        self._operations = operations

    async def deploy(self, request: Request) -> Response:
        """Makes an adapter of the hub, or of the operator's directories, a model."""
        _require_owner(request)
        exchange = exchange_of(request.scope)
        wanted = await decoded(self._operations.decode_deploy, exchange)
        deployments = _deployments(edge_of(request))
        return _json(
            self._operations.deployed(await awaited(request, deployments.deploy(wanted, exchange.actor)))
        )

    async def remove(self, request: Request) -> Response:
        """Takes an adapter's name away; what runs with it ends."""
        _require_owner(request)
        name = request.path_params["name"]
        await _deployments(edge_of(request)).remove(name, exchange_of(request.scope).actor)
        return _json(self._operations.removed(name))

    async def shown(self, request: Request) -> Response:
        """One adapter."""
        found = _deployments(edge_of(request)).find(
            request.path_params["name"], exchange_of(request.scope).actor
        )
        return _json(self._operations.deployed(found))

    async def listed(self, request: Request) -> Response:
        """All adapters."""
        return _json(
            self._operations.listed(_deployments(edge_of(request)).listed(exchange_of(request.scope).actor))
        )

    async def base(self, request: Request) -> Response:
        """One base model."""
        found = _deployments(edge_of(request)).base(
            request.path_params["name"], exchange_of(request.scope).actor
        )
        return _json(self._operations.base(found))

    async def bases(self, request: Request) -> Response:
        """All base models."""
        return _json(
            self._operations.bases(_deployments(edge_of(request)).bases(exchange_of(request.scope).actor))
        )


def _require_owner(request: Request) -> None:
    """Raises PermissionDenied unless the caller has a key, or is a program of this machine: no web page, of
    whatever origin, deploys anything on a server without a key."""
    edge = edge_of(request)
    if edge.verifiers:
        return  # who came this far had a key
    if b"origin" in exchange_of(request.scope).headers:
        raise PermissionDenied(
            "web pages do not change what is served without a key: set ANTIPHON_API_KEY and send it"
        )
    if request.client is None or not is_loopback(request.client.host):
        raise PermissionDenied(
            "only callers of this machine change what is served without a key: set ANTIPHON_API_KEY and send "
            "it"
        )


def _deployments(edge: Edge) -> Deployments:
    return edge.deployments or Deployments(edge.models)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
