"""Many streams at once over sixteen sequences: all finish, each as if it were alone, in bounded memory."""

import asyncio
import os
import signal
import tempfile
from dataclasses import dataclass

import httpx2
import openai
import psutil
import pytest

from tests.support.server import Server, serving, share_of
from tests.support.waiting import PATIENCE, await_until

STREAMS = 64
SEQUENCES = 16
MOST_MEMORY = 250 * 1024 * 1024
"""Bytes of proportional set size of all processes together."""

OPENINGS = (
    "Hello!",
    "What is Antiphon?",
    "Tell me a story about a fox.",
    "Count to ten.",
    "Spell the word tree.",
)


@dataclass(frozen=True)
class Asked:
    """One request that is its own, by its text and its seed."""

    text: str
    seed: int

    async def stream(self, client: openai.AsyncOpenAI, max_tokens: int) -> str:
        parts = await client.chat.completions.create(
            model="cantor",
            messages=[{"role": "user", "content": self.text}],
            temperature=0.8,
            seed=self.seed,
            max_tokens=max_tokens,
            stream=True,
        )
        said, reasons = "", []
        async for part in parts:
            said += part.choices[0].delta.content or ""
            reasons += [part.choices[0].finish_reason] if part.choices[0].finish_reason else []
        assert len(reasons) == 1
        return said


ASKED = [
    Asked(OPENINGS[number % len(OPENINGS)] + " And then?" * (number % 7), number) for number in range(STREAMS)
]


@pytest.mark.parametrize(("streams", "tokens"), [(24, 24), pytest.param(STREAMS, 48, marks=pytest.mark.soak)])
async def test_streams_over_16_sequences_equal_each_alone(server: Server, streams: int, tokens: int) -> None:
    """tests/engines/llama has 64 in each `make test`."""
    asked_for = ASKED[:streams]
    limits = httpx2.Limits(max_connections=streams)
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", http_client=openai.DefaultAsyncHttpxClient(limits=limits)
    ) as client:
        async with asyncio.TaskGroup() as group:
            together = [group.create_task(asked.stream(client, tokens)) for asked in asked_for]
        alone = [await asked.stream(client, tokens) for asked in asked_for[::4]]
    assert [task.result() for task in together][::4] == alone


@pytest.mark.parametrize("max_tokens", [16, pytest.param(48, marks=pytest.mark.soak)])
async def test_sixteen_streams_fit_the_memory_and_nothing_stays_behind(max_tokens: int) -> None:
    """Of a server that did nothing else: other tests send the shared one the largest texts."""

    def list_left() -> list[str]:
        return os.listdir(runtime)

    with (
        tempfile.TemporaryDirectory(
            prefix="antiphon-run-"
        ) as runtime,  # pytest's paths are too long for sockets
        serving(threads=None, env={"XDG_RUNTIME_DIR": runtime}) as server,
    ):
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        async with client, asyncio.TaskGroup() as group:
            for asked in ASKED[:SEQUENCES]:
                group.create_task(asked.stream(client, max_tokens))
        tree = [server.supervisor, *server.supervisor.children(recursive=True)]
        shares = {process.pid: share_of(process) for process in tree}
        assert sum(shares.values()) < MOST_MEMORY, shares
        assert len(tree) >= 3
        assert list_left()
        assert server.stop(signal.SIGTERM) == 0
        assert psutil.wait_procs(tree[1:], timeout=PATIENCE)[1] == []
        await await_until(lambda: not list_left(), PATIENCE, "the runtime directory is removed")
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health")
