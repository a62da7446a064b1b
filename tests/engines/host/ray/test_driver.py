"""A token engine on replicas keeps the contract of token engines, and knows what its replicas do."""

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from functools import partial

import pytest

from antiphon.engines.base import PromptTokens, SequenceStarted, TextPiece, TokenRequest
from antiphon.engines.host.ray.config import ClusterAddress, Placement
from antiphon.engines.host.ray.node import probe_cluster, require_resources
from antiphon.errors import EngineDied, EngineLost, EngineUnavailable, LoadError, StartupError
from antiphon_testing import check_token_engine
from tests.support.docs import ROOT
from tests.support.ray_replicas import find_replicas
from tests.support.waiting import await_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # Ray's own modules warn, and leave files open
]

PATIENCE = 300.0
"""Seconds for what takes about ten on an idle machine."""

DOCS = ROOT / "docs" / "ray.md"

ENDLESS = "tests.engines.host.ray.engines:endless"


def asking(first: int = 1, length: int = 3) -> TokenRequest:
    return TokenRequest(PromptTokens(tuple(range(first, first + length))), 1_000_000)


async def test_the_conformance_kit_passes_through_ray_serve(driver) -> None:
    async with driver("kit", "tests.engines.host.ray.engines:brief") as engine:
        await check_token_engine(engine, patience=60)


async def test_a_closed_sequence_ends_on_its_replica(driver) -> None:
    async with driver("closing", ENDLESS) as engine:
        running = engine.generate(asking())
        assert isinstance(await anext(running), SequenceStarted)
        await anext(running)
        assert (await engine.info()).load.running == 1
        await running.aclose()
        async with asyncio.timeout(PATIENCE):
            while (await engine.info()).load.running:
                await asyncio.sleep(0.02)


async def test_a_killed_replica_ends_started_sequences_only(driver) -> None:
    async with driver("killed", ENDLESS) as engine:
        told: list[str] = []
        engine.watch_absence(told.append)
        running = [engine.generate(asking()) for _ in range(4)]
        for each in running:
            assert isinstance(await anext(each), SequenceStarted)
        queued = engine.generate(asking())
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(fail(queued))
            while (await engine.info()).load.queued == 0:
                await asyncio.sleep(0.02)
            (pid,) = find_replicas("antiphon-killed")
            os.kill(pid, signal.SIGKILL)
            assert isinstance(await waiting, EngineLost)
        for each in running:
            assert isinstance(await fail(each), EngineDied)
        await await_until(lambda: told[-1] == "" and len(told) >= 3, PATIENCE)
        assert told[0] == "" and "no replica of killed" in told[1]
        again = engine.generate(asking())
        assert isinstance(await anext(again), SequenceStarted)
        await again.aclose()


async def test_a_question_ends_when_no_replica_is_left(driver) -> None:
    async with driver("asked", ENDLESS) as engine:
        (pid,) = find_replicas("antiphon-asked")
        os.kill(pid, signal.SIGSTOP)  # the question stays open
        try:
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(refuse(engine))
                await asyncio.sleep(0.5)
                assert not asked.done()
                engine.table.set_replicas(())
                assert isinstance(await asked, EngineLost)
        finally:
            os.kill(pid, signal.SIGCONT)


async def refuse(engine) -> Exception | None:
    """What a question ends with."""
    try:
        await engine.tokenize([TextPiece("a")], True)
    except EngineUnavailable as error:
        return error
    return None


async def fail(events) -> Exception | None:
    """What the stream ends with."""
    try:
        async for _ in events:
            pass
    except (EngineDied, EngineUnavailable) as error:
        return error
    return None


async def test_equal_prompts_go_to_one_replica(driver) -> None:
    async with driver("pair", ENDLESS, replicas=2) as engine:
        await await_until(lambda: len(engine.table.names) == 2, PATIENCE)
        streams = []
        for prompt in (1, 1, 1, 200, 200, 200):
            streams.append(engine.generate(asking(prompt, 64)))
            await anext(streams[-1])
        homes = [engine.table.assigned[number] for number in sorted(engine.table.assigned)]
        assert len(set(homes[:3])) == 1 and len(set(homes[3:])) == 1
        for each in streams:
            await each.aclose()
        assert not engine.table.loads


async def test_replicas_stay_until_the_docs_command_removes_them(driver, cluster: ClusterAddress) -> None:
    async with driver("staying", ENDLESS):
        pass
    assert len(find_replicas("antiphon-staying")) == 1
    (line,) = (each for each in DOCS.read_text("utf-8").splitlines() if "serve.delete(" in each)
    code = shlex.split(line.replace("NAME", "staying"))[2]
    token = {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token}
    run = partial(subprocess.run, env=os.environ | token, timeout=PATIENCE, check=True)
    await asyncio.to_thread(run, [sys.executable, "-c", code])
    await await_until(lambda: not find_replicas("antiphon-staying"), PATIENCE)


async def test_a_model_that_cannot_load_is_told_with_its_reason(driver) -> None:
    with pytest.raises(LoadError, match="no_such_engine"):
        async with driver("missing", "no_such_engine:Engine"):
            pass


async def test_tokens_of_a_driver_are_those_of_its_engine(driver) -> None:
    async with driver("tokens", "tests.engines.host.ray.engines:brief") as engine:
        pieces = [TextPiece("Grüße 😀 \x00"), TextPiece("<|im_end|>", True)]
        tokens = await engine.tokenize(pieces, True)
        assert tokens == await engine.tokenize(pieces, True)
        assert max(tokens) < len((await engine.vocabulary()).pieces)


def test_a_cluster_is_examined_before_it_is_joined(cluster: ClusterAddress) -> None:
    probe_cluster(cluster)
    with pytest.raises(StartupError, match="does not accept this token"):
        probe_cluster(ClusterAddress(cluster.address, "x" * 32))
    with pytest.raises(StartupError, match="no Ray cluster answers"):
        probe_cluster(ClusterAddress("127.0.0.1:1", cluster.token))


def test_replicas_that_find_no_room_are_refused(cluster: ClusterAddress) -> None:
    require_resources(cluster, {"m": Placement(16.0)}, {})
    with pytest.raises(LoadError, match="which takes 17 CPU, 1 GPU; they offer 16 CPU"):
        require_resources(cluster, {"m": Placement(17.0, 1.0)}, {})
    two = {"m": Placement(8.0), "other": Placement(4.0)}
    require_resources(cluster, two, {"other": 2})
    told = r"\(1 of m, 3 of other\): they take 20 CPU, and all machines together have 16 CPU"
    with pytest.raises(LoadError, match=told):
        require_resources(cluster, two, {"other": 3})
