"""The death of vLLM's engine core: streams say that they broke, and waiting requests survive."""

import asyncio
import time

import httpx2
import pytest

from antiphon.task_group import task_group
from tests.cluster.conftest import START_DEADLINE, Cluster

pytestmark = pytest.mark.cluster

ENDLESS = {"model": "cantor", "prompt": "Once", "max_tokens": 480, "ignore_eos": True, "temperature": 0}


async def read_stream(client: httpx2.AsyncClient, begun: asyncio.Event) -> str:
    """Everything that a stream says."""
    text = ""
    async with client.stream("POST", "/v1/completions", json=ENDLESS | {"stream": True}) as answer:
        async for part in answer.aiter_text():
            text += part
            begun.set()
    return text


async def test_streams_break_audibly_and_waiting_requests_survive(cluster: Cluster):
    async with (
        httpx2.AsyncClient(base_url=cluster.server.url, timeout=START_DEADLINE) as client,
        task_group() as group,
    ):
        begun = [asyncio.Event() for _ in range(4)]
        streams = [group.create_task(read_stream(client, each)) for each in begun]
        await asyncio.gather(*(each.wait() for each in begun))
        short = ENDLESS | {"max_tokens": 2}
        waiting = [group.create_task(client.post("/v1/completions", json=short)) for _ in range(3)]
        await asyncio.sleep(0.5)
        cluster.core().kill()
        died = time.monotonic()
        texts = await asyncio.gather(*streams)
        heard = time.monotonic() - died
        answers = await asyncio.gather(*waiting)
        whole = time.monotonic() - died
    print(f"streams ended after {heard:.2f} s; waiting requests were answered after {whole:.0f} s")
    assert all("engine_died" in text and "[DONE]" not in text for text in texts), texts
    assert [answer.status_code for answer in answers] == [200] * 3
    assert cluster.wait_until_ready() < START_DEADLINE


async def test_nothing_is_left_when_the_server_ends(cluster: Cluster):
    cluster.wait_until_ready()
    core, host = cluster.core(), cluster.host()
    assert cluster.server.stop() == 0
    for process in (core, host):
        process.wait(60)
