"""What vLLM's servers say of themselves beside /health: their version, and how much they do."""

import json

from antiphon import __version__
from antiphon.dialects.base import JSON, Endpoint, Handler, Request, Response, Services
from antiphon.domain.identity import Right
from antiphon.http.metrics import generations_running
from antiphon.http.state import AppState


def info_endpoints(edge: AppState) -> tuple[Endpoint, Endpoint]:
    """The release of this server, and its load."""

    async def version(_request: Request, _services: Services) -> Response:
        return _answer({"version": __version__})

    async def load(_request: Request, _services: Services) -> Response:
        """Generations that run or wait now, in all HTTP processes."""
        return _answer({"server_load": await generations_running(edge)})

    count = {"type": "integer", "minimum": 0}
    return (
        _shown("/version", version, "The release of this server", "version", {"type": "string"}),
        _shown("/load", load, "How many generations run or wait now", "server_load", count),
    )


def _shown(path: str, handler: Handler, summary: str, name: str, schema: dict[str, object]) -> Endpoint:
    """An endpoint that answers with an object of one value."""
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        right=Right.READ,
        summary=summary,
        tag="server",
        answers={JSON: {"type": "object", "properties": {name: schema}, "required": [name]}},
    )


def _answer(content: dict[str, object]) -> Response:
    return Response(json.dumps(content).encode())
