"""Whether the process lives, and whether every engine is ready and limits can be counted. Open to everybody,
so they say no more than that."""

import json

from starlette.requests import Request
from starlette.responses import Response

from antiphon.engines.base import EngineState
from antiphon.http.edge import Edge
from antiphon.http.errors import DEFAULT_RETRY

AWAY = "unavailable"
"""What is said of limits that nobody can count now: requests that have some are refused."""

HEALTH_SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "unavailable"]},
        "unavailable": {
            "type": "object",
            "additionalProperties": {"enum": [str(state) for state in EngineState]},
        },
        "limits": {"enum": [AWAY]},
    },
    "required": ["status"],
}
"""What both answer with."""


async def health(_: Request) -> Response:
    """200 while the process lives."""
    return _answer(200, {"status": "ok"})


async def ready(request: Request) -> Response:
    """200 when every engine is ready and limits are counted; else 503 with the names of the engines that are
    not, and where they stand."""
    edge: Edge = request.app.state.edge
    states = {model.name: model.engine.state() for model in edge.models.bases()}
    missing = {name: str(state) for name, state in states.items() if state is not EngineState.READY}
    away = edge.limiter is not None and not edge.limiter.available
    if not missing and not away:
        return _answer(200, {"status": "ok"})
    content: dict[str, object] = {"status": "unavailable"}
    content |= {"unavailable": missing} if missing else {}
    content |= {"limits": AWAY} if away else {}
    return _answer(503, content, {"retry-after": f"{DEFAULT_RETRY:.0f}"})


def _answer(status: int, content: dict[str, object], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type="application/json")
