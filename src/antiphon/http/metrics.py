"""/metrics: what the HTTP processes counted together and what each engine says of itself, as Prometheus reads
it.

An engine is asked while the scrape waits, all of them at once and for a second at most: a dead or busy one is
told as not being up, and delays nobody.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon import __version__
from antiphon.dialects.base import PLAIN, Endpoint, Request, Response, Services
from antiphon.domain.identity import Right
from antiphon.domain.load import Load
from antiphon.engines.base import EngineState, ObservableEngine
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import AntiphonError
from antiphon.http.state import AppState
from antiphon.ledger.base import LedgerState
from antiphon.telemetry import engine_metrics
from antiphon.telemetry.exposition import CONTENT_TYPE, Series, Totals, render_page, sum_series
from antiphon.telemetry.metrics import BODY_BYTES, BUILD, LEDGER, PROCESSES, RUNNING

PATIENCE = 1.0
"""Seconds that one scrape waits for engines. One answers within a millisecond or two, unless it is stuck."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an engine said of itself."""

    up: bool
    load: Load | None = None


def metrics_endpoint(edge: AppState) -> Endpoint:
    """Every number there is, as text."""

    async def show(_request: Request, _services: Services) -> Response:
        seen = await observed(edge.models)
        others = await _collect(edge)
        page = await asyncio.to_thread(render_page, list(_series(edge, seen, *others)))
        return Response(page.encode(), media_type=CONTENT_TYPE)

    return Endpoint(
        method="GET",
        path="/metrics",
        handler=show,
        right=Right.OBSERVE,
        summary="Numbers of this server and its engines, for Prometheus",
        tag="metrics",
        answers={PLAIN: {"type": "string"}},
    )


async def _collect(edge: AppState) -> tuple[int, Totals]:
    """How many other processes there are, and what they count."""
    return (0, Totals()) if edge.coordinator is None else await edge.coordinator.collect_totals()


def _series(edge: AppState, seen: dict[str, Seen], processes: int, others: Totals) -> Iterator[Series]:
    yield BUILD, {(__version__,): 1}
    yield PROCESSES, {(): 1 + processes}
    yield from sum_series(own_series(edge), others, edge.models.__contains__)
    loads = {model: each.load for model, each in seen.items()}
    yield from engine_metrics.list_series(loads, {model: each.up for model, each in seen.items()})


async def generations_running(edge: AppState) -> int:
    """Generations that run or wait now, in all HTTP processes."""
    _, others = await _collect(edge)
    counted = sum_series(edge.metrics.series(), others, edge.models.__contains__)
    running = (values.values() for family, values in counted if family is RUNNING)
    return sum(int(value) for values in running for value in values if isinstance(value, int | float))


def own_series(edge: AppState) -> Iterator[Series]:
    """What this process counts."""
    yield BODY_BYTES, {(): edge.bodies.held}
    if edge.ledger is not None:
        state = edge.ledger.state
        yield LEDGER, {(str(each),): int(each is state) for each in LedgerState}
    yield from edge.metrics.series()


async def observed(models: ModelRegistry, patience: float = PATIENCE) -> dict[str, Seen]:
    """Every engine, asked at once; adapters are their base model's to tell."""
    async with asyncio.TaskGroup() as group:
        asked = {model.name: group.create_task(_seen(model, patience)) for model in models.list_bases()}
    return {name: task.result() for name, task in asked.items()}


async def _seen(model: Model, patience: float) -> Seen:
    engine = model.engine
    if engine.state() is not EngineState.READY:
        return Seen(False)
    if not isinstance(engine, ObservableEngine):
        return Seen(True)
    try:
        async with asyncio.timeout(patience):
            return Seen(True, await engine.observe())
    except (AntiphonError, TimeoutError):
        return Seen(False)
