"""Every path asks for the key but a constant list, however the request is spelt."""

import json

import pytest

from antiphon.auth.base import REFUSAL
from antiphon.http.application import list_endpoints
from tests.support.http_server import CHAT, CONSOLE_FILES, HELLO, KEY, PUBLIC, request_bytes, serving


def bearer(key=KEY):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def keyed():
    async with serving(key=KEY) as server:
        yield server


async def test_every_path_of_the_document_asks_for_the_key_but_health(keyed):
    document = (await keyed.ask("/openapi.json", headers=bearer())).json()
    assert len(document["paths"]) >= 8
    for path, item in document["paths"].items():
        for method in item:
            reply = await keyed.ask(path.replace("{model}", "m"), HELLO if method == "post" else None)
            expected = 200 if path in ("/health", "/health/ready", "/jamai/api/health") else 401
            assert reply.status == expected, path
            assert (document["paths"][path][method].get("security") == []) == (expected == 200)


async def test_only_what_holds_no_data_is_public(keyed):
    assert {each.path for each in list_endpoints(keyed.edge) if each.right is None} == {
        *PUBLIC,
        CONSOLE_FILES,
    }
    for path in PUBLIC:
        assert (await keyed.ask(path)).status in (200, 307)


@pytest.mark.parametrize(
    "path",
    [
        "/openapi.json",
        "/v1/models/m",
        "/nowhere",
        "/index.html",
        "/metrics",
        "/health/x",
        "/docs/",
        "/docs/../v1/models",
    ],
)
async def test_unlisted_paths_are_protected_even_if_they_do_not_exist(keyed, path):
    for method in ("GET", "POST", "PUT", "OPTIONS", "PATCH"):
        reply = await keyed.ask(path, HELLO if method == "POST" else None, method=method)
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "headers",
    [
        bearer(),
        {"authorization": f"bearer  {KEY} "},
        {"x-api-key": KEY},
        {"api-key": KEY},
        {"x-api-key": KEY, "api-key": KEY, "authorization": f"Bearer {KEY}"},
        bearer() | {"x-api-key": ""},
        bearer() | {"api-key": " "},
        {"x-api-key": KEY, "api-key": "", "authorization": ""},
    ],
    ids=range(8),
)
async def test_every_carrier_is_taken(keyed, headers):
    reply = await keyed.ask(CHAT, HELLO, headers=headers)
    assert reply.status == 200
    assert keyed.engine.streams[0].context.actor.id == "service-key"


@pytest.mark.parametrize(
    "key",
    [
        "", "x", KEY[:-1], KEY + "x", KEY.upper(), "' OR (SELECT pg_sleep(8)) IS NOT NULL --", "x" * 60_000,
        "é" * 30, "\u00ff\u00fe", f"{KEY} {KEY}", f"Bearer {KEY}",
    ],
    ids=range(11),
)  # fmt: skip
async def test_any_other_key_is_refused_alike_on_every_carrier(keyed, key):
    for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key), ("api-key", key)):
        reply = await keyed.ask(CHAT, HELLO, headers={name: value})
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert reply.error["message"] == REFUSAL
    assert keyed.engine.streams == []


@pytest.mark.parametrize(
    "value", [f"Basic {KEY}", KEY, f"Token {KEY}", "Bearer", "Bearer ", f"Bearer\t{KEY}"]
)
async def test_another_scheme_is_no_key(keyed, value):
    assert (await keyed.ask("/v1/models", headers={"authorization": value})).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        bearer() | {"x-api-key": "other"},
        bearer("other") | {"x-api-key": KEY},
        {"x-api-key": KEY, "api-key": "other"},
        {"authorization": "Basic abc", "x-api-key": KEY},
    ],
    ids=range(4),
)
async def test_two_different_keys_are_a_400(keyed, headers):
    reply = await keyed.ask(CHAT, HELLO, headers=headers)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert keyed.engine.streams == []


async def test_two_different_keys_in_one_carrier_are_a_400(keyed):
    request = b"GET /v1/models HTTP/1.1\r\nhost: a\r\nx-api-key: %b\r\nx-api-key: b\r\n\r\n" % KEY.encode()
    assert (await keyed.raw(request)).status == 400


@pytest.mark.parametrize("name", ["x-api-key", "api-key", "authorization"])
async def test_an_empty_header_is_no_key(keyed, name):
    reply = await keyed.ask(CHAT, HELLO, headers={name: ""})
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("query", [f"?api_key={KEY}", f"?key={KEY}", f"?access_token={KEY}"])
async def test_a_key_in_the_address_is_no_carrier(keyed, query):
    assert (await keyed.ask(f"/v1/models{query}")).status == 401


HOST = b"host: localhost\r\n"
RAW = {
    "an absolute target": b"GET http://localhost/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an absolute target to health": b"GET http://x/health/../v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a double slash": b"GET //v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a double slash and dots": b"GET //health/../v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "dots": b"GET /health/../v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "escaped dots": b"GET /health/%2e%2e/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "doubly escaped dots": b"GET /health/%252e%252e/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "escaped slashes": b"GET /health%2f..%2fv1%2fmodels HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an escaped letter": b"GET /v1/%6dodels HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a trailing slash": b"GET /v1/models/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a trailing slash on health": b"GET /health/ HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a path parameter": b"GET /v1/models;/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a query that looks public": b"GET /v1/models?/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a fragment": b"GET /v1/models#/health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a NUL": b"GET /health%00/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "upper case": b"GET /HEALTH HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a method override": b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x-http-method-override: OPTIONS\r\n\r\n",
    "a rewritten address": b"GET /v1/models HTTP/1.1\r\n"
    + HOST
    + b"x-original-url: /health\r\nx-rewrite-url: /health\r\n\r\n",
    "a forwarded host": b"GET /v1/models HTTP/1.1\r\n"
    + HOST
    + b"x-forwarded-host: x/health?\r\nx-forwarded-prefix: /health\r\n\r\n",
    "a forwarded address": b"GET /v1/models HTTP/1.1\r\n" + HOST + b"x-forwarded-for: 127.0.0.1\r\n\r\n",
    "a friendly agent": b"GET /v1/models HTTP/1.1\r\n" + HOST + b"user-agent: kube-probe/1.30\r\n\r\n",
    "another method": b"OPTIONS /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "a head": b"HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "an upgrade": b"GET /v1/models HTTP/1.1\r\n"
    + HOST
    + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    "HTTP/1.0": b"GET /v1/models HTTP/1.0\r\n\r\n",
}
"""Ways to say one path and mean another; none of them reaches what it means without the key."""


@pytest.mark.parametrize("request_text", RAW.values(), ids=RAW)
async def test_no_spelling_gets_around_the_key(keyed, request_text):
    async with keyed.line() as line:
        await line.send(request_text)
        head = await line.until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401"), head


@pytest.mark.parametrize(
    "request_text",
    [
        b"GET /v1/models HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x/health?\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: a/health#\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: localhost/docs?x=\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: localhost/health@x\r\n\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/m\xffdels HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: a\r\n x: folded\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost : a\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /health HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\na",
        b"GET * HTTP/1.1\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=range(13),
)
async def test_what_is_hardly_http_is_a_400_or_a_401_in_the_envelope(keyed, request_text):
    reply = await keyed.raw(request_text)
    assert reply.status in (400, 401) and reply.error["message"]
    assert reply.headers["x-request-id"] and reply.headers["content-type"] == "application/json"


async def test_a_smuggled_second_request_needs_its_own_key(keyed):
    inner = b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n"
    outer = request_bytes("/v1/models", headers=bearer())
    async with keyed.line() as line:
        await line.send(outer + inner)
        assert [(await line.reply()).status, (await line.reply()).status] == [200, 401]


async def test_without_a_configured_key_a_sent_key_does_not_matter(served):
    for headers in (bearer("anything"), {"x-api-key": "a", "api-key": "b"}):
        reply = await served.ask(CHAT, HELLO, headers=headers)
        assert reply.status == 200
    assert served.engine.streams[0].context.actor.id == "anonymous"


async def test_the_key_is_asked_for_before_the_body_is_read(keyed):
    async with keyed.line() as line:
        await line.send(
            request_bytes(CHAT, headers={"content-length": "99999999", "content-type": "x"}, method="POST")
        )
        assert (await line.reply()).status == 401


async def test_the_document_says_how_to_send_the_key(keyed, served):
    document = json.loads((await keyed.ask("/openapi.json", headers=bearer())).body)
    schemes = document["components"]["securitySchemes"]
    assert schemes["bearer"] == {"type": "http", "scheme": "bearer"}
    assert schemes["header"] == {"type": "apiKey", "in": "header", "name": "x-api-key"}
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert "401" in document["paths"]["/v1/models"]["get"]["responses"]
    assert "401" not in document["paths"]["/health"]["get"]["responses"]
    assert "security" not in (await served.ask("/openapi.json")).json()
