"""Web pages of other sites, and names that are not this machine's."""

import pytest

from tests.support.http_server import CHAT, HELLO, KEY, serving

BEARER = {"authorization": f"Bearer {KEY}"}


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "127.8.7.6", "[::1]", "[::1]:8000"]
)
async def test_without_a_key_loopback_names_are_served(served, host):
    assert (await served.ask("/v1/models", headers={"host": host})).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1",
     "localhost.", "[::]", "2130706433", "0x7f.1", "local%68ost", "[v1.a]"],
)  # fmt: skip
async def test_without_a_key_any_other_name_is_refused(served, host):
    for path in ("/v1/models", "/health", "/docs", "/nowhere"):
        reply = await served.ask(path, headers={"host": host})
        assert (reply.status, reply.error["code"]) == (403, "permission_denied")


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "hosts",
    [[], ["localhost"] * 2, ["localhost", "evil.example"], ["localhost@evil.example"], ["localhost:80:80"],
     ["::1"], ["[::1"], ["[1:2]"], ["localhost/x?"], ["a b"], ["localhost:x"], ["locélhost"], ["%zz"], [""]],
    ids=str,
)  # fmt: skip
async def test_a_request_without_one_valid_host_is_a_400(key, hosts):
    lines = "".join(f"host: {host}\r\n" for host in hosts)
    async with serving(key=key) as server:
        for version in ("1.0", "1.1") if hosts else ("1.1",):
            reply = await server.raw(f"GET /v1/models HTTP/{version}\r\n{lines}\r\n".encode("latin-1"))
            assert (reply.status, reply.error["code"]) == (400, "invalid_request")
            assert "Host" in reply.error["message"]


@pytest.mark.parametrize("key", [None, KEY])
async def test_a_client_of_http_1_0_needs_no_host(key):
    bearer = f"authorization: Bearer {KEY}\r\n".encode() if key else b""
    async with serving(key=key) as server:
        assert (await server.raw(b"GET /v1/models HTTP/1.0\r\n" + bearer + b"\r\n")).status == 200


async def test_further_names_may_be_allowed():
    async with serving(allowed_hosts=("Box.lan",)) as server:
        assert (await server.ask("/v1/models", headers={"host": "box.LAN:8000"})).status == 200
        assert (await server.ask("/v1/models", headers={"host": "evil.example"})).status == 403


async def test_with_a_key_the_name_does_not_matter():
    async with serving(key=KEY) as server:
        assert (await server.ask("/v1/models", headers=BEARER | {"host": "api.example"})).status == 200


CROSS_SITE = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": "http://localhost:3000"},
    {"origin": "http://localhost.evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    {"origin": "http://evil.example", "sec-fetch-mode": "navigate"},
]


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
async def test_another_site_is_refused_with_and_without_a_key(headers, key):
    async with serving(key=key) as server:
        for path, body in (("/v1/models", None), (CHAT, HELLO), ("/health", None)):
            reply = await server.ask(path, body, headers=BEARER | headers)
            assert (reply.status, reply.error["code"]) == (403, "permission_denied")
            assert "access-control-allow-origin" not in reply.headers
        assert server.engine.streams == []


@pytest.mark.parametrize("scheme", ["chrome-extension", "moz-extension", "file", "ws", "", "x-http"])
async def test_nothing_but_a_web_page_is_the_own_page(served, scheme):
    host = f"127.0.0.1:{served.port}"
    reply = await served.ask(CHAT, HELLO, headers={"host": host, "origin": f"{scheme}://{host}"})
    assert (reply.status, reply.error["code"]) == (403, "permission_denied")


async def test_the_own_page_may_ask(served):
    own = {"host": f"localhost:{served.port}", "origin": f"http://localhost:{served.port}"}
    assert (await served.ask(CHAT, HELLO, headers=own | {"sec-fetch-site": "same-origin"})).status == 200
    assert (
        await served.ask("/console/", headers={"sec-fetch-site": "none", "sec-fetch-mode": "navigate"})
    ).status == 200


async def test_a_link_from_elsewhere_may_be_followed_but_not_posted(served):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert (await served.ask("/console/", headers=headers)).status == 200
    assert (await served.ask(CHAT, HELLO, headers=headers)).status == 403


async def test_no_preflight_is_answered_unless_configured(served):
    headers = {"origin": "http://app.example", "access-control-request-method": "POST"}
    reply = await served.ask(CHAT, method="OPTIONS", headers=headers)
    assert reply.status == 403
    assert not any(name.startswith("access-control") for name in reply.headers)


async def test_a_configured_origin_may_ask_and_no_other():
    app, headers = "http://app.example", {"access-control-request-method": "POST"}
    async with serving(key=KEY, cors_origins=(app,)) as server:
        preflight = await server.ask(CHAT, method="OPTIONS", headers=headers | {"origin": app})
        assert (preflight.status, preflight.headers["access-control-allow-origin"]) == (200, app)
        asked = await server.ask(
            CHAT, HELLO, headers=BEARER | {"origin": app, "sec-fetch-site": "cross-site"}
        )
        assert (asked.status, asked.headers["access-control-allow-origin"]) == (200, app)
        assert "x-request-id" in asked.headers["access-control-expose-headers"]
        refused = await server.ask(CHAT, HELLO, headers={"origin": app})
        assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, app)
        other = await server.ask(CHAT, HELLO, headers=BEARER | {"origin": "http://evil.example"})
        assert other.status == 403 and "access-control-allow-origin" not in other.headers
        preflight = await server.ask(
            CHAT, method="OPTIONS", headers=headers | {"origin": "http://evil.example"}
        )
        assert preflight.status == 400 and "access-control-allow-origin" not in preflight.headers
