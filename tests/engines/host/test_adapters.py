"""Adapters across the socket: added, removed, refused, and told again to a host that came back."""

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path

import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import EngineState, LoadSpec, PromptTokens, Steps, TokenRequest
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.server import serve_engine
from antiphon.errors import EngineDied, InvalidValue
from antiphon.telemetry.logs import FIELDS, LOGGER
from antiphon_testing import Script, ScriptedTokenEngine
from benchmarks.make_adapter import write_adapter
from benchmarks.make_model import write_model
from tests.engines.random_models import SIZES
from tests.support.host_engines import SPEC, build_request
from tests.support.host_link import open_link, short_directory
from tests.support.host_process import started
from tests.support.waiting import await_until

PATIENCE = 60.0


ENDLESS = 32_768
"""Tokens of an answer that is not over before a test goes on."""


class Adapting(ScriptedTokenEngine):
    """Remembers what it is told of adapters."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.told: list[tuple[str, ...]] = []
        self.lost: set[str] = set()
        """Paths whose files are gone."""
        self.refused = 0

    async def add_adapter(self, digest: str, path: str) -> None:
        if path.endswith("broken") or path in self.lost:
            self.refused += 1
            raise InvalidValue("the library refused it", param="adapter")
        self.told.append(("add", digest, path))

    async def remove_adapter(self, digest: str) -> None:
        self.told.append(("remove", digest))


class Rigid(ScriptedTokenEngine):
    """Knows nothing of adapters."""

    add_adapter = None  # type: ignore[assignment]


async def test_adapters_are_added_and_removed_while_the_engine_runs() -> None:
    engine = Adapting()
    async with open_link(engine) as link:
        await link.client.add_adapter("d1", "/a/one")
        await link.client.remove_adapter("d1")
        with pytest.raises(InvalidValue, match="library refused"):
            await link.client.add_adapter("d2", "/a/broken")
    assert engine.told == [("add", "d1", "/a/one"), ("remove", "d1")]


async def test_an_engine_without_adapters_refuses_them() -> None:
    async with open_link(Rigid()) as link:
        with pytest.raises(InvalidValue, match="takes no adapters"):
            await link.client.add_adapter("d1", "/a/one")


async def test_a_restarted_host_is_told_of_its_adapters_first() -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        first, second = Adapting(), Adapting()
        async with open_host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            async with serve_engine(first, path):
                await client.load(SPEC)
                await client.add_adapter("d1", "/a/one")
                await client.add_adapter("d2", "/a/two")
                await client.remove_adapter("d2")
            await await_until(lambda: client.state() is EngineState.RESTARTING)
            async with serve_engine(second, path):
                await client.load(SPEC)
                assert [event async for event in client.generate(build_request())]
        assert second.told == [("add", "d1", "/a/one")]


async def test_a_refused_adapter_is_pending_until_it_is_added_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        second = Adapting()
        second.lost.add("/a/one")
        async with open_host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            async with serve_engine(Adapting(), path):
                await client.load(SPEC)
                await client.add_adapter("d1", "/a/one")
                await client.add_adapter("d2", "/a/two")
            await await_until(lambda: client.state() is EngineState.RESTARTING)
            async with serve_engine(second, path):
                await client.load(SPEC)
                assert (client.is_pending_reload("d1"), client.is_pending_reload("d2")) == (True, False)
                (lost,) = [getattr(line, FIELDS) for line in caplog.records if line.message == "adapter_lost"]
                assert lost == {"model": "x", "digest": "d1", "reason": "the library refused it"}
                second.lost.clear()
                await client.add_adapter("d1", "/a/one")
                assert not client.is_pending_reload("d1")


async def test_a_missing_adapter_is_loaded_again_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)

    def said(event: str) -> list[dict[str, object]]:
        return [getattr(line, FIELDS) for line in caplog.records if line.message == event]

    with short_directory() as place:
        path = str(place / "0.sock")
        second = Adapting()
        second.lost |= {"/a/one", "/a/two"}
        async with open_host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            async with serve_engine(Adapting(), path):
                await client.load(SPEC)
                await client.add_adapter("d1", "/a/one")
                await client.add_adapter("d2", "/a/two")
            await await_until(lambda: client.state() is EngineState.RESTARTING)
            async with serve_engine(second, path):
                await client.load(SPEC)
                await await_until(lambda: second.refused >= 6)  # twice after the first time
                assert client.is_pending_reload("d1") and client.is_pending_reload("d2")
                second.lost.remove("/a/one")
                await client.remove_adapter("d2")
                await await_until(lambda: not client.is_pending_reload("d1"))
                assert second.told == [("remove", "d2"), ("add", "d1", "/a/one")]
                assert not client.is_pending_reload("d2"), "who was unloaded is not given again"
        assert len(said("adapter_lost")) == 2, "each loss is said once"
        assert said("adapter_back") == [{"model": "x", "digest": "d1"}]


async def test_adapters_are_back_after_a_host_was_killed(tmp_path: Path) -> None:
    """Real processes, real weights: the same answers before and after, by each adapter its own."""
    model = write_model(tmp_path / "tiny.gguf", SIZES["tiny"], "f32")
    paths = [tmp_path / "a.lora", tmp_path / "b.lora"]
    digests = [write_adapter(path, model, 4, seed, 0.5) for seed, path in enumerate(paths)]
    spec = LoadSpec(str(model), context_length=ENDLESS, sequences=4, exact=True, threads=1)
    prompt = PromptTokens((1, *range(300, 330)))

    def wanted(adapter: str | None, tokens: int = 10) -> TokenRequest:
        return TokenRequest(prompt, tokens, Sampling(0.0, ignore_eos=True), adapter=adapter)

    with short_directory() as place:
        path = str(place / "0.sock")
        async with open_host_engine(path, "tiny") as client, asyncio.timeout(2 * PATIENCE):

            async def answers() -> list[list[int]]:
                said: list[list[int]] = []
                for adapter in (None, *digests):
                    steps = [
                        event async for event in client.generate(wanted(adapter)) if isinstance(event, Steps)
                    ]
                    said.append([token for step in steps for token in step.tokens])
                return said

            with started("create_llama_engine", load=spec, socket=path) as host:
                await client.load(spec)
                for digest, file in zip(digests, paths, strict=True):
                    await client.add_adapter(digest, str(file))
                before = await answers()
                assert len({tuple(said) for said in before}) == 3
                async with aclosing(client.generate(wanted(digests[0], ENDLESS))) as running:
                    await anext(running)
                    host.process.kill()
                    with pytest.raises(EngineDied):
                        assert [event async for event in running]
            with started("create_llama_engine", load=spec, socket=path):
                await await_until(lambda: client.state() is EngineState.READY)
                assert await answers() == before
