"""What vLLM's servers say of themselves beside /health: their version, and how much they do."""

import json

from starlette.requests import Request
from starlette.responses import Response

from antiphon import __version__
from antiphon.http.metrics import generations_running
from antiphon.http.routes import edge_of


async def version(_: Request) -> Response:
    """The release of this server."""
    return _answer({"version": __version__})


async def load(request: Request) -> Response:
    """Generations that run or wait now, in all HTTP processes."""
    return _answer({"server_load": await generations_running(edge_of(request))})


def _answer(content: dict[str, object]) -> Response:
    return Response(json.dumps(content), media_type="application/json")
