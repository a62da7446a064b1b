"""Constraints made to cost much, sent over the wire beside a running stream, which does not notice them."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import httpx2
import pytest

from tests.support.hostile_constraints import GRAMMARS, REGEXES, SCHEMAS
from tests.support.server import Server

MOST = 1.0
"""Seconds between two events of the stream: ten times what is wanted."""
ROUNDS = 3
"""A gap that constraints make comes back in each round. One that the machine makes does not."""
ALONE = 3
"""Streams that are measured with nobody beside them, for what the machine does by itself."""
DEEP = 2000
BUSY = (503, "engine_busy")
"""A machine that has no time to find out whether a constraint is too much."""


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    """A function with an argument of that schema."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    parameters = {
        "type": "object",
        "properties": {"a": inner},
        "required": ["a"],
        "additionalProperties": False,
    }
    parameters |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


BY_FIELD: list[list[dict[str, Any]]] = [
    [{"guided_regex": each} for each in REGEXES.values()],
    [{"guided_json": each} for each in SCHEMAS.values()],
    [{"guided_grammar": each} for each in GRAMMARS.values()],
    [{"tools": [tool(each)], "tool_choice": "required"} for each in SCHEMAS.values()],
]


def build_large() -> Iterator[dict[str, Any]]:
    """They take 100 MB and a second, which only the test that sends them should."""
    yield {"guided_choice": [f"value {at}" for at in range(300_000)]}
    yield {"guided_json": '{"items":' * DEEP + "true" + "}" * DEEP}
    yield {"guided_json": {"enum": [f"value {at}" for at in range(1_000_000)]}}


def body(**more: Any) -> bytes:
    """A request; made before anything is measured."""
    message = {"role": "user", "content": "Tell me a story."}
    return json.dumps({"model": "cantor", "messages": [message]} | more).encode()


class Gaps:
    """Seconds between the events of streams."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self.largest = 0.0
        self.answers = 0
        """Those that came to their end."""

    async def stream(self) -> None:
        """One answer, to its end."""
        asked = body(stream=True, ignore_eos=True, max_tokens=200)
        before = None
        async with self._client.stream("POST", "/v1/chat/completions", content=asked) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                now = time.monotonic()
                self.largest = max(self.largest, now - before if before else 0.0)
                before = now
                self.answers += line == "data: [DONE]"

    async def until(self, over: asyncio.Event) -> None:
        """Answers without end."""
        while not over.is_set():
            await self.stream()


async def outcomes(client: httpx2.AsyncClient, bodies: Sequence[bytes]) -> list[tuple[int, Any]]:
    """Status and body of each, all asked for at once."""

    async def one(asked: bytes) -> tuple[int, Any]:
        answer = await client.post("/v1/chat/completions", content=asked)
        return answer.status_code, answer.json()

    return await asyncio.gather(*map(one, bodies))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 10])
async def test_a_running_stream_does_not_notice_hostile_constraints(every: int, server: Server) -> None:
    """One constraint of each field and two large ones; the soak sends all."""
    few = (each[at % every :: every] for at, each in enumerate(BY_FIELD))
    fields = [*chain.from_iterable(few), *islice(build_large(), 3 if every == 1 else 2)]
    bodies = [body(max_tokens=90, **field) for field in fields]
    for _ in range(ROUNDS):
        async with client_of(server) as streaming, client_of(server) as asking:
            alone, beside, over = Gaps(streaming), Gaps(streaming), asyncio.Event()
            for _ in range(ALONE):
                await alone.stream()
            async with asyncio.TaskGroup() as group:
                group.create_task(beside.until(over))
                found = await outcomes(asking, bodies)
                over.set()
            sound = await outcomes(asking, [body(guided_choice=["yes", "no"])])
        if beside.largest < max(MOST, 3 * alone.largest):
            break
    for field, (status, said) in zip(fields, found, strict=True):
        told = (str(field)[:80], status, str(said)[:300])
        assert status in (200, 400, 413) or (status, said["error"]["code"]) == BUSY, told
    assert sum(status != 200 for status, _ in found) > len(found) / 3
    assert sound[0][0] == 200 and sound[0][1]["choices"][0]["message"]["content"] in ("yes", "no")
    assert alone.answers == ALONE
    assert beside.answers >= 1, "the stream was cut"
    assert beside.largest < max(MOST, 3 * alone.largest), (beside.largest, alone.largest)


def client_of(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=300, headers={"content-type": "application/json"})
