"""Thousands of requests of all kinds, half of them abandoned: nothing stays behind."""

import asyncio
import contextlib

import httpx2
import psutil
import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until

REQUESTS = 2000
AT_ONCE = 24


KINDS: tuple[dict[str, object], ...] = (
    {"prompt": "Once upon a time"},
    {"prompt": "The hen saw the fox near the old mill. " * 20 + "Then", "max_tokens": 16},  # a prefix to keep
    {"prompt": ["One", "Two words"], "n": 3, "temperature": 1, "presence_penalty": 1},
    {"prompt": "The fox and the hen", "echo": True, "logprobs": 3, "max_tokens": 8},
    {"prompt": "A", "repetition_penalty": 1.3, "mirostat_target": 2, "logit_bias": {"300": -100}},
    {"prompt": "Say", "guided_regex": "[a-z]{3,40}"},
    {"prompt": "The end", "best_of": 4, "n": 2, "temperature": 1},
    {"prompt": "Score this, please", "echo": True, "logprobs": 0, "max_tokens": 0},
)


async def one(client: httpx2.AsyncClient, number: int) -> None:
    """One of each kind by turns, buffered or streamed, to its end or left early."""
    stream, left = number % 2 == 0, number % 4 >= 2
    kind = KINDS[number // 4 % len(KINDS)]
    body = {"model": "cantor", "max_tokens": 64, "seed": number, "stream": stream} | kind
    if "best_of" in kind:
        body["stream"] = False
    with contextlib.suppress(httpx2.TimeoutException):
        timeout = 0.02 + number % 10 / 50 if left and not stream else 60
        async with client.stream("POST", "/v1/completions", json=body, timeout=timeout) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for _ in answer.aiter_bytes():
                if left:
                    break


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_thousands_of_mixed_requests_leave_nothing_behind(
    server: Server,
) -> None:
    processes = [*server.children("assembly"), *server.children("engines.host")]
    slots = asyncio.Semaphore(AT_ONCE)

    async def limited(client: httpx2.AsyncClient, number: int) -> None:
        async with slots:
            await one(client, number)

    async def many(count: int) -> None:
        async with httpx2.AsyncClient(base_url=server.url) as client, asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(limited(client, number))

    await many(300)  # what is made once is made by now
    before = [held(process) for process in processes]
    await many(REQUESTS)
    await asyncio.to_thread(wait_until, lambda: idle(server), 30, "every sequence is free")
    for process, (descriptors, memory) in zip(processes, before, strict=True):
        assert process.num_fds() <= descriptors + 2
        assert held(process)[1] < memory * 1.2 + 8_000_000


def held(process: psutil.Process) -> tuple[int, int]:
    """Open descriptors, and bytes of memory."""
    return process.num_fds(), process.memory_info().rss


def idle(server: Server) -> bool:
    load = server.load()
    return load.running == load.queued == load.cells_used == 0 and load.free_sequences == 16
