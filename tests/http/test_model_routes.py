"""Routes of a model as a caller sees them: the header of the route that served, and the errors of rests."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import ProviderFailed, ProviderRateLimited, UnsupportedParameter
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import FakeClock, ScriptedEmbeddingEngine, ScriptedEngine
from tests.support.accounting import Books, limit
from tests.support.http_server import CHAT, HELLO, Served, serving_edge
from tests.support.routing import RouteEngine, build_route, get_route_engine

EMBEDDINGS = "/v1/embeddings"


@asynccontextmanager
async def serving(*routes: ModelRoute, books: Books | None = None) -> AsyncIterator[Served]:
    vectors = ModelRoute(Renderer(ScriptedEmbeddingEngine()), name="engine/e")
    models = ModelRegistry((Model("m", routes, 7), Model("e", (vectors,), 7)))
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
