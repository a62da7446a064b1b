"""The room for request bodies: no caller keeps it from the others."""

import asyncio
from contextlib import contextmanager

import pytest

from antiphon.domain.tenancy import KeyKind, ProjectRole
from antiphon.errors import Overloaded, ServerBusy
from antiphon.http.body_budget import BodyBudget, BodyCounter
from antiphon_testing import ScriptedAnswer
from tests.support.http_server import CHAT, HELLO, at_most
from tests.support.keyed_server import keyed

LONG = "wait"
"""A request whose answer takes long."""


@contextmanager
def account(bodies, most, actor=None):
    """What one request holds."""
    made = BodyCounter(bodies, most, actor)
    yield made
    made.release()


def padded(size):
    """A request of that size that asks for little."""
    body = b'{"model": "m", "messages": [{"role": "user", "content": "wait"}]}'
    return body + b" " * (size - len(body))


async def test_a_caller_that_fills_the_room_shuts_nobody_else_out(tmp_path):
    """Whatever it holds, and however long."""
    gate = asyncio.Event()
    async with keyed(tmp_path) as server:
        largest = server.edge.settings.max_body_bytes
        room = server.edge.settings.max_bodies_bytes
        server.engine.answer = lambda request: ScriptedAnswer(
            gate=gate if request.prompts[0].messages[0].text == LONG else None
        )
        mallory, ada = [await server.token(KeyKind.SERVICE, project="default") for _ in range(2)]
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(server.asked(mallory, CHAT, padded(largest))) for _ in range(8)]
            async with at_most(60):
                while not any(task.done() for task in held) or server.edge.body_budget.byte_count < room / 2:
                    await asyncio.sleep(0.002)
            refused = await server.asked(mallory, CHAT, padded(largest))
            assert (refused.status, refused.error["code"]) == (429, "overloaded")
            assert refused.headers["retry-after"]
            assert "more memory than they leave free" in refused.error["message"]
            assert server.edge.body_budget.byte_count <= room / 2
            assert (await server.asked(ada, CHAT, HELLO)).status == 200
            assert (await server.asked(ada, CHAT, padded(largest).replace(b"wait", b"now!"))).status == 200
            gate.set()
        assert {task.result().status for task in held} == {200, 429}
        assert server.edge.body_budget.byte_count == 0
        assert (await server.asked(mallory, CHAT, padded(largest))).status == 200


async def test_the_many_tokens_of_one_user_are_one_caller(tmp_path):
    gate = asyncio.Event()
    async with keyed(tmp_path) as server:
        largest, room = server.edge.settings.max_body_bytes, server.edge.settings.max_bodies_bytes
        server.engine.answer = lambda request: ScriptedAnswer(gate=gate)
        user, token = await server.person(ProjectRole.MEMBER)
        tokens = [token, *[await server.token(KeyKind.ACCESS_TOKEN, user=user) for _ in range(3)]]
        async with asyncio.TaskGroup() as group:
            asked = [server.asked(token, CHAT, padded(largest)) for token in tokens * 2]
            held = [group.create_task(each) for each in asked]
            async with at_most(60):
                while sum(task.done() for task in held) < 4 or server.edge.body_budget.byte_count < room / 2:
                    await asyncio.sleep(0.002)
            assert server.edge.body_budget.byte_count <= room / 2
            gate.set()
        assert {task.result().status for task in held} == {200, 429}


def test_one_body_can_fill_the_budget_and_others_share_the_rest():
    bodies = BodyBudget()
    with account(bodies, 100, "ada") as first:
        first.charge(60)
        first.charge(40)
        with account(bodies, 100, "bob") as second, pytest.raises(ServerBusy):
            second.charge(1)
    with account(bodies, 100, "ada") as first, account(bodies, 100, "ada") as more:
        first.charge(40)
        more.charge(10)
        with pytest.raises(Overloaded):
            more.charge(1)
        with account(bodies, 100, "bob") as second, account(bodies, 100) as nobody:
            second.charge(25)
            with pytest.raises(Overloaded):
                second.charge(1)
            nobody.charge(25)
    assert bodies.byte_count == bodies.count_actor_bytes("ada") == bodies.count_actor_bytes("bob") == 0
