"""Adapters across the socket: added, removed, refused, and told again to a host that came back."""

import asyncio

import pytest

from antiphon.engines.base import EngineState
from antiphon.engines.host.client import host_engine
from antiphon.engines.host.server import listening
from antiphon.errors import InvalidValue
from antiphon.testing import Script, ScriptedTokenEngine
from tests.engines.host.linked import linked, short_directory
from tests.engines.host.scripted import SPEC, asking, brief

PATIENCE = 20.0


class Adapting(ScriptedTokenEngine):
    """Remembers what it is told of adapters."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.told: list[tuple[str, ...]] = []

    async def add_adapter(self, digest: str, path: str) -> None:
        if path.endswith("broken"):
            raise InvalidValue("the library refused it", param="adapter")
        self.told.append(("add", digest, path))

    async def remove_adapter(self, digest: str) -> None:
        self.told.append(("remove", digest))


async def test_adapters_are_added_and_removed_while_the_engine_runs() -> None:
    engine = Adapting()
    async with linked(engine) as link:
        await link.client.add_adapter("d1", "/a/one")
        await link.client.remove_adapter("d1")
        with pytest.raises(InvalidValue, match="library refused"):
            await link.client.add_adapter("d2", "/a/broken")
    assert engine.told == [("add", "d1", "/a/one"), ("remove", "d1")]


async def test_an_engine_without_adapters_refuses_them() -> None:
    async with linked(brief()) as link:
        with pytest.raises(InvalidValue, match="takes no adapters"):
            await link.client.add_adapter("d1", "/a/one")


async def test_a_host_that_came_back_is_told_of_its_adapters_before_anything_else() -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        first, second = Adapting(), Adapting()
        async with host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            async with listening(first, path):
                await client.load(SPEC)
                await client.add_adapter("d1", "/a/one")
                await client.add_adapter("d2", "/a/two")
                await client.remove_adapter("d2")
            while client.state() is not EngineState.RESTARTING:
                await asyncio.sleep(0.005)
            async with listening(second, path):
                await client.load(SPEC)
                assert [event async for event in client.generate(asking())]
        assert second.told == [("add", "d1", "/a/one")]
