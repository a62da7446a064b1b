"""Whether the process lives, and whether every engine is ready, limits can be counted and generations be
written down. Open to everybody,
so they say no more than that."""

import json

from antiphon.dialects.base import JSON, Endpoint, Handler, Headers, Request, Response, Services
from antiphon.engines.base import EngineState
from antiphon.http.errors import DEFAULT_RETRY
from antiphon.http.state import AppState
from antiphon.ledger.base import LedgerState

AWAY = "unavailable"
"""What is said of limits that nobody can count now, whose requests are refused unless the settings say
otherwise, and of a coordinator that does not answer."""

HEALTH = "Health"
"""Name of the schema of both answers."""

HEALTH_SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "unavailable"]},
        "unavailable": {
            "type": "object",
            "additionalProperties": {"enum": [str(state) for state in EngineState]},
        },
        "limits": {"enum": [AWAY]},
        "coordinator": {"enum": [AWAY]},
        "ledger": {"enum": [str(LedgerState.WAITING), str(LedgerState.FULL)]},
    },
    "required": ["status"],
}
"""What both answer with."""


def health_endpoints(edge: AppState) -> tuple[Endpoint, Endpoint]:
    """Whether the process lives, and whether it can serve."""

    async def health(_request: Request, _services: Services) -> Response:
        """200 while the process lives."""
        return _answer(200, {"status": "ok"})

    async def ready(_request: Request, _services: Services) -> Response:
        """200 when every engine is ready, limits are counted, the ledger has room and, where keys are on,
        the coordinator answers; otherwise 503 with the engines that are not, their states, and what is
        missing."""
        states = {model.name: model.engine.state() for model in edge.models.list_bases()}
        missing = {name: str(state) for name, state in states.items() if state is not EngineState.READY}
        silent = edge.coordinator is not None and not await edge.coordinator.ping()
        away = edge.limiter is not None and not edge.limiter.available
        ledger = LedgerState.WELL if edge.ledger is None else edge.ledger.state
        said: dict[str, object] = {} if ledger is LedgerState.WELL else {"ledger": str(ledger)}
        said |= {"limits": AWAY} if away else {}
        said |= {"coordinator": AWAY} if silent else {}
        uncounted = away and not edge.limits_open
        blocked = silent and edge.keys_on  # without keys every request is served as before
        if not (missing or blocked or uncounted or ledger is LedgerState.FULL):
            return _answer(200, {"status": "ok"} | said)
        content: dict[str, object] = {"status": "unavailable"}
        content |= {"unavailable": missing} if missing else {}
        content |= said
        return _answer(503, content, ((b"retry-after", b"%d" % DEFAULT_RETRY),))

    return (
        _public("/health", health, "Whether the process lives", 200),
        _public("/health/ready", ready, "Whether every engine is ready", 200, 503),
    )


def _public(path: str, handler: Handler, summary: str, *statuses: int) -> Endpoint:
    schema = {"$ref": f"#/components/schemas/{HEALTH}"}
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        right=None,
        summary=summary,
        tag="health",
        answers={JSON: schema},
        statuses=statuses,
        ends_with_caller=False,
    )


def _answer(status: int, content: dict[str, object], headers: Headers = ()) -> Response:
    return Response(json.dumps(content).encode(), status, headers=headers)
