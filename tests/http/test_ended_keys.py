"""What runs with a key ends when somebody ends the key: streams with an error event, others with a 401."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.tenancy import ProjectRole
from antiphon_testing import ScriptedAnswer
from tests.support.freed import earlier, require_freed  # noqa: F401 - a fixture is found by its name
from tests.support.http_server import CHAT, HELLO, at_most, request_bytes
from tests.support.keyed_server import OPERATOR, ROOT, keyed
from tests.support.waiting import await_until

LONG = HELLO | {"max_tokens": 100_000}
STREAM = LONG | {"stream": True}
SENTENCE = (
    "the key of this request is not accepted any more: it was ended, its user disabled or taken out of the "
    "project, or the project archived"
)


@pytest.fixture
async def server(tmp_path):
    async with keyed(tmp_path, ScriptedAnswer(endless=True, pace=0.005)) as running:
        yield running


async def project(server, name="Research"):
    made = await server.asked(server.admin, f"{ROOT}/projects", {"name": name})
    return made.json()["id"]


async def person(server, project):
    """A member of a project, and an access token."""
    user = await server.tenants.add_user(OPERATOR, "Ann", None, "")
    await server.tenants.put_member(OPERATOR, project, user.id, ProjectRole.MEMBER)
    token = await server.asked(server.admin, f"{ROOT}/keys", {"kind": "access_token", "user": user.id})
    return user.id, token.json()


async def service(server, project):
    made = await server.asked(server.admin, f"{ROOT}/keys", {"kind": "service", "project": project})
    return made.json()


async def done(server, path, body=None, method=None):
    """A change that the operator makes."""
    answer = await server.asked(server.admin, f"{ROOT}/{path}", body, method=method)
    assert answer.status < 300, answer


@asynccontextmanager
async def running(server, key, path, body):
    """An answer that is being made; leaves when it has come."""
    before = len(server.engine.streams)
    async with at_most(20), asyncio.TaskGroup() as group:
        answer = group.create_task(server.asked(key["secret"], path, body))
        await await_until(lambda: len(server.engine.streams) != before)
        yield answer


WAYS = ("revoked", "rotated", "disabled", "removed", "archived")


async def begun(server, way):
    """A key, and what ends it."""
    one = await project(server)
    key = await service(server, one)
    user, token = await person(server, one)
    return {
        "revoked": (key, f"keys/{key['id']}", None, "DELETE"),
        "rotated": (key, f"keys/{key['id']}/rotate", {"overlap": 0}, "POST"),
        "disabled": (token, f"users/{user}", {"disabled": True}, "PATCH"),
        "removed": (token, f"projects/{one}/members/{user}", None, "DELETE"),
        "archived": (key, f"projects/{one}", {"archived": True}, "PATCH"),
    }[way]


@pytest.mark.parametrize("way", WAYS)
async def test_a_stream_ends_with_an_error_event(server, way):
    key, *change = await begun(server, way)
    async with running(server, key, CHAT, STREAM) as answer:
        await done(server, *change)
    *_, last = answer.result().events()
    assert answer.result().status == 200
    assert (last["error"]["code"], last["error"]["message"]) == ("invalid_api_key", SENTENCE)
    assert server.engine.streams[-1].over.is_set()


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_is_whole_is_a_401(server, way):
    key, *change = await begun(server, way)
    async with running(server, key, CHAT, LONG) as answer:
        await done(server, *change)
    answer = answer.result()
    assert (answer.status, answer.error["code"], answer.error["message"]) == (
        401,
        "invalid_api_key",
        SENTENCE,
    )
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert server.engine.streams[-1].over.is_set()


async def test_nothing_else_ends_what_runs(server):
    one = await project(server)
    key, other = await service(server, one), await service(server, one)
    user, token = await person(server, one)
    changes = [
        (f"keys/{key['id']}", {"note": "runs"}, "PATCH"),
        (f"keys/{key['id']}", {"expires_at": 4_000_000_000}, "PATCH"),
        (f"keys/{key['id']}/rotate", {"overlap": 3600}, "POST"),
        (f"keys/{other['id']}", None, "DELETE"),
        (f"users/{user}", {"name": "Anne"}, "PATCH"),
        (f"projects/{one}", {"name": "Renamed"}, "PATCH"),
        (f"projects/{await project(server, 'Another')}", {"archived": True}, "PATCH"),
    ]
    for each in (key, token):
        async with server.line() as line:
            headers = {"authorization": f"Bearer {each['secret']}"}
            await line.send(request_bytes(CHAT, STREAM, headers=headers))
            await line.until(b"Hello")
            for change in changes if each is key else changes[4:6]:
                await done(server, *change)
            for _ in range(100):
                assert b"error" not in await line.until(b"data: ")


NARROWER = {
    "models": ({"models": ["other*"]}, {"models": None}),
    "paths": ({"endpoints": ["/v1/models"]}, {"endpoints": None}),
    "role": ({"role": "viewer"}, {"role": "member"}),
}
"""Changes that take the right to generate, and the changes that give it back."""


@pytest.mark.parametrize("kind", NARROWER)
async def test_a_narrower_key_is_refused_at_its_next_request_while_one_runs(server, kind):
    one = await project(server)
    key, (user, token) = await service(server, one), await person(server, one)
    narrower, wider = NARROWER[kind]
    each, path = (token, f"projects/{one}/members/{user}") if kind == "role" else (key, f"keys/{key['id']}")
    method = "PUT" if kind == "role" else "PATCH"
    async with server.line() as line:
        headers = {"authorization": f"Bearer {each['secret']}"}
        await line.send(request_bytes(CHAT, STREAM, headers=headers))
        await line.until(b"Hello")
        assert (await server.asked(each["secret"], "/v1/models")).status == 200
        await done(server, path, narrower, method)
        for _ in range(2):
            assert (await server.asked(each["secret"], CHAT, LONG)).status == 403
        await done(server, path, wider, method)
        async with running(server, each, CHAT, LONG | {"max_tokens": 1}) as answer:
            pass
        assert answer.result().status == 200
        assert b"error" not in await line.until(b"data: ")


async def test_a_key_ended_while_the_body_arrives_creates_nothing(server):
    key, *change = await begun(server, "revoked")
    whole = request_bytes(CHAT, LONG, headers={"authorization": f"Bearer {key['secret']}"})
    async with server.line() as line:
        await line.send(whole[:-5])
        async with at_most(10):
            await await_until(lambda: server.edge.body_budget.byte_count)
        await done(server, *change)
        await line.send(whole[-5:])
        answer = await line.reply()
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    assert not server.engine.streams


@pytest.mark.parametrize("body", [LONG, STREAM])
async def test_nothing_of_what_was_ended_is_left_to_the_collector(server, earlier, body):  # noqa: F811
    key, *change = await begun(server, "revoked")
    async with running(server, key, CHAT, body):
        await done(server, *change)
    await require_freed(earlier)
