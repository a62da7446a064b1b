"""Health, models, token ids, the OpenAPI document, the page."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from antiphon.dialects.jamai.features import declare_features
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineUnavailable
from antiphon.http.state import AppState
from antiphon.ledger.base import LedgerState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import (
    CHAT,
    HELLO,
    PROMPT,
    TEXT,
    Served,
    at_most,
    request_bytes,
    serving,
    serving_edge,
    targets_of,
)


@pytest.fixture
async def two():
    """A server with two models, the second of which is restarting; the engine's name tells its model."""
    engines = {"a": ScriptedEngine(), "org/b": ScriptedEngine(state=EngineState.RESTARTING)}
    models = ModelRegistry(tuple(Model(name, (ModelRoute(engine),), 7) for name, engine in engines.items()))
    edge = AppState(Pipeline(models, Metrics(), 0.0), models, OpenAI(), ServerSettings())
    async with serving_edge(edge) as (port, connections):
        yield Served(port, engines["org/b"], edge, connections)


# --- health ---


async def test_health_is_the_process_and_readiness_is_the_engines(two):
    assert (await two.ask("/health")).json() == {"status": "ok"}
    reply = await two.ask("/health/ready")
    assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    assert reply.json() == {"status": "unavailable", "unavailable": {"org/b": "restarting"}}
    two.engine.engine_state = EngineState.READY
    reply = await two.ask("/health/ready")
    assert (reply.status, reply.json()) == (200, {"status": "ok"})
    two.engine.engine_state = EngineState.FAILED
    assert (await two.ask("/health/ready")).json()["unavailable"] == {"org/b": "failed"}
    assert (await two.ask("/health")).status == 200


@dataclass
class Written:
    """A ledger that stands as the test says."""

    state: LedgerState = LedgerState.WELL


async def test_a_waiting_ledger_is_reported_and_a_full_one_not_ready(two):
    two.engine.engine_state = EngineState.READY
    written = Written()
    async with serving_edge(replace(two.edge, ledger=written)) as (port, connections):
        served = Served(port, two.engine, two.edge, connections)
        assert (await served.ask("/health/ready")).json() == {"status": "ok"}
        written.state = LedgerState.WAITING
        reply = await served.ask("/health/ready")
        assert (reply.status, reply.json()) == (200, {"status": "ok", "ledger": "waiting"})
        assert 'antiphon_ledger{state="waiting"} 1' in (await served.ask("/metrics")).body.decode()
        written.state = LedgerState.FULL
        reply = await served.ask("/health/ready")
        assert (reply.status, reply.json()) == (503, {"status": "unavailable", "ledger": "full"})
        assert (await served.ask("/health")).json() == {"status": "ok"}


async def test_a_model_without_its_engine_is_a_503_and_others_answer(two):
    away = await two.ask(CHAT, HELLO | {"model": "org/b"})
    assert (away.status, away.error["code"], away.headers["retry-after"]) == (503, "engine_unavailable", "1")
    assert (await two.ask(CHAT, HELLO | {"model": "a"})).status == 200


# --- models ---


async def test_models_are_listed_and_shown(two):
    listed = (await two.ask("/v1/models")).json()
    assert [(model["id"], model["state"]) for model in listed["data"]] == [
        ("a", "ready"),
        ("org/b", "restarting"),
    ]
    shown = (await two.ask("/v1/models/a")).json()
    assert (shown["id"], shown["profile"]["context_length"]) == ("a", 2048)


@pytest.mark.parametrize("path", ["/v1/models/org/b", "/v1/models/org%2Fb"])
async def test_a_model_name_with_a_slash_is_shown_without_its_engine(two, path):
    shown = (await two.ask(path)).json()
    assert (shown["id"], shown["state"], shown["profile"]) == ("org/b", "restarting", None)


@pytest.mark.parametrize(
    ("query", "names", "has_more"),
    [
        ("", ["a", "org/b"], False),
        ("?limit=1", ["a"], True),
        ("?limit=1&after_id=a", ["org/b"], False),
        ("?after_id=org/b", [], False),
        ("?limit=1&before_id=org/b", ["a"], False),
    ],
)
async def test_models_come_in_pages_for_clients_of_anthropic(two, query, names, has_more):
    page = (await two.ask(f"/v1/models{query}", headers={"anthropic-version": "2023-06-01"})).json()
    assert ([model["id"] for model in page["data"]], page["has_more"]) == (names, has_more)
    assert (page["first_id"], page["last_id"]) == ((names[0], names[-1]) if names else (None, None))
    models = {model["id"]: model["max_input_tokens"] for model in page["data"]}
    assert models.get("org/b") is None and models.get("a", 1)


async def test_an_unknown_model_is_a_404_that_names_those_there_are(two):
    for reply in (await two.ask("/v1/models/zzz"), await two.ask(CHAT, HELLO | {"model": "zzz"})):
        assert (reply.status, reply.error["code"], reply.error["param"]) == (404, "model_not_found", "model")
        assert "a, org/b" in reply.error["message"]


# --- token ids ---


async def test_tokens_go_there_and_back(served):
    there = (await served.ask("/tokenize", {"model": "m", "prompt": "hé"})).json()
    spelt = await served.ask("/tokenize", {"model": "m", "prompt": "hé", "return_token_strs": True})
    assert spelt.json() == there | {"token_strs": ["h", "bytes:\\xc3", "bytes:\\xa9"]}
    assert there == {"count": 3, "max_model_len": 2048, "tokens": [104, 195, 169]}
    assert (await served.ask("/detokenize", {"tokens": there["tokens"]})).json() == {"prompt": "hé"}
    messages = {"messages": HELLO["messages"]}
    assert (await served.ask("/tokenize", messages)).json()["tokens"] == [104, 105]


async def test_tokens_need_a_model_when_there_are_several(two):
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        reply = await two.ask(path, body)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (
            400,
            "missing_required_parameter",
            "model",
        )
        assert (await two.ask(path, body | {"model": "a"})).status == 200
        assert (await two.ask(path, body | {"model": "org/b"})).status == 503
        assert (await two.ask(path, body | {"model": "zzz"})).status == 404


async def test_a_token_outside_the_vocabulary_is_a_400(served):
    reply = await served.ask("/detokenize", {"tokens": [1, 256]})
    assert (reply.status, reply.error["code"]) == (400, "invalid_value")


async def test_an_engine_that_shows_no_tokens_says_so():
    class Mute:
        def __init__(self):
            scripted = ScriptedEngine()
            self.prepare, self.profile, self.state, self.aclose = (
                scripted.prepare,
                scripted.profile,
                scripted.state,
                scripted.aclose,
            )

    models = ModelRegistry((Model("m", (ModelRoute(Mute()),), 1),))
    edge = AppState(Pipeline(models, Metrics(), 0.0), models, OpenAI(), ServerSettings())
    async with serving_edge(edge) as (port, connections):
        reply = await Served(port, ScriptedEngine(), edge, connections).ask("/tokenize", {"prompt": "a"})
    assert (reply.status, reply.error["code"]) == (400, "unsupported_parameter")


async def test_a_client_that_leaves_while_tokenizing_ends_the_work():
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedEngine):
        async def encode(self, prompt, actor=LOCAL_ANONYMOUS):
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                ended.set()

    async with serving(Slow()) as server, server.line() as line:
        await line.send(request_bytes("/tokenize", {"prompt": "a"}))
        async with at_most(10):
            await begun.wait()
            line.drop()
            await ended.wait()


async def test_engine_errors_of_a_tokenizer_keep_their_status():
    class Away(ScriptedEngine):
        async def encode(self, prompt, actor=LOCAL_ANONYMOUS):
            raise EngineUnavailable("m is restarting")

    async with serving(Away()) as server:
        assert (await server.ask("/tokenize", {"prompt": "a"})).status == 503


# --- the document ---


async def test_the_document_lists_every_route_but_the_page(served):
    document = (await served.ask("/openapi.json")).json()
    unserved = {path.replace(":path", "") for each in declare_features() for path in each.paths}
    unserved.remove("/jamai/api/v2/projects")  # GET is served
    routes = {path for _, path in targets_of(served.edge)} - unserved
    assert document["paths"].keys() == {
        path for path in routes if not path.startswith(("/docs", "/console", "/openapi"))
    } - {"/", "/v1/responses/compact"}
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["summary"] and "200" in operation["responses"]


async def test_the_document_is_built_once(served, monkeypatch):
    built = (await served.ask("/openapi.json")).body
    monkeypatch.setattr("antiphon.http.openapi.build_document", lambda *_, **__: b"{}")
    assert (await served.ask("/openapi.json")).body == built


async def test_answers_are_what_the_document_promises(served):
    document = (await served.ask("/openapi.json")).json()

    def check(name, value):
        Draft202012Validator(
            {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        ).validate(value)

    def promised(path, method, status, media="application/json"):
        return document["paths"][path][method]["responses"][status]["content"][media]["schema"][
            "$ref"
        ].rpartition("/")[2]

    check(promised("/v1/models", "get", "200"), (await served.ask("/v1/models")).json())
    check(promised("/v1/models/{model}", "get", "200"), (await served.ask("/v1/models/m")).json())
    check(promised("/health/ready", "get", "200"), (await served.ask("/health/ready")).json())
    bodies: dict[str, Any] = {
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [97]},
        CHAT: HELLO,
        TEXT: PROMPT,
    }
    for path, body in bodies.items():
        reply = await served.ask(path, body)
        check(promised(path, "post", "200"), reply.json())
        refused = await served.ask(path, body | {"surprise": 1})
        check(promised(path, "post", "400"), refused.json())
    for path, body in ((CHAT, HELLO), (TEXT, PROMPT)):
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        events = (await served.ask(path, asked)).events()
        content = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
        told, done = content["itemSchema"]["properties"]["data"]["anyOf"]
        assert done == {"const": "[DONE]"} == {"const": events[-1]}
        chunk, error = (each["$ref"].rpartition("/")[2] for each in told["contentSchema"]["anyOf"])
        assert error == "ErrorEnvelope"
        for event in events[:-1]:
            check(chunk, event)


async def test_the_document_refuses_what_the_server_refuses(served):
    document = (await served.ask("/openapi.json")).json()
    schema = {"$ref": "#/components/schemas/ChatCompletionRequest", "components": document["components"]}
    validator = Draft202012Validator(schema)
    extras: list[dict[str, Any]] = [
        {},
        {"n": 128},
        {"n": 0},
        {"temperature": 2.1},
        {"stop": []},
        {"stop": ["a"] * 5},
        {"zzz": 1},
        {"top_k": -2},
    ]
    for more in extras:
        assert validator.is_valid(HELLO | more) == ((await served.ask(CHAT, HELLO | more)).status == 200), (
            more
        )
