"""Measures what stored responses add to a request: the read of its chain, and the write before its end.

python benchmarks/response_chain.py [--rounds 300] [--links 1 10 100] [--bytes 2000] [--postgresql URL]
    [--http]

A link has a question and an answer of `--bytes` bytes each. `memory` is what a server without keys has, and
`socket` the same from another process; `sqlite` and `postgresql` are a server with keys. Each round reads one
chain of every length in every place, by turns, so that all meet the same load. Prints medians with their
95 % intervals. A write waits for the disk. The bound of a read is one millisecond.

`--http` measures the time to the first token of a streamed request to a server with keys, whose engine takes
no time: with `previous_response_id`, and with the same items in the request, by turns. Printed are the
medians of the differences of the pairs: of the time, which includes waits for a busy machine, and of the CPU.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.assembly.__main__ import SWITCH_INTERVAL
from antiphon.domain.events import Event, Finished, FinishReason, Started, TextDelta, Usage
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.stored_responses import KeptResponse, StoredResponse
from antiphon.domain.tenancy import KeyKind
from antiphon.processes.coordinator.responses import SharedResponses
from antiphon.services.response_memory import ResponseMemory
from antiphon.store.base import ResponseBackend
from antiphon.store.database import Database
from antiphon.store.responses import SqlResponses
from benchmarks.side_by_side.report import compute_interval
from tests.processes.coordinator.processes import connected, coordinating
from tests.support.http_server import LooseEngine, request_bytes
from tests.support.keyed_server import Keyed, keyed

ROOM = 64 << 20
WRITES = 40


def build_response(name: str, previous: str | None, size: int) -> KeptResponse:
    """Builds a response that expires in an hour."""
    now = int(time.time())
    item = b'[{"type":"message","id":"msg_%b","text":"%b"}]'
    question, answer = (item % (f"{name}{ending}".encode(), b"t" * size) for ending in ("_in", ""))
    response = StoredResponse(f"resp_{name}", now, previous, question, answer, b"{}")
    return KeptResponse(response, "default", now + 3600, (f"msg_{name}_in", f"msg_{name}"))


async def fill(backend: ResponseBackend, lengths: list[int], size: int) -> None:
    """Keeps one chain of each length."""
    for length in lengths:
        previous = None
        for number in range(length):
            kept = build_response(f"{length}_{number}", previous, size)
            if not await backend.add(kept, int(time.time())):
                raise RuntimeError("a response was not kept")
            previous = kept.response.id


async def main(rounds: int, lengths: list[int], size: int, postgresql: str | None) -> None:
    print(f"{rounds} rounds, items of {size:,} bytes, Python {sys.version.split()[0]}", end=", ")
    print(f"load average {os.getloadavg()[0]:.1f}")
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        coordinator = await stack.enter_async_context(coordinating(f"{directory}/coordinator"))
        coordinator.responses = ResponseMemory(ROOM)
        client = await stack.enter_async_context(connected(f"{directory}/coordinator"))
        backends: dict[str, ResponseBackend] = {
            "memory": ResponseMemory(ROOM),
            "socket": SharedResponses(client),
        }
        urls = {"sqlite": f"sqlite:///{directory}/antiphon.db"}
        urls |= {} if postgresql is None else {"postgresql": postgresql}
        for place, url in urls.items():
            database = Database(url)
            database.prepare()
            stack.callback(database.close)
            backends[place] = responses = SqlResponses(database, ROOM)
            stack.callback(responses.close)
        for backend in backends.values():
            await fill(backend, lengths, size)
        reads: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for length in lengths:
                for place, backend in backends.items():
                    begin = time.perf_counter()
                    id_ = f"resp_{length}_{length - 1}"
                    chain = await backend.find_chain("default", id_, int(time.time()), ROOM)
                    reads.setdefault((place, length), []).append(1000 * (time.perf_counter() - begin))
                    if len(chain.arrays) != 2 * length:
                        raise RuntimeError("the chain is not whole")
        writes: dict[str, list[float]] = {}
        for number in range(WRITES):
            for place, backend in backends.items():
                begin = time.perf_counter()
                await backend.add(build_response(f"write_{number}", None, size), int(time.time()))
                writes.setdefault(place, []).append(1000 * (time.perf_counter() - begin))
    for (place, length), times in sorted(reads.items()):
        print(f"read  {place:10} {length:5} links  {describe(times)}")
    for place, times in writes.items():
        print(f"write {place:10}              {describe(times)}")


def build_items(name: str, size: int) -> tuple[dict[str, object], dict[str, object]]:
    """Builds a question and its answer."""
    asked = {"type": "input_text", "text": "q" * size}
    said = {"type": "output_text", "text": "a" * size, "annotations": [], "logprobs": []}
    message = {"type": "message", "status": "completed"}
    return (
        message | {"id": f"msg_{name}_in", "role": "user", "content": [asked]},
        message | {"id": f"msg_{name}", "role": "assistant", "content": [said]},
    )


async def generate_event() -> AsyncGenerator[Event, None]:
    """Generates one token at once, whatever the prompt is."""
    for event in (Started(1), TextDelta(0, "A"), Finished(0, FinishReason.STOP), Usage(1, 1)):
        yield event


async def measure_first_tokens(rounds: int, lengths: list[int], size: int) -> None:
    """Prints what a stored chain adds to the time to the first token."""
    with tempfile.TemporaryDirectory() as directory:
        async with keyed(Path(directory), LooseEngine(generate_event)) as server:
            key = await server.token(KeyKind.SERVICE, project="default")
            headers = {"authorization": f"Bearer {key}"}
            for length in lengths:
                items: list[dict[str, object]] = []
                previous = None
                for number in range(length):
                    pair = build_items(f"{length}_{number}", size)
                    items += pair
                    texts = [json.dumps([item]).encode() for item in pair]
                    id_ = f"resp_{length}_{number}"
                    response = StoredResponse(id_, int(time.time()), previous, texts[0], texts[1], b"{}")
                    if not await server.edge.responses.save(response, Actor(ActorKind.SERVICE_KEY, "k")):
                        raise RuntimeError("a response was not kept")
                    previous = id_
                question = {"type": "message", "role": "user", "content": "Go on."}
                shared = {"model": "m", "stream": True, "store": False}
                bodies = [
                    shared | {"previous_response_id": previous, "input": [question]},
                    shared | {"input": [*items, question]},
                ]
                requests = [request_bytes("/v1/responses", body, headers=headers) for body in bodies]
                differences: list[tuple[float, float]] = []
                for number in range(rounds):
                    # Each is first in turn: the first one pays for the end of the request before.
                    order = requests if number % 2 else requests[::-1]
                    costs = [await time_first_token(server, request) for request in order]
                    chained, whole = costs if number % 2 else costs[::-1]
                    differences.append((chained[0] - whole[0], chained[1] - whole[1]))
                waits, cpu = zip(*differences, strict=True)
                print(f"first token, {length:5} links: {describe(list(waits))} more than with all items")
                print(f"{'':24}  {describe(list(cpu))} of CPU")


async def time_first_token(server: Keyed, request: bytes) -> tuple[float, float]:
    """Returns the milliseconds from a request to its first token, and those of CPU of client and server."""
    async with server.line() as line:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        await line.send(request)
        await line.until(b"response.output_text.delta")
        return 1000 * (time.perf_counter() - begin), 1000 * (time.process_time() - begin_cpu)


def describe(times: list[float]) -> str:
    """Returns the median with the bounds of its 95 % interval."""
    middle, low, high = compute_interval(times)
    return f"{middle:7.3f} ms ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--links", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--bytes", type=int, default=2_000)
    parser.add_argument("--postgresql", help="the URL of an empty database")
    parser.add_argument("--http", action="store_true", help="measure the time to the first token")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL)
    if options.http:
        uvloop.run(measure_first_tokens(options.rounds, options.links, options.bytes))
    else:
        uvloop.run(main(options.rounds, options.links, options.bytes, options.postgresql))
