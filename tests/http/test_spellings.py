"""Every route of a server with keys, spelt in every way that means another to somebody: none is reached
without a key, whether the document lists it or not."""

import pytest

from tests.support.http_server import PUBLIC, statuses, targets_of, thin_out
from tests.support.keyed_server import keyed

HOST = "host: localhost"
OVERRIDES = "x-http-method-override: GET\r\nx-method-override: GET\r\nx-http-method: GET"
REWRITES = "\r\n".join(
    f"x-{name}: /health" for name in ("original-url", "rewrite-url", "forwarded-uri", "forwarded-prefix")
)
FRIEND = "x-forwarded-for: 127.0.0.1\r\nuser-agent: kube-probe/1.30"
UNDOCUMENTED = (
    "/admin", "/admin/", "/admin/v1", "/admin/v2/keys", "/v1/admin/v1/keys", "/debug", "/debug/pprof",
    "/redoc", "/swagger", "/docs/openapi.json", "/openapi.yaml", "/v1/openapi.json", "/metrics/",
    "/v1/metrics", "/metrics.json", "/config", "/v1/config", "/config/update", "/health/../metrics",
    "/health/", "/health/live", "/health/liveliness", "/.env", "/server-status", "/static/../admin.key",
    "/key/generate", "/user/new", "/v1/files", "/v1/batches", "/v1/responses", "/props", "/slots",
    "/completion", "/infill", "/generate", "/sleep", "/reset_prefix_cache", "/v1/load_lora_adapter/",
    "/api/generate", "/api/tags", "/favicon.ico", "/robots.txt", "//", "/*",
)  # fmt: skip
"""What other servers have, and what people try."""


def spellings(method: str, path: str) -> dict[str, str]:
    """Requests for a path, by what is odd in each."""
    letter = path[1:2] or "v"
    return {
        "plain": f"{method} {path} HTTP/1.1\r\n{HOST}",
        "another host": f"{method} {path} HTTP/1.1\r\nhost: health",
        "an absolute target": f"{method} http://localhost{path} HTTP/1.1\r\n{HOST}",
        "an absolute target elsewhere": f"{method} http://x/health/..{path} HTTP/1.1\r\n{HOST}",
        "two slashes": f"{method} /{path} HTTP/1.1\r\n{HOST}",
        "dots": f"{method} /health/..{path} HTTP/1.1\r\n{HOST}",
        "escaped dots": f"{method} /health/%2e%2e{path} HTTP/1.1\r\n{HOST}",
        "doubly escaped dots": f"{method} /docs/%252e%252e{path} HTTP/1.1\r\n{HOST}",
        "escaped slashes": f"{method} /health%2f..{path.replace('/', '%2f')} HTTP/1.1\r\n{HOST}",
        "an escaped letter": f"{method} /%{ord(letter):02x}{path[2:]} HTTP/1.1\r\n{HOST}",
        "a trailing slash": f"{method} {path}/ HTTP/1.1\r\n{HOST}",
        "a path parameter": f"{method} {path};/health HTTP/1.1\r\n{HOST}",
        "a query": f"{method} {path}?/health HTTP/1.1\r\n{HOST}",
        "a NUL": f"{method} /health%00{path} HTTP/1.1\r\n{HOST}",
        "capitals": f"{method} {path.upper()} HTTP/1.1\r\n{HOST}",
        "another method": f"POST {path} HTTP/1.1\r\n{HOST}\r\n{OVERRIDES}\r\ncontent-length: 0",
        "a head": f"HEAD {path} HTTP/1.1\r\n{HOST}",
        "a method that nobody has": f"PROPFIND {path} HTTP/1.1\r\n{HOST}\r\n{OVERRIDES}",
        "rewritten addresses": f"{method} {path} HTTP/1.1\r\n{HOST}\r\n{REWRITES}",
        "a friend": f"{method} {path} HTTP/1.1\r\n{HOST}\r\n{FRIEND}",
        "HTTP/1.0": f"{method} {path} HTTP/1.0",
    }


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


async def targets(server):
    """Method and path of every route, of the table and of the document."""
    document = (await server.asked(server.admin, "/openapi.json")).json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    return {
        (method, path.replace("{", "").replace("}", ""))
        for method, path in described.union(targets_of(server.edge))
    }


STEPS = [10, pytest.param(1, marks=pytest.mark.soak)]
SHARES = 4
"""Each route gets the plain request and a fourth of the odd ones, unless every route is asked."""


def share(requests: dict[str, str], number: int, step: int) -> dict[str, str]:
    """The requests of the route of this number."""
    names = list(requests)
    shared = names if step == 1 else [names[0], *names[1:][number % SHARES :: SHARES]]
    return {name: requests[name] for name in shared}


@pytest.mark.parametrize("step", STEPS)
async def test_no_spelling_of_any_route_gets_around_the_keys(server, step):
    asked = [
        each for each in thin_out(await targets(server), step) if each[1] not in {*PUBLIC, "/console/name"}
    ]
    assert len(asked) > 60
    for number, (method, path) in enumerate(asked):
        found = await statuses(server, share(spellings(method, path), number, step))
        assert set(found.values()) == {401}, (method, path, found)


async def test_what_no_document_lists_is_as_closed(server):
    for path in UNDOCUMENTED:
        found = await statuses(
            server, {m: f"{m} {path} HTTP/1.1\r\n{HOST}" for m in ("GET", "POST", "OPTIONS")}
        )
        assert set(found.values()) == {401}, (path, found)


HOSTS = ("", f"{HOST}\r\nHost: x", "host: x/health?", "host: a/docs#", "host: localhost/health@x", "host: ")
"""None, two, and what is none."""


@pytest.mark.parametrize("step", STEPS)
async def test_what_names_no_host_or_two_is_refused_on_every_route(server, step):
    for number, (method, path) in enumerate(thin_out(await targets(server), step)):
        requests = {hosts: f"{method} {path} HTTP/1.1\r\n{hosts}".rstrip("\r\n") for hosts in HOSTS}
        found = await statuses(server, share(requests, number, step))
        assert set(found.values()) == {400}, (method, path, found)


async def test_with_a_key_each_path_spelling_means_only_that_path(server):
    """So that the tests above refuse something that works: the plain path answers, a host is no path, and
    what is spelt otherwise is another path, where there is nothing. A slash at the end lists models, too."""
    key = f"authorization: Bearer {server.admin}"
    said = {name: f"{text}\r\n{key}" for name, text in spellings("GET", "/v1/models").items()}
    found = await statuses(server, said)
    reached = {name for name, status in found.items() if status == 200}
    assert {"plain", "another host", "a query", "an escaped letter", "a head", "HTTP/1.0"} <= reached
    assert found["a trailing slash"] == 200
    assert {found[name] for name in ("dots", "escaped dots", "two slashes", "a NUL", "capitals")} == {404}
    assert found["another method"] == found["a method that nobody has"] == 405
