"""Several dialects in one server: each speaks below its prefix, in its errors too, and nowhere else."""

import asyncio
import json

import pytest

from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.base import Description, DialectDefaults, Endpoint, RequestBody
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder
from antiphon.dialects.common.endpoints import declare_generation
from antiphon.dialects.common.response_types import ChatChunkChoice
from antiphon.dialects.http_types import Request, Response
from antiphon.dialects.openai.dialect import OpenAI, OpenAIChatCompletions
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import EngineDied
from antiphon.http.application import list_endpoints
from antiphon.http.openapi import build_document
from antiphon.http.routing import Routes
from antiphon.http.state import AppState, is_under
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import HELLO, KEY, Served, request_bytes, serving_edge

PREFIX = "/flat"
FLAT_CHAT = f"{PREFIX}/chat"


class Flat(DialectDefaults):
    """A dialect whose errors are flat and know two statuses."""

    name = "flat"
    prefix = PREFIX
    endpoints = (declare_generation("flat", FLAT_CHAT, "Chat", OpenAIChatCompletions(report_unknown=False)),)
    """OpenAI's chat, somewhere else."""

    def get_status(self, error):
        return 400 if error.status < 500 else 500

    def encode_error(self, error, request=None):
        return json.dumps({"flat": error.code}).encode()

    def list_fields(self):
        return frozenset()

    def describe(self):
        return Description({"FlatError": {"type": "object"}}, error_schema="FlatError")


async def count_bytes(request: Request, _services: Services) -> Response:
    """Says how many bytes came, and in which project."""
    return Response(f"{len(request.body)} {request.path_params['name']}".encode(), media_type="text/plain")


class Upload(Flat):
    """The same with an endpoint of a kind that no product has."""

    endpoints = (
        Endpoint(
            method="PUT",
            path=f"{PREFIX}/files/{{name:path}}",
            aliases=("/upload/{name}",),
            handler=count_bytes,
            right=Right.GENERATE,
            body=RequestBody("multipart/form-data", limit=100),
        ),
    )


def edge_with(engine=None, key=None, others=None, **settings):
    models = ModelRegistry((Model("m", (ModelRoute(engine or ScriptedEngine()),), 7),))
    verifiers = (SettingsKey(key),) if key else ()
    pipeline = Pipeline(models, Metrics(), 0.0)
    return AppState(
        pipeline,
        models,
        OpenAI(),
        ServerSettings(**settings),
        verifiers,
        prefixed_dialects=(others or Flat(),),
    )


class CountingEncoder(OpenAIStreamEncoder[ChatChunkChoice]):
    """Numbers what it sends in a silence, and tells whether the answer has begun."""

    number, has_begun = 0, False

    def encode(self, event):
        self.has_begun = True
        return super().encode(event)

    def keep_alive(self):
        self.number += 1
        return f": {self.number} {self.has_begun}\n\n".encode()


class CountingChats(OpenAIChatCompletions):
    def create_encoder(self, meta, call):
        return CountingEncoder(ChatChunkBuilder(), meta, call)


class Counting(Flat):
    """The same with silences of its own."""

    endpoints = (declare_generation("flat", FLAT_CHAT, "Chat", CountingChats(report_unknown=False)),)


async def asked(edge, path, body=None, **how):
    async with serving_edge(edge) as (port, connections):
        return await Served(port, ScriptedEngine(), edge, connections).ask(path, body, **how)


@pytest.mark.parametrize(
    ("path", "body", "how", "expected"),
    [
        (FLAT_CHAT, HELLO | {"surprise": 1}, {}, (400, "unknown_parameter")),
        (FLAT_CHAT, b"{", {}, (400, "invalid_json")),
        (FLAT_CHAT, HELLO | {"model": "other"}, {}, (400, "model_not_found")),
        (FLAT_CHAT, HELLO, {"headers": {"content-type": "text/plain"}}, (400, "unsupported_media_type")),
        (FLAT_CHAT, HELLO, {"headers": {"origin": "http://evil.example"}}, (400, "permission_denied")),
        (FLAT_CHAT, b" " * 2000, {}, (400, "body_too_large")),
        (FLAT_CHAT, None, {}, (400, "method_not_allowed")),
        (f"{PREFIX}/nowhere", None, {}, (400, "route_not_found")),
        (PREFIX, None, {}, (400, "route_not_found")),
        (f"{PREFIX}/", None, {}, (400, "route_not_found")),
    ],
    ids=range(10),
)
async def test_below_its_prefix_every_refusal_is_the_dialects(path, body, how, expected):
    reply = await asked(edge_with(max_body_bytes=1024), path, body, **how)
    assert (reply.status, reply.json()) == (expected[0], {"flat": expected[1]})


async def test_so_is_a_missing_key_and_a_failed_engine():
    keyed = await asked(edge_with(key=KEY), FLAT_CHAT, HELLO)
    assert (keyed.status, keyed.json()) == (400, {"flat": "invalid_api_key"})
    failed = await asked(
        edge_with(ScriptedEngine(ScriptedAnswer(error=EngineDied("it died")))), FLAT_CHAT, HELLO
    )
    assert (failed.status, failed.json()) == (500, {"flat": "engine_died"})
    assert failed.headers["x-should-retry"] == "false"


async def test_too_large_headers_use_the_dialect_only_on_its_paths():
    edge = edge_with()
    large = request_bytes(FLAT_CHAT, HELLO, headers={"x": "y" * 70_000})
    async with serving_edge(edge) as (port, connections):
        served = Served(port, ScriptedEngine(), edge, connections)
        refused = await served.raw(large)
        elsewhere = await served.raw(large.replace(FLAT_CHAT.encode(), b"/elsewhere"))
    assert (refused.status, refused.json()) == (400, {"flat": "headers_too_large"})
    assert (elsewhere.status, elsewhere.error["code"]) == (431, "headers_too_large")


async def test_a_silence_is_filled_by_the_encoder_of_its_stream_which_knows_what_it_sent():
    gate = asyncio.Event()
    edge = edge_with(
        ScriptedEngine(ScriptedAnswer(gate=gate, pace=3600)),
        others=Counting(),
        keep_alive_interval=0.05,
    )
    async with serving_edge(edge) as (port, connections):
        served = Served(port, ScriptedEngine(), edge, connections)
        async with served.line() as line:
            await line.send(request_bytes(FLAT_CHAT, HELLO | {"stream": True}))
            await line.until(b": 1 False\n\n")
            await line.until(b": 2 False\n\n")
            gate.set()
            await line.until(b" True\n\n")


@pytest.mark.parametrize("path", ["/flatter", "/v1/flat", "/x", "/v1/nowhere", "//flat", "/FLAT"])
async def test_elsewhere_the_servers_own_speaks(path):
    reply = await asked(edge_with(), path)
    assert (reply.status, reply.error["code"]) == (404, "route_not_found")


async def test_an_endpoint_of_a_new_kind_needs_nothing_of_the_edge():
    edge, how = (
        edge_with(others=Upload()),
        {"method": "PUT", "headers": {"content-type": "multipart/form-data; boundary=x"}},
    )
    for path, name in ((f"{PREFIX}/files/a/b", "a/b"), ("/upload/c", "c")):
        reply = await asked(edge, path, b"x" * 100, **how)
        assert (reply.status, reply.body.decode()) == (200, f"100 {name}")
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    assert (await asked(edge, f"{PREFIX}/files/a", b"x" * 101, **how)).json() == {"flat": "body_too_large"}
    own = await asked(edge, "/upload/c", b"x" * 101, **how)
    assert own.error["message"] == "the body is larger than 100 bytes", "no setting is to blame"
    as_json = await asked(edge, f"{PREFIX}/files/a", {}, method="PUT")
    assert as_json.json() == {"flat": "unsupported_media_type"}
    assert (await asked(edge, f"{PREFIX}/files/a")).json() == {"flat": "method_not_allowed"}
    assert (await asked(edge_with(key=KEY, others=Upload()), "/upload/c", b"", **how)).status == 401


async def test_both_answer():
    for path in (FLAT_CHAT, "/v1/chat/completions"):
        assert (await asked(edge_with(), path, HELLO)).json()["object"] == "chat.completion"


async def test_the_document_has_each_dialects_paths_and_errors():
    paths = json.loads(build_document(edge_with().dialects, (), (), needs_key=False))["paths"]

    def errors(path):
        return {
            status: response["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for status, response in paths[path]["post"]["responses"].items()
            if status != "200"
        }

    assert errors(FLAT_CHAT) == {"400": "FlatError", "500": "FlatError"}
    assert errors("/v1/chat/completions")["503"] == "ErrorEnvelope"


def test_metrics_know_the_routes_of_all():
    edge = edge_with()
    routes = Routes(list_endpoints(edge))
    assert [routes.get_label(path) for path in (FLAT_CHAT, f"{PREFIX}/made-up")] == [FLAT_CHAT, "other"]


def test_a_prefix_ends_where_a_segment_does():
    assert [is_under(path, "/a/b") for path in ("/a/b", "/a/b/", "/a/b/c", "/a/bc", "/a", "")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


async def test_a_preflight_names_the_methods_that_routes_take():
    preflight = {"origin": "https://web.example", "access-control-request-method": "GET"}
    edge = edge_with(cors_origins=("https://web.example",))
    reply = await asked(edge, FLAT_CHAT, method="OPTIONS", headers=preflight)
    assert reply.headers["access-control-allow-methods"] == "GET, POST"
