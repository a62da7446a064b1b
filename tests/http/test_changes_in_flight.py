"""Every change of keys, limits, prices and models holds for the next request, and a request that runs keeps
what it began with."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.models import Aliases
from antiphon.domain.values import replace
from antiphon.engines.registry import ModelRoute
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.accounting import Books
from tests.support.http_server import CHAT, HELLO, at_most
from tests.support.keyed_server import ROOT, keyed
from tests.support.waiting import await_until

SERVICE = {"kind": "service", "project": "default"}
TOO_FEW = {"subject": "project", "target": "default", "measure": "tokens", "window": "day", "amount": 1}
ONE_PLACE = {"subject": "project", "target": "default", "measure": "concurrent", "amount": 1}
PRICE = {"models": "m", "currency": "USD", "input": "0.15", "output": "0.6"}


class Gateway:
    """A server with a key, whose first answer waits."""

    def __init__(self, server, books, key):
        self.server, self.books, self.key = server, books, key
        self.gate = asyncio.Event()
        self.server.engine.answer = ScriptedAnswer()

    async def change(self, path, body=None, method=None):
        reply = await self.server.asked(self.server.admin, f"{ROOT}/{path}", body, method=method)
        assert reply.status < 300, reply.body
        return reply.json() if reply.body else None

    async def ask(self, **fields):
        return await self.server.asked(self.key["secret"], CHAT, HELLO | fields)

    @asynccontextmanager
    async def hold(self, **fields):
        """A request that runs while the block does, and then succeeds. Its plan was used before."""
        assert (await self.ask(**fields)).status == 200
        assert len(self.server.edge.pipeline.plans) > 0
        engine = self.server.engine
        engine.answer, count = ScriptedAnswer(gate=self.gate), len(engine.streams)
        async with at_most(20), asyncio.TaskGroup() as group:
            answer = group.create_task(self.ask(**fields))
            await await_until(lambda: len(engine.streams) != count)
            engine.answer = ScriptedAnswer()
            yield answer
            assert not answer.done()
            self.gate.set()
        assert answer.result().status == 200, answer.result().body

    @property
    def entries(self):
        return list(self.books.ledger.entries.values())


@pytest.fixture
async def gateway(tmp_path):
    books = Books(prices=())
    async with keyed(tmp_path, ScriptedEngine(), accounting=books.accounting) as server:
        key = (await server.asked(server.admin, f"{ROOT}/keys", SERVICE)).json()
        yield Gateway(server, books, key)


async def test_the_models_of_a_key(gateway):
    async with gateway.hold():
        await gateway.change(f"keys/{gateway.key['id']}", {"models": ["x*"]}, "PATCH")
        assert (await gateway.ask()).status == 403
        await gateway.change(f"keys/{gateway.key['id']}", {"models": ["m"]}, "PATCH")
        assert (await gateway.ask()).status == 200


async def test_a_limit_that_is_added_changed_and_removed(gateway):
    async with gateway.hold():
        limit = await gateway.change("limits", TOO_FEW)
        assert (await gateway.ask()).error["code"] == "larger_than_limit"
        await gateway.change(f"limits/{limit['id']}", {"amount": 1_000_000}, "PATCH")
        assert (await gateway.ask()).status == 200
        await gateway.change(f"limits/{limit['id']}", {"amount": 1}, "PATCH")
        assert (await gateway.ask()).status != 200
        await gateway.change(f"limits/{limit['id']}", method="DELETE")
        assert (await gateway.ask()).status == 200


async def test_a_limit_that_a_running_request_takes(gateway):
    limit = await gateway.change("limits", ONE_PLACE)
    async with gateway.hold():
        assert (await gateway.ask()).status == 429
        await gateway.change(f"limits/{limit['id']}", {"amount": 2}, "PATCH")
        assert (await gateway.ask()).status == 200
        await gateway.change(f"limits/{limit['id']}", {"amount": 1}, "PATCH")
        assert (await gateway.ask()).status == 429
    assert (await gateway.ask()).status == 200


async def test_a_price(gateway):
    async with gateway.hold():
        price = await gateway.change("prices", PRICE)
        assert (await gateway.ask()).status == 200
        assert gateway.entries[-1].price == price["id"] and gateway.entries[-1].cost > 0
        await gateway.change(f"prices/{price['id']}", method="DELETE")
        assert (await gateway.ask()).status == 200
        assert gateway.entries[-1].price is None
    assert gateway.entries[-1].price is None and gateway.entries[-1].cost == 0


async def test_a_reload(gateway):
    models, other_engine = gateway.server.edge.models, ScriptedEngine(ScriptedAnswer(("other",)))
    async with gateway.hold():
        model = models.get("m")
        changed = replace(model, routes=(ModelRoute(other_engine, "other"),))
        models.replace((changed, replace(changed, name="n")), Aliases(), ())
        for name in ("m", "n"):
            assert (await gateway.ask(model=name)).json()["choices"][0]["message"]["content"] == "other"
            assert gateway.entries[-1].engine == "other"
        models.replace((replace(changed, name="n"),), Aliases(), ())
        assert (await gateway.ask()).status == 404
    assert gateway.entries[-1].engine == model.routes[0].kind != "other"


async def test_an_adapter(gateway):
    models = gateway.server.edge.models
    assert (await gateway.ask(model="a")).status == 404
    adapter = replace(models.get("m"), name="a", parent="m")
    models.put(adapter)
    async with gateway.hold(model="a"):
        models.remove(adapter)
        assert (await gateway.ask(model="a")).status == 404
        models.put(adapter)
        assert (await gateway.ask(model="a")).status == 200
