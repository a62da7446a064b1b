"""Routes of a model as a caller sees them: the header of the route that served, and the errors of rests."""

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    AntiphonError,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderRateLimited,
    ProviderRefused,
    ProviderUnavailable,
    UnsupportedParameter,
)
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.logs import FIELDS
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedEmbeddingEngine, ScriptedEngine
from tests.support.accounting import Books, limit
from tests.support.http_server import CHAT, HELLO, Served, serving_edge
from tests.support.routing import RouteEngine, build_route, get_route_engine

EMBEDDINGS = "/v1/embeddings"


@asynccontextmanager
async def serving(*routes: ModelRoute, books: Books | None = None) -> AsyncIterator[Served]:
    vectors = ModelRoute(Renderer(ScriptedEmbeddingEngine()), name="engine/e")
    models = ModelRegistry((Model("m", routes, 7, is_routed=True), Model("e", (vectors,), 7)))
    metrics = Metrics()
    pipeline = Pipeline(models, metrics, 0.0, None if books is None else books.accounting)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings(), clock=FakeClock(), metrics=metrics)
    async with serving_edge(edge) as (port, connections):
        yield Served(port, ScriptedEngine(), edge, connections)


def build_pair() -> tuple[ModelRoute, ModelRoute]:
    return build_route("x/a"), build_route("y/b", order=2)


async def test_every_answer_names_its_route() -> None:
    first, second = build_pair()
    async with serving(first, second) as served:
        for body in (HELLO, HELLO | {"stream": True}):
            get_route_engine(first).failures = [ProviderFailed("no")]
            first.state.wake()
            replies = [await served.ask(CHAT, body) for _ in range(2)]
            assert [reply.headers["x-antiphon-route"] for reply in replies] == ["y/b", "y/b"]
            first.state.wake()
            assert (await served.ask(CHAT, body)).headers["x-antiphon-route"] == "x/a"
        reply = await served.ask(EMBEDDINGS, {"model": "e", "input": [[7, 8]]})
        assert reply.headers["x-antiphon-route"] == "engine/e"


async def test_a_model_without_named_routes_names_itself() -> None:
    async with serving(ModelRoute(RouteEngine("m"))) as served:
        assert (await served.ask(CHAT, HELLO)).headers["x-antiphon-route"] == "m"


async def test_a_resting_route_answers_with_retry_after() -> None:
    route = build_route("x/a")
    get_route_engine(route).failures = [ProviderRateLimited("x says slow down", retry_after=30.0)]
    async with serving(route) as served:
        assert (await served.ask(CHAT, HELLO)).status == 429
        reply = await served.ask(CHAT, HELLO)
    assert (reply.status, reply.headers["retry-after"]) == (429, "30")
    assert "x/a rests" in reply.json()["error"]["message"] and "x-antiphon-route" not in reply.headers
    assert get_route_engine(route).asked == 1


async def test_a_field_that_no_route_takes_is_a_400_with_the_routes() -> None:
    routes = build_pair()
    for route in routes:
        get_route_engine(route).refusal = UnsupportedParameter("top_k is unknown there", param="top_k")
    async with serving(*routes) as served:
        reply = await served.ask(CHAT, HELLO)
    error = reply.json()["error"]
    assert (reply.status, error["param"]) == (400, "top_k")
    assert "x/a" in error["message"] and "y/b" in error["message"]


async def test_a_failed_route_is_in_the_row_and_the_metrics() -> None:
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderFailed("no")]
    books = Books(limit())
    async with serving(first, second, books=books) as served:
        await served.ask(CHAT, HELLO | {"max_tokens": 5})
        page = await served.ask("/metrics")
    tried = json.loads(books.ledger.entry.routes)
    assert [(each["route"], each["error"]) for each in tried] == [("x/a", "provider_failed"), ("y/b", None)]
    text = page.body.decode()
    for line in (
        'antiphon_route_attempts_total{model="m",outcome="provider_failed",route="x/a"} 1.0',
        'antiphon_route_attempts_total{model="m",outcome="ok",route="y/b"} 1.0',
        'antiphon_route_rests_total{model="m",route="x/a"} 1.0',
        'antiphon_route_first_event_seconds_count{model="m",route="y/b"} 1.0',
        'antiphon_route_in_flight{model="m",route="y/b"} 0.0',
    ):
        assert line in text


def read_log(caplog: pytest.LogCaptureFixture, *events: str) -> list[tuple[str, str, dict[str, object]]]:
    """Returns the level, the event and the values of each record with one of these events."""
    return [
        (record.levelname, record.message, getattr(record, FIELDS))
        for record in caplog.records
        if record.message in events
    ]


async def test_a_rest_and_its_end_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderUnavailable("x is away", cause="x answered 503")] * 3
    async with serving(first, second) as served:
        clock = served.edge.clock
        assert isinstance(clock, FakeClock)
        for seconds in (0, 1.5, 2.5, 4.5):  # the rests are 1, 2 and 4 s
            clock.advance(seconds)
            for _ in range(3):
                assert (await served.ask(CHAT, HELLO)).status == 200
    names = {"model": "m", "route": "x/a"}
    begun = {"code": "provider_unavailable", "cause": "x answered 503", "seconds": 1.0}
    assert read_log(caplog, "route_rests", "route_serves_again") == [
        ("WARNING", "route_rests", names | begun),
        ("WARNING", "route_serves_again", names | {"seconds": 8.5}),
    ]


async def test_a_request_that_needed_a_second_route_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderUnavailable("x is away", cause="x answered 503")]
    async with serving(first, second) as served:
        for number in range(3):
            await served.ask(CHAT, HELLO, headers={"x-request-id": f"req-{number}"})
    fields = {
        "request_id": "req-0",
        "model": "m",
        "failed": ["x/a"],
        "codes": ["provider_unavailable"],
        "causes": ["x answered 503"],
        "served": "y/b",
    }
    assert read_log(caplog, "fallback") == [("INFO", "fallback", fields)]


async def test_a_request_whose_routes_all_fail_is_logged_with_each_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="antiphon")
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderUnavailable("x is away", cause="x answered 503")]
    get_route_engine(second).failures = [ProviderRefused("no", cause="y answered 400")]
    async with serving(first, second) as served:
        assert (await served.ask(CHAT, HELLO)).status == 400
    ((_, _, fields),) = read_log(caplog, "fallback")
    assert (fields["failed"], fields["served"]) == (["x/a", "y/b"], None)
    assert fields["causes"] == ["x answered 503", "y answered 400"]


async def test_a_refused_key_rests_its_route_for_an_hour_and_the_next_serves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderKeyRefused("no key", cause="x answered 401")]
    async with serving(first, second) as served:
        clock = served.edge.clock
        assert isinstance(clock, FakeClock)
        for seconds in (0, 3599):
            clock.advance(seconds)
            assert (await served.ask(CHAT, HELLO)).headers["x-antiphon-route"] == "y/b"
        clock.advance(1)
        assert (await served.ask(CHAT, HELLO)).headers["x-antiphon-route"] == "x/a"
    (begun, _) = read_log(caplog, "route_rests", "route_serves_again")
    assert begun[2]["seconds"] == 3600.0 and begun[2]["cause"] == "x answered 401"


async def test_a_refused_key_after_another_failure_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    route = build_route("x/a")
    get_route_engine(route).failures = [ProviderFailed("no"), *[ProviderKeyRefused("no key")] * 3]
    async with serving(route) as served:
        for _ in range(4):
            assert (await served.ask(CHAT, HELLO)).status == 502
    logged = [fields["code"] for _, _, fields in read_log(caplog, "route_rests")]
    assert logged == ["provider_failed", "provider_key_refused"]


async def test_a_single_route_with_a_refused_key_is_tried_at_each_request() -> None:
    route = build_route("x/a")
    get_route_engine(route).failures = [ProviderKeyRefused("no key")] * 2
    async with serving(route) as served:
        replies = [await served.ask(CHAT, HELLO) for _ in range(3)]
    assert [reply.status for reply in replies] == [502, 502, 200]


async def test_a_renewed_key_rests_its_route_for_a_second_only() -> None:
    first, second = build_pair()
    error = ProviderKeyRefused("no key")
    error.is_key_renewed = True
    get_route_engine(first).failures = [error]
    async with serving(first, second) as served:
        clock = served.edge.clock
        assert isinstance(clock, FakeClock)
        assert (await served.ask(CHAT, HELLO)).headers["x-antiphon-route"] == "y/b"
        clock.advance(1)
        assert (await served.ask(CHAT, HELLO)).headers["x-antiphon-route"] == "x/a"


@pytest.mark.parametrize(
    ("errors", "status", "retry_after"),
    [
        ((ProviderRateLimited("x", retry_after=20.0), ProviderRateLimited("y", retry_after=70.0)), 429, "20"),
        ((ProviderRateLimited("x", retry_after=20.0), ProviderUnavailable("y")), 503, "1"),
        ((ProviderUnavailable("x"), ProviderRateLimited("y", retry_after=70.0)), 429, "1"),
        ((ProviderRateLimited("x", retry_after=20.0), ProviderKeyRefused("y")), 429, "20"),
        ((ProviderKeyRefused("x"), ProviderRateLimited("y", retry_after=70.0)), 429, "70"),
    ],
)
async def test_when_all_routes_fail_the_shortest_retry_after_is_told(
    errors: tuple[AntiphonError, ...], status: int, retry_after: str
) -> None:
    routes = build_pair()
    for route, error in zip(routes, errors, strict=True):
        get_route_engine(route).failures = [error]
    async with serving(*routes) as served:
        reply = await served.ask(CHAT, HELLO)
    assert (reply.status, reply.headers["retry-after"]) == (status, retry_after)


async def test_a_resting_route_counts_for_the_shortest_retry_after() -> None:
    first, second = build_pair()
    get_route_engine(first).failures = [ProviderRateLimited("x", retry_after=20.0)]
    async with serving(first, second) as served:
        assert (await served.ask(CHAT, HELLO)).status == 200
        get_route_engine(second).failures = [ProviderRateLimited("y", retry_after=70.0)]
        reply = await served.ask(CHAT, HELLO)
    assert (reply.status, reply.headers["retry-after"]) == (429, "20")


async def test_readiness_and_metrics_name_a_model_whose_routes_all_rest() -> None:
    first, second = build_pair()
    for route in (first, second):
        get_route_engine(route).failures = [ProviderUnavailable("away")]

    async def read(served: Served) -> tuple[int, object, dict[str, str]]:
        ready = await served.ask("/health/ready")
        page = (await served.ask("/metrics")).body.decode()
        gauge = "antiphon_route_unavailable{"
        values = {
            line.partition('route="')[2][:3]: line[-3:] for line in page.split("\n") if line.startswith(gauge)
        }
        return ready.status, ready.json(), values

    async with serving(first, second) as served:
        clock = served.edge.clock
        assert isinstance(clock, FakeClock)
        assert await read(served) == (200, {"status": "ok"}, {"x/a": "0.0", "y/b": "0.0"})
        assert (await served.ask(CHAT, HELLO)).status == 503
        degraded = {"status": "ok", "models_without_route": ["m"]}
        assert await read(served) == (200, degraded, {"x/a": "1.0", "y/b": "1.0"})
        clock.advance(1)
        get_route_engine(first).failures = [ProviderUnavailable("away")]
        assert (await served.ask(CHAT, HELLO)).status == 200
        assert await read(served) == (200, {"status": "ok"}, {"x/a": "1.0", "y/b": "0.0"})
