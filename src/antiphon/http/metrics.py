"""/metrics: what the HTTP processes counted together and what each engine says of itself, as Prometheus reads
it; and the counting of requests.

An engine is asked while the scrape waits, all of them at once and for a second at most: a dead or busy one is
told as not being up, and delays nobody.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon import __version__
from antiphon.domain.load import Load
from antiphon.engines.base import EngineState, Observable
from antiphon.engines.registry import Model, Models
from antiphon.errors import AntiphonError
from antiphon.http.edge import Edge
from antiphon.http.routes import edge_of
from antiphon.ledger.base import LedgerState
from antiphon.telemetry import engines
from antiphon.telemetry.exposition import CONTENT_TYPE, Series, exposition
from antiphon.telemetry.metrics import BODY_BYTES, BUILD, LEDGER, PROCESSES

PATIENCE = 1.0
"""Seconds that one scrape waits for engines. One answers within a millisecond or two, unless it is stuck."""

OTHER = "other"
"""Route of a path that is none: what callers make up is no label."""

LEFT = "left"
"""Status of a request whose caller did not wait for an answer."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine said of itself."""

    up: bool
    load: Load | None = None


async def show(request: Request) -> Response:
    """Every number there is, as text."""
    edge = edge_of(request)
    seen = await observed(edge.models)
    return Response(exposition(_series(edge, seen)), headers={"content-type": CONTENT_TYPE})


def _series(edge: Edge, seen: dict[str, Seen]) -> Iterator[Series]:
    yield BUILD, {(__version__,): 1}
    yield PROCESSES, {(): 1 if edge.sheets is None else edge.sheets.living()}
    yield from own_series(edge) if edge.sheets is None else edge.sheets.summed(edge.models.__contains__)
    loads = {model: each.load for model, each in seen.items()}
    yield from engines.series(loads, {model: each.up for model, each in seen.items()})


def own_series(edge: Edge) -> Iterator[Series]:
    """What this process counts."""
    yield BODY_BYTES, {(): edge.bodies.held}
    if edge.ledger is not None:
        state = edge.ledger.state
        yield LEDGER, {(str(each),): int(each is state) for each in LedgerState}
    yield from edge.metrics.series()


async def observed(models: Models, patience: float = PATIENCE) -> dict[str, Seen]:
    """Every engine, asked at once; adapters are their base model's to tell."""
    async with asyncio.TaskGroup() as group:
        asked = {model.name: group.create_task(_seen(model, patience)) for model in models.bases()}
    return {name: task.result() for name, task in asked.items()}


async def _seen(model: Model, patience: float) -> Seen:
    engine = model.engine
    if engine.state() is not EngineState.READY:
        return Seen(False)
    if not isinstance(engine, Observable):
        return Seen(True)
    try:
        async with asyncio.timeout(patience):
            return Seen(True, await engine.observe())
    except (AntiphonError, TimeoutError):
        return Seen(False)


class Count:
    """Counts every answer by route and status, and times it."""

    def __init__(self, app: ASGIApp, edge: Edge, routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._metrics = edge.metrics
        self._sheets = edge.sheets
        found = [route for route in routes if isinstance(route, Route)]
        self._whole = frozenset(route.path for route in found if "{" not in route.path)
        self._open = {route.path: route.path_regex for route in found if "{" in route.path}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        began, status = loop.time(), LEFT
        if self._sheets is not None:
            self._sheets.touch()

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._metrics.answered(self.route(scope["path"]), status, loop.time() - began)
            if self._sheets is not None:
                self._sheets.touch()

    def route(self, path: str) -> str:
        """The path of the route that answers, as it is declared."""
        if path in self._whole:
            return path
        return next((declared for declared, known in self._open.items() if known.match(path)), OTHER)
