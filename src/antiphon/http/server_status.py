"""The endpoints that describe the server: /, /health, /health/ready, /version, /load and /metrics.

The page at / names the server and links to its documentation. It is public. So it names models only if keys
are off, because every caller can then list them. /health and /health/ready are public, so they contain only
states. /metrics asks all engines at the same time and waits at most a second. It reports an engine that does
not answer as not up.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from antiphon import __version__
from antiphon.dialects.base import Endpoint, Handler
from antiphon.dialects.http_types import JSON, PLAIN, Headers, Request, Response
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.domain.models import Load
from antiphon.domain.values import Struct
from antiphon.engines.base import Engine, EngineState, ObservableEngine
from antiphon.engines.registry import ModelRegistry
from antiphon.errors import AntiphonError
from antiphon.http.errors import DEFAULT_RETRY_AFTER
from antiphon.http.state import AppState, ServerFacts
from antiphon.ledger.base import LedgerState
from antiphon.pipeline.routing import is_unavailable
from antiphon.store.base import LAST_BACKUP
from antiphon.telemetry import exposition
from antiphon.telemetry.exposition import CONTENT_TYPE, PARKED, Series, Totals, render_page, sum_series
from antiphon.telemetry.metrics import (
    BACKUP_TIME,
    BODY_BYTES,
    BUILD,
    DEATHS,
    DISK_BYTES,
    DISK_FREE,
    LEDGER,
    LIMITS,
    PROCESSES,
    RESPONSES_REFUSED,
    ROUTE_UNAVAILABLE,
    RUNNING,
    START,
    STORE,
    STORE_FAILURES,
)

SCRAPE_TIMEOUT = 1.0
"""Seconds that a request for metrics waits for engines. An engine answers within two milliseconds, unless it
is stuck."""

UNAVAILABLE = "unavailable"
"""The state of a limiter or a coordinator that does not answer. Without the limiter, limited requests are
refused unless the settings allow them."""

SERVING_STATES = (EngineState.READY, EngineState.PARKED, EngineState.LOADING)
"""The states of an engine that serves requests. A parked engine is loaded when a request needs it."""

HEALTH = "Health"
"""The name of the schema of both health endpoints."""

HEALTH_SCHEMA = {
    "type": "object",
    "properties": {
        "status": {"enum": ["ok", "unavailable", "stopping"]},
        "unavailable": {
            "type": "object",
            "additionalProperties": {
                "enum": [str(state) for state in EngineState if state not in SERVING_STATES]
            },
        },
        "models_without_route": {"type": "array", "items": {"type": "string"}},
        "limits": {"enum": [UNAVAILABLE]},
        "coordinator": {"enum": [UNAVAILABLE]},
        "ledger": {"enum": [str(LedgerState.WAITING), str(LedgerState.FULL)]},
    },
    "required": ["status"],
}
"""The schema of both health endpoints."""


MAX_MODELS = 50
"""The most models that the answer names."""

HTML = "text/html"

LINKS = {"console": "/console/", "docs": "/docs", "openapi": "/openapi.json", "health": "/health"}

FRONT_PAGE = "/"


class EngineReport(Struct, frozen=True):
    """What is known about an engine when metrics are requested."""

    is_up: bool
    """Whether the engine is ready and answered in time."""
    load: Load | None = None
    is_parked: bool = False
    """Whether the model is not loaded until a request needs it."""


def declare_metrics(app_state: AppState) -> Endpoint:
    async def show(_request: Request, _services: Services) -> Response:
        reports = await observe_engines(app_state.models)
        other_totals = await _collect_other_totals(app_state)
        series = list(_list_series(app_state, reports, *other_totals))
        page = await asyncio.to_thread(render_page, series)
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


async def _collect_other_totals(app_state: AppState) -> tuple[int, Totals]:
    """Returns the number of other HTTP processes, and the sums of their counters."""
    return (0, Totals()) if app_state.coordinator is None else await app_state.coordinator.collect_totals()


def _list_series(
    app_state: AppState, reports: dict[str, EngineReport], other_processes: int, other_totals: Totals
) -> Iterator[Series]:
    """Yields all metrics: of the server, of all its processes, and of the engines. `other_processes`: the
    number of other HTTP processes. `other_totals`: the sums of their counters."""
    yield BUILD, {(__version__,): 1}
    yield from _list_server_series(app_state.facts)
    yield PROCESSES, {(): 1 + other_processes}
    yield from sum_series(list_own_series(app_state), other_totals, partial(_is_counted, app_state))
    loads = {model: report.load for model, report in reports.items()}
    yield PARKED, {(model,): int(report.is_parked) for model, report in reports.items()}
    yield from exposition.list_series(loads, {model: report.is_up for model, report in reports.items()})


def _list_server_series(facts: ServerFacts) -> Iterator[Series]:
    """Yields what all processes of the server have in common: its start, the deaths of its processes, its
    disks and its latest backup."""
    yield START, {(): facts.started} if facts.started else {}
    yield DEATHS, {**facts.deaths}
    disks = {}
    for label, directory in facts.directories.items():
        with suppress(OSError):  # a directory of knowledge tables is created at its first use
            disks[(label,)] = os.statvfs(directory)
    yield DISK_BYTES, {labels: disk.f_blocks * disk.f_frsize for labels, disk in disks.items()}
    yield DISK_FREE, {labels: disk.f_bavail * disk.f_frsize for labels, disk in disks.items()}
    if facts.home is not None:
        try:
            backup_time = (facts.home / LAST_BACKUP).stat().st_mtime
        except OSError:
            backup_time = 0.0
        yield BACKUP_TIME, {(): backup_time}


def _is_counted(app_state: AppState, model: str) -> bool:
    """Whether the metrics contain a model: one that is served, or one that a reload has removed. Other
    processes can have counts of adapters that are unloaded now."""
    return model in app_state.models or model in app_state.metrics.removed_models


async def count_running_generations(app_state: AppState) -> int:
    """Returns the number of running and waiting generations in all HTTP processes."""
    _, other_totals = await _collect_other_totals(app_state)
    series = sum_series(app_state.metrics.list_series(), other_totals, partial(_is_counted, app_state))
    running_counts = (values.values() for family, values in series if family is RUNNING)
    return sum(int(count) for counts in running_counts for count in counts if isinstance(count, int | float))


def list_own_series(app_state: AppState) -> Iterator[Series]:
    """Yields the metrics of this process."""
    yield BODY_BYTES, {(): app_state.body_budget.byte_count}
    if app_state.limiter is not None:
        available = app_state.limiter.available
        yield LIMITS, {("available",): int(available), (UNAVAILABLE,): int(not available)}
    if app_state.feed is not None:
        lost = app_state.feed.is_lost
        yield STORE, {("followed",): int(not lost), ("lost",): int(lost)}
    if app_state.database is not None:
        yield STORE_FAILURES, {(): app_state.database.failure_count}
    if app_state.responses is not None:
        refusals = app_state.responses.refusals
        yield RESPONSES_REFUSED, {(reason,): count for reason, count in refusals.items()}
    unavailable: dict[tuple[str, ...], int] = {}
    for labels, is_route_unavailable in list_routes(app_state):
        unavailable[labels] = max(unavailable.get(labels, 0), int(is_route_unavailable))
    yield ROUTE_UNAVAILABLE, unavailable
    if app_state.ledger is not None:
        state = app_state.ledger.state
        yield LEDGER, {(str(possible_state),): int(possible_state is state) for possible_state in LedgerState}
    yield from app_state.metrics.list_series()


def list_routes(app_state: AppState) -> Iterator[tuple[tuple[str, str], bool]]:
    """Yields the labels of each routed model and route, and whether the route is unavailable. Hosts of one
    local model are one route. Names of a pattern have the same labels."""
    now = app_state.clock.monotonic()
    for model in app_state.models.list_routed():
        states: dict[str, bool] = {}
        for route in model.routes:
            states[route.label] = is_unavailable(route, now) and states.get(route.label, True)
        for label, is_route_unavailable in states.items():
            yield (model.label, label), is_route_unavailable


def list_models_without_route(app_state: AppState) -> list[str]:
    """Lists the routed models of which no route is available. A pattern is in the list if one of its names
    is."""
    now = app_state.clock.monotonic()
    models = app_state.models.list_routed()
    return sorted(
        {model.label for model in models if all(is_unavailable(route, now) for route in model.routes)}
    )


async def observe_engines(
    models: ModelRegistry, max_seconds: float = SCRAPE_TIMEOUT
) -> dict[str, EngineReport]:
    """Asks all engines at the same time for their load, and returns the reports by route name. Skips
    adapters, because they use the engines of their base model."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            route.name: group.create_task(_observe_engine(route.engine, max_seconds))
            for model in models.list_bases()
            for route in model.routes
        }
    return {name: task.result() for name, task in tasks.items()}


async def _observe_engine(engine: Engine, max_seconds: float) -> EngineReport:
    """Returns the report of one engine. An engine that is dead or answers too late is not up."""
    if (state := engine.state()) is not EngineState.READY:
        return EngineReport(False, is_parked=state is EngineState.PARKED)
    if not isinstance(engine, ObservableEngine):
        return EngineReport(True)
    try:
        async with asyncio.timeout(max_seconds):
            return EngineReport(True, await engine.observe())
    except (AntiphonError, TimeoutError):
        return EngineReport(False)


def declare_health(app_state: AppState) -> tuple[Endpoint, Endpoint]:
    """Declares /health (whether the process lives) and /health/ready (whether it can serve)."""

    async def health(_request: Request, _services: Services) -> Response:
        return _answer_json(200, {"status": "ok"})

    async def ready(_request: Request, _services: Services) -> Response:
        """Answers 200 if every model has an engine that serves, limits are counted and the ledger is not
        full. If keys are on, the coordinator must answer too. Otherwise answers 503. Both responses list
        everything that is not ready, even if the server works without it. A routed model without a route is
        only listed: its vendors fail for every server alike, and its caller gets a better error than a load
        balancer's. A server that was asked to stop answers 503."""
        if app_state.in_flight.is_stopping:
            return _answer_json(503, {"status": "stopping"})
        bases = app_state.models.list_bases()
        states = {route.name: route.engine.state() for model in bases for route in model.routes}
        not_ready = {name: str(state) for name, state in states.items() if state not in SERVING_STATES}
        has_unserved_model = any(all(route.name in not_ready for route in model.routes) for model in bases)
        is_coordinator_down = app_state.coordinator is not None and not await app_state.coordinator.ping()
        is_limiter_down = app_state.limiter is not None and not app_state.limiter.available
        ledger = LedgerState.WELL if app_state.ledger is None else app_state.ledger.state
        without_route = list_models_without_route(app_state)
        problems: dict[str, object] = {"unavailable": not_ready} if not_ready else {}
        problems |= {"models_without_route": without_route} if without_route else {}
        problems |= {} if ledger is LedgerState.WELL else {"ledger": str(ledger)}
        problems |= {"limits": UNAVAILABLE} if is_limiter_down else {}
        problems |= {"coordinator": UNAVAILABLE} if is_coordinator_down else {}
        refuses_limited_requests = is_limiter_down and not app_state.limits_open
        # Without keys, no request needs the coordinator.
        refuses_all_requests = is_coordinator_down and app_state.keys_on
        is_refusing = refuses_all_requests or refuses_limited_requests
        if not (has_unserved_model or is_refusing or ledger is LedgerState.FULL):
            return _answer_json(200, {"status": "ok"} | problems)
        content: dict[str, object] = {"status": "unavailable"} | problems
        return _answer_json(503, content, ((b"retry-after", b"%d" % DEFAULT_RETRY_AFTER),))

    return (
        _declare_public("/health", health, "Whether the process lives", 200),
        _declare_public("/health/ready", ready, "Whether every engine is ready", 200, 503),
    )


def _declare_public(path: str, handler: Handler, summary: str, *statuses: int) -> Endpoint:
    """Declares a public health endpoint."""
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


def _answer_json(status: int, content: dict[str, object], headers: Headers = ()) -> Response:
    """Returns a response with a JSON body."""
    return Response(json.dumps(content).encode(), status, headers=headers)


def declare_info(app_state: AppState) -> tuple[Endpoint, Endpoint]:
    """Declares /version and /load."""

    async def version(_request: Request, _services: Services) -> Response:
        return _answer_json(200, {"version": __version__})

    async def load(_request: Request, _services: Services) -> Response:
        """Answers with the number of running and waiting generations in all HTTP processes."""
        return _answer_json(200, {"server_load": await count_running_generations(app_state)})

    count = {"type": "integer", "minimum": 0}
    return (
        _declare_info("/version", version, "The release of this server", "version", {"type": "string"}),
        _declare_info("/load", load, "How many generations run or wait now", "server_load", count),
    )


def _declare_info(
    path: str, handler: Handler, summary: str, name: str, schema: dict[str, object]
) -> Endpoint:
    """Declares an endpoint that answers with an object of one field."""
    return Endpoint(
        method="GET",
        path=path,
        handler=handler,
        right=Right.READ,
        summary=summary,
        tag="server",
        answers={JSON: {"type": "object", "properties": {name: schema}, "required": [name]}},
    )


def declare_front_page(app_state: AppState) -> Endpoint:
    """Declares the public endpoint of `/`: it leads a browser to the console. Programs get links."""
    lists_models = not app_state.verifiers

    async def show(request: Request, _services: Services) -> Response:
        if prefers_html(request):
            # Relative, because a proxy may serve all of this below a prefix.
            leads = ((b"location", b"console/"), (b"vary", b"accept"), (b"cache-control", b"no-cache"))
            return Response(status=307, headers=leads, media_type=HTML)
        content: dict[str, object] = {"name": "Antiphon", **LINKS}
        if lists_models:
            content["models"] = [model.name for model in app_state.models][:MAX_MODELS]
        headers = ((b"vary", b"accept"), (b"cache-control", b"no-cache"))
        return Response(json.dumps(content).encode() + b"\n", headers=headers)

    return Endpoint(method="GET", path=FRONT_PAGE, handler=show, right=None, ends_with_caller=False)


def prefers_html(request: Request) -> bool:
    """Whether the caller is a browser: it names HTML among the types that it accepts."""
    media_types = b",".join(request.headers.get(b"accept", [])).decode("latin-1").lower().split(",")
    return any(media_type.partition(";")[0].strip() == HTML for media_type in media_types)
