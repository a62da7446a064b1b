"""Whether the process lives, and whether every engine is ready. Open to everybody, so they say no more than
that."""

import json

from starlette.requests import Request
from starlette.responses import Response

from antiphon.engines.base import EngineState
from antiphon.engines.registry import Models
from antiphon.http.errors import DEFAULT_RETRY

HEALTH_SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "unavailable"]},
        "unavailable": {
            "type": "object",
            "additionalProperties": {"enum": [str(state) for state in EngineState]},
        },
    },
    "required": ["status"],
}
"""What both answer with."""


async def health(_: Request) -> Response:
    """200 while the process lives."""
    return _answer(200, {"status": "ok"})


async def ready(request: Request) -> Response:
    """200 when every engine is ready; else 503 with the names of those that are not, and where they stand."""
    models: Models = request.app.state.edge.models
    states = {model.name: model.engine.state() for model in models.bases()}
    missing = {name: str(state) for name, state in states.items() if state is not EngineState.READY}
    if not missing:
        return _answer(200, {"status": "ok"})
    return _answer(
        503, {"status": "unavailable", "unavailable": missing}, {"retry-after": f"{DEFAULT_RETRY:.0f}"}
    )


def _answer(status: int, content: dict[str, object], headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers, media_type="application/json")
