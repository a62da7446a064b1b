"""Traces of a real server: a collector gets the steps of a request by OTLP, by OpenTelemetry's names."""

import asyncio
import importlib
import json
import pkgutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import opentelemetry.semconv._incubating.attributes as conventions
import pytest
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from tests.support.knowledge_tables import fill_table
from tests.support.otlp_receiver import Collector, ReceivedSpan, collecting
from tests.support.server import Server, serving
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

SETTINGS = """
[tracing]
endpoint = "{collector}"
metrics_interval = 0.2
content = {content}

[providers.first]
preset = "mistral"
base_url = "{url}"
private = true

[providers.second]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "mixed"
routes = [{{ provider = "first", model = "fake-503" }}, {{ provider = "second", model = "fake", order = 2 }}]

[[models]]
name = "tried"
routes = [
  {{ provider = "first", model = "fake-503-after-600" }}, {{ provider = "second", model = "fake", order = 2 }}
]

[[models]]
name = "broken"
routes = [{{ provider = "second", model = "fake-reset-at-mid-chunk" }}]
"""

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

ASKED: Any = {
    "model": "mixed",
    "messages": [{"role": "user", "content": "Where does the red boat sleep?"}],
    "rag_params": {"table_id": "sea"},
    "temperature": 0.5,
}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(
    upstream: ScriptedUpstream, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    home = tmp_path_factory.mktemp("tracing")
    asyncio.run(fill_table(home / "knowledge"))
    file = home / "antiphon.toml"
    file.write_text(SETTINGS.format(url=upstream.url, collector=collector.url, content="false"))
    environment = {
        "ANTIPHON_HOME": str(home),
        "MISTRAL_API_KEY": "k",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-team=sea",
    }
    with serving("--config", str(file), threads=None, env=environment) as server:
        yield server


def ask(server: Server, body: Any, **headers: str) -> None:
    with server.client() as client:
        client.post("/v1/chat/completions", json=body, headers=headers).read()


def find_root(collector: Collector, request_id: str) -> ReceivedSpan:
    """Waits for the span of a request."""

    def find() -> list[ReceivedSpan]:
        spans = list(collector.spans)
        return [span for span in spans if span.attributes.get("antiphon.request_id") == request_id]

    wait_until(find)
    return find()[0]


def test_a_trace_shows_search_attempts_and_child_call(
    gateway: Server, collector: Collector, upstream: ScriptedUpstream
) -> None:
    ask(gateway, {**ASKED, "model": "tried"}, traceparent=CALLER, **{"x-request-id": "whole"})
    root = find_root(collector, "whole")
    assert (root.name, root.kind) == ("POST /v1/chat/completions", "server")
    assert (root.trace, root.parent) == tuple(CALLER.split("-")[1:3])
    assert root.attributes["http.response.status_code"] == 200
    (chat,) = collector.children(root)
    assert (chat.name, chat.kind, chat.failed) == ("chat tried", "client", False)
    assert chat.attributes["gen_ai.request.temperature"] == 0.5
    assert chat.attributes["gen_ai.usage.output_tokens"] > 0
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    search, last = collector.children(chat)
    assert search.name == "retrieval"
    assert search.attributes["gen_ai.data_source.id"] == "sea"
    assert search.attributes["antiphon.retrieval.chunks"] == 0  # the vendor's words are in no chunk
    (query,) = collector.children(search)
    assert query.name == "chat tried"  # the model wrote the query
    attempts = [*collector.children(query), last]
    assert [(each.name, each.kind, each.failed) for each in attempts] == [
        ("attempt first/fake-503-after-600", "client", True),
        ("attempt second/fake", "client", False),
        ("attempt second/fake", "client", False),  # the first route rests
    ]
    assert attempts[0].attributes["error.type"] == "provider_unavailable"
    assert attempts[0].attributes["gen_ai.provider.name"] == "mistral_ai"
    assert last.attributes["server.address"] == "127.0.0.1"
    sent = upstream.requests[-1].headers["traceparent"]
    assert sent == f"00-{root.trace}-{last.id}-01"
    assert collector.resource["service.name"] == "antiphon"
    assert collector.headers["x-team"] == "sea"


def test_a_broken_stream_is_a_failed_span(
    gateway: Server, collector: Collector, upstream: ScriptedUpstream
) -> None:
    body, shown = {**ASKED, "model": "broken", "stream": True, "rag_params": None}, threading.Event()
    upstream.has_shown = lambda _: shown.is_set()
    try:
        with (
            gateway.client() as client,
            client.stream(
                "POST", "/v1/chat/completions", json=body, headers={"x-request-id": "cut"}
            ) as reply,
        ):
            for _ in reply.iter_lines():
                shown.set()  # the vendor breaks the stream when its begin has arrived
    finally:
        upstream.has_shown = None
    root = find_root(collector, "cut")
    (chat,) = collector.children(root)
    assert root.failed
    assert chat.failed
    assert root.attributes["error.type"] == chat.attributes["error.type"] == "provider_stream_broken"
    assert chat.attributes["gen_ai.request.stream"] is True


def test_a_refused_request_is_no_failed_span(gateway: Server, collector: Collector) -> None:
    ask(gateway, {**ASKED, "model": "nobody"}, **{"x-request-id": "refused"})
    root = find_root(collector, "refused")
    assert not root.failed
    assert root.attributes["error.type"] == "model_not_found"
    assert root.attributes["http.response.status_code"] == 404


def test_spans_have_no_texts_unless_asked(gateway: Server, collector: Collector) -> None:
    ask(gateway, {**ASKED, "stop": ["gull"]}, **{"x-request-id": "silent"})
    find_root(collector, "silent")
    shown = json.dumps([span.attributes for span in collector.spans])
    assert "boat" not in shown and "gull" not in shown


def test_a_long_name_of_no_table_is_cut(gateway: Server, collector: Collector) -> None:
    ask(gateway, {**ASKED, "rag_params": {"table_id": "t" * 100_000}}, **{"x-request-id": "long"})
    (chat,) = collector.children(find_root(collector, "long"))
    (search,) = collector.children(chat)
    assert search.attributes["gen_ai.data_source.id"] == "t" * 200


def test_metrics_of_generations_arrive(gateway: Server, collector: Collector) -> None:
    ask(gateway, ASKED, **{"x-request-id": "measured"})
    wait_until(lambda: "gen_ai.server.time_to_first_token" in collector.metrics)
    wait_until(lambda: "gen_ai.client.operation.duration" in collector.metrics)
    wait_until(lambda: "gen_ai.client.token.usage" in collector.metrics)
    known = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI")}
    assert set(collector.metrics.copy()) <= known
    points = list(collector.metrics["gen_ai.client.token.usage"])
    assert {point["gen_ai.token.type"] for point in points} == {"input", "output"}
    assert all(point["gen_ai.request.model"] in ("mixed", "tried", "broken") for point in points)


def test_every_name_is_one_of_the_conventions(gateway: Server, collector: Collector) -> None:
    ask(gateway, ASKED, **{"x-request-id": "named"})
    find_root(collector, "named")
    found = {name for span in collector.spans for name in span.attributes}
    assert {name for name in found if not name.startswith("antiphon.")} <= list_conventions()


def list_conventions() -> set[str]:
    """The names of all attributes that the conventions' package knows."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(conventions.__path__):
        values = vars(importlib.import_module(f"{conventions.__name__}.{module.name}"))
        names |= {value for name, value in values.items() if name.isupper() and isinstance(value, str)}
    return names


async def test_texts_are_shown_where_the_operator_says_so(upstream: ScriptedUpstream, tmp_path: Any) -> None:
    """And a collector that is gone delays neither a request nor the end."""
    await fill_table(tmp_path / "knowledge")
    file = tmp_path / "antiphon.toml"
    environment = {"ANTIPHON_HOME": str(tmp_path), "MISTRAL_API_KEY": "k", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    with ExitStack() as stack:
        with collecting() as collector:
            file.write_text(SETTINGS.format(url=upstream.url, collector=collector.url, content="true"))
            server = stack.enter_context(serving("--config", str(file), threads=None, env=environment))
            ask(
                server,
                {**ASKED, "rag_params": {"table_id": "sea", "search_query": "harbour"}, "stop": ["gull"]},
                **{"x-request-id": "spoken"},
            )
            root = find_root(collector, "spoken")
        with server.client() as client:
            reply = client.post("/v1/chat/completions", json={**ASKED, "rag_params": None})
            assert reply.status_code == 200
        assert server.stop() == 0
    (chat,) = collector.children(root)
    given = json.loads(chat.attributes["gen_ai.input.messages"])
    assert given[-1] == {
        "role": "user",
        "parts": [{"type": "text", "content": ASKED["messages"][0]["content"]}],
    }
    (answer,) = json.loads(chat.attributes["gen_ai.output.messages"])
    assert answer["finish_reason"] == "stop"
    assert answer["parts"][0]["content"]
    assert list(chat.attributes["gen_ai.request.stop_sequences"]) == ["gull"]
    search = collector.children(chat)[0]
    assert "harbour" in search.attributes["gen_ai.retrieval.documents"]
