"""What is not for every key: numbers, documents and the admin API of a server with keys, and what web pages
of other sites get of them."""

import pytest

from antiphon.domain.tenancy import Grant, KeyKind, ProjectRole
from tests.support.http_server import CHAT, HELLO, KEY, PUBLIC, statuses, targets_of
from tests.support.keyed_server import OPERATOR, ROOT, keyed

MARK = "bravo"
CROSS = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)
LISTS = (
    *("projects", "users", "keys", "limits", "prices", "audit", "usage", "usage/entries", "usage?format=csv"),
    *("usage/entries?format=csv", "requests?project=default", "projects/default", "projects/default/members"),
)
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "PATCH", "DELETE")


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path) as running:
        yield running


def targets(server):
    """Method and path of every route."""
    for method, path in targets_of(server.edge):
        yield method, path.replace("{", "").replace("}", "")


async def test_the_numbers_are_for_the_operator_alone(server):
    for role in ProjectRole:
        _, token = await server.person(role)
        assert (await server.asked(token, "/metrics")).status == 403
        head = f"HEAD /metrics HTTP/1.1\r\nhost: localhost\r\nx-api-key: {token}"
        assert await statuses(server, {"head": head}) == {"head": 403}
    service = await server.token(KeyKind.SERVICE, project="default", grant=Grant(None, ("/metrics",)))
    assert (await server.asked(service, "/metrics")).status == 403
    for token in (server.admin, KEY):
        assert (await server.asked(token, "/metrics")).status == 200


async def test_version_load_and_tokenizer_are_for_whoever_may_read(server):
    paths = ("/version", "/load", "/tokenizer_info", "/tokenizer_info?model=m")
    _, person = await server.person(ProjectRole.MEMBER)
    other = await server.token(KeyKind.SERVICE, project="default", grant=Grant(("other",), None))
    confined = await server.token(KeyKind.SERVICE, project="default", grant=Grant(None, ("/v1/*",)))
    for path in paths:
        for token in (server.admin, KEY, person):
            assert (await server.asked(token, path)).status == 200, path
        assert (await server.ask(path)).status == 401
        assert (await server.ask(f"{path.partition('?')[0]}?api_key={KEY}")).status == 401
        assert (await server.asked(confined, path)).status == 403
    assert (await server.asked(other, "/tokenizer_info?model=m")).status == 403
    assert (await server.asked(other, "/tokenizer_info")).status == 400


async def test_a_confined_operator_key_reads_and_changes_nothing_else(server):
    for patterns, fine, refused in (
        (("/metrics",), "/metrics", (f"{ROOT}/keys", "/v1/models", "/openapi.json")),
        (("/v1/*",), "/v1/models", (f"{ROOT}/keys", "/metrics", "/openapi.json")),
        (("/admin/*",), f"{ROOT}/keys", ("/metrics", "/v1/models")),
    ):
        token = await server.token(KeyKind.ADMIN, grant=Grant(None, patterns))
        assert (await server.asked(token, fine)).status == 200
        assert [(await server.asked(token, path)).status for path in refused] == [403] * len(refused)


async def test_public_pages_hold_nothing_of_the_server_whoever_asks(server):
    answers = {path: await server.ask(path) for path in PUBLIC}
    before = {path: (answer.status, answer.body) for path, answer in answers.items()}
    await server.tenants.add_project(OPERATOR, MARK, MARK)
    await server.token(KeyKind.SERVICE, project="default", note=MARK)
    assert (await server.asked(server.admin, CHAT, HELLO)).status == 200
    for path in PUBLIC:
        for headers in ({}, {"authorization": f"Bearer {server.admin}"}, {"x-api-key": "wrong"}):
            answer = await server.ask(path, headers=headers)
            assert (answer.status, answer.body) == before[path], path
            assert answer.status in (200, 307)
            assert "set-cookie" not in answer.headers
        for method in METHODS[2:]:
            assert (await server.ask(path, {} if method == "POST" else None, method=method)).status in (
                405,
                415,
            )
    assert MARK.encode() not in b"".join(body for _, body in before.values())


async def test_the_document_needs_a_key(server):
    for headers in ({}, {"x-api-key": "wrong"}):
        assert (await server.ask("/openapi.json", headers=headers)).status == 401
    viewer = (await server.person(ProjectRole.VIEWER))[1]
    shown = await server.asked(viewer, "/openapi.json")
    assert shown.status == 200 and MARK not in shown.body.decode()


async def test_no_other_site_gets_anything_of_any_route(server):
    """With a key, as a page that had stolen it would send it; and no preflight is answered."""
    for headers in CROSS:
        carried = headers | {"authorization": f"Bearer {server.admin}"}
        for method, path in targets(server):
            body: object = {} if method in ("POST", "PUT", "PATCH") else None
            answer = await server.ask(path, body, method=method, headers=carried)
            assert (answer.status, b"another origin" in answer.body) == (403, True), (method, path, headers)
            assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = {"origin": "http://evil.example", "access-control-request-method": "GET",
             "access-control-request-headers": "authorization"}  # fmt: skip
    for _, path in targets(server):
        answer = await server.ask(path, method="OPTIONS", headers=asked)
        assert answer.status == 403, path
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert server.engine.streams == []


async def test_what_the_admin_api_answers_is_kept_by_no_cache(server):
    for path in LISTS:
        answer = await server.asked(server.admin, f"{ROOT}/{path}")
        assert (answer.status, answer.headers.get("cache-control")) == (200, "no-store"), path
        assert "set-cookie" not in answer.headers
