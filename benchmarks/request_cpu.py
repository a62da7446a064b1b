"""Measures the CPU time of one server process for a request and for a streamed chunk, with a scripted engine.

python benchmarks/request_cpu.py [--rounds 9] [--against TREE]

Several servers run at once and get the same number of requests in turn: Antiphon with one key in the settings
(`plain`); Antiphon with keys, a price, four limits and the ledger in SQLite (`managed`); and a bare Starlette
application that decodes the same body and answers with as many bytes (`bare`). `--against` adds the first two
from another checkout, if its modules have the same names. All use uvicorn, uvloop and httptools, and write
their log to /dev/null. CPU time is user and system time of all threads of the process; for `managed` it
includes the drain of the ledger.

The client is this process. It has 8 connections, with one request at a time on each. A buffered answer has 16
tokens that the engine returns at once. A stream has 200 chunks, each in a separate turn of the event loop, so
each is a separate write. Prints the median of the rounds, the fastest round and the ratios of the medians.
"""

import argparse
import asyncio
import json
import os
import platform
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.assembly.tenancy import TenancyParts
    from antiphon.domain.context import Clock
    from antiphon.domain.request import GenerationRequest
    from antiphon.engines.registry import ModelRegistry
    from antiphon.limits.base import Limiter
    from antiphon.settings.schema import Settings

ROOT = Path(__file__).parents[1]
PATH = "/v1/chat/completions"
KEY = "benchmark-key-0123456789"
KEY_FILE = "benchmark.key"

CONNECTIONS = 8
TOKENS = 16
"""Tokens of a buffered answer."""
CHUNKS = 200
"""The number of chunks in a stream."""
ANSWERS, STREAMS = 2400, 64
"""The numbers of requests that one round sends to one server."""
DRAIN_SECONDS = 1.5
"""Seconds for the drain of the ledger to move the last entries into the database."""

TEXT = " antiphon"
PROMPT = "Tell me a story about a fox and a hen, and let it end well. " * 5
PLENTY = 10**15
"""A limit that no benchmark reaches."""


# --- the servers --------------------------------------------------------------------------------------------


def serve_plain(listener: socket.socket, _: Path) -> None:
    """Serves Antiphon with one key in the settings."""
    import uvloop

    prepare_process()
    uvloop.run(run_plain(listener))


def serve_managed(listener: socket.socket, home: Path) -> None:
    """Serves Antiphon with keys, limits and ledger."""
    import uvloop

    prepare_process()
    uvloop.run(run_managed(listener, home))


def prepare_process() -> None:
    """Prepares the process as `antiphon serve` prepares its HTTP process."""
    from antiphon.assembly.__main__ import SWITCH_INTERVAL
    from antiphon.telemetry.logs import configure

    sys.setswitchinterval(SWITCH_INTERVAL)
    configure("info", "text")


def build_models() -> "ModelRegistry":
    """Builds the registry with the scripted model. It also works with older checkouts."""
    from antiphon.engines import registry
    from antiphon_testing import ScriptedAnswer, ScriptedEngine

    at_once, one_by_one = (
        ScriptedAnswer((TEXT,) * TOKENS, pace=None),
        ScriptedAnswer((TEXT,) * CHUNKS, pace=0.0),
    )

    def choose(request: "GenerationRequest") -> ScriptedAnswer:
        engine.streams.clear()  # removes the records of streams, which only tests need
        return at_once if request.output.max_tokens == TOKENS else one_by_one

    engine = ScriptedEngine(choose)
    create_model: Any = registry.Model
    if hasattr(registry, "ModelRoute"):
        return registry.ModelRegistry(
            (create_model("scripted", (registry.ModelRoute(engine, "scripted"),), 0),)
        )
    return registry.ModelRegistry((create_model("scripted", engine, 0, kind="scripted"),))


async def run_plain(listener: socket.socket) -> None:
    import msgspec

    from antiphon.assembly.app_state import build_app_state
    from antiphon.domain.context import SystemClock
    from antiphon.http.application import create_app
    from antiphon.http.server import serve
    from antiphon.settings.schema import Settings

    settings = Settings()
    settings = msgspec.structs.replace(settings, server=msgspec.structs.replace(settings.server, api_key=KEY))
    edge = build_app_state(settings, build_models(), SystemClock())
    await serve(create_app(edge), edge, listener)


async def run_managed(listener: socket.socket, home: Path) -> None:
    import msgspec

    from antiphon.assembly.app_state import build_app_state
    from antiphon.cli.bootstrap import bootstrap_store
    from antiphon.domain.context import SystemClock
    from antiphon.http.application import create_app
    from antiphon.http.server import serve
    from antiphon.settings.schema import Settings
    from antiphon.settings.tenancy import KeysSettings

    keys = KeysSettings(enabled=True, store=f"sqlite:///{home / 'antiphon.db'}")
    settings_with_keys = msgspec.structs.replace(Settings(), keys=keys)
    settings, clock = bootstrap_store(settings_with_keys, {"ANTIPHON_HOME": str(home)}, home), SystemClock()
    async with AsyncExitStack() as stack:
        tenancy, accounting = await enter_managed(stack, settings, clock, home)
        unfinished_file = home / "begun"
        unfinished_file.write_text(await add_limited_key(tenancy, accounting.limiter))
        unfinished_file.rename(home / KEY_FILE)
        edge = build_app_state(settings, build_models(), clock, tenancy, accounting)
        await serve(create_app(edge), edge, listener)
    tenancy.close()


async def enter_managed(
    stack: AsyncExitStack, settings: "Settings", clock: "Clock", home: Path
) -> tuple[Any, Any]:
    """Opens the coordinator, the keys and the accounting."""
    from antiphon.assembly.tenancy import build_tenancy, open_accounting
    from antiphon.processes.coordinator.client import connect_coordinator
    from antiphon.processes.coordinator.coordinator import open_coordinator, open_database

    database = open_database(settings)
    assert database is not None
    path = str(home / "coordinator.sock")
    coordinator = await stack.enter_async_context(
        connect_coordinator(path, clock, partial(open_coordinator, settings, path, clock, database))
    )
    tenancy = build_tenancy(settings, clock, coordinator, database)
    await tenancy.changes.load()
    return tenancy, await stack.enter_async_context(open_accounting(settings, tenancy, clock, coordinator))


async def add_limited_key(tenancy: "TenancyParts", limiter: "Limiter") -> str:
    """Creates a key with limits that are never reached, and a price. Returns the key's secret."""
    from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
    from antiphon.domain.limits import Measure, Subject, Window
    from antiphon.domain.tenancy import DEFAULT_PROJECT, KeyKind
    from antiphon.services.limits import LimitService
    from antiphon.services.policy import KeyRequest, LimitRequest
    from antiphon.services.prices import PriceRequest
    from antiphon.store.tenancy import SqlRules

    operator = Actor(ActorKind.ADMIN, "benchmark", rights=EVERY_RIGHT)
    created_key = await tenancy.tenants.add_key(operator, KeyRequest(KeyKind.SERVICE, DEFAULT_PROJECT))
    limit_service = LimitService(tenancy.changes, SqlRules(tenancy.database), limiter)
    for subject, target, measure, window in (
        (Subject.KEY, created_key.key.id, Measure.REQUESTS, Window.MINUTE),
        (Subject.KEY, created_key.key.id, Measure.TOKENS, Window.MINUTE),
        (Subject.KEY, created_key.key.id, Measure.COST, Window.MONTH),
        (Subject.PROJECT, DEFAULT_PROJECT, Measure.COST, Window.DAY),
    ):
        await limit_service.add(operator, LimitRequest(subject, target, measure, PLENTY, window))
    await tenancy.pricing.add(operator, PriceRequest("*", "USD", input=150_000_000, output=600_000_000))
    return str(created_key.secret)


def serve_bare(listener: socket.socket, _: Path) -> None:
    """Serves the framework alone. It decodes the body and answers with as many bytes and chunks."""
    import msgspec
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    decoder, encoder = msgspec.json.Decoder(), msgspec.json.Encoder()
    names = {"id": "x" * 41, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "scripted"}
    delta = {"index": 0, "delta": {"content": TEXT}, "logprobs": None, "finish_reason": None}
    chunk = b"data: %b\n\n" % encoder.encode(names | {"choices": [delta]})

    async def answer(request: Request) -> Response:
        body = decoder.decode(await request.body())
        if body.get("stream"):
            return StreamingResponse(write_chunks(), media_type="text/event-stream")
        answer_body = names | {"choices": [{"text": TEXT * TOKENS}], "usage": dict.fromkeys("abcd", 100)}
        return Response(encoder.encode(answer_body), media_type="application/json")

    async def write_chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            await asyncio.sleep(0)
            yield chunk

    app = Starlette(routes=[Route(PATH, answer, methods=["POST"])])
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


KINDS: dict[str, Callable[[socket.socket, Path], None]] = {
    "plain": serve_plain,
    "managed": serve_managed,
    "bare": serve_bare,
}


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    kind: str
    pid: int
    port: int
    home: Path

    @property
    def key(self) -> str:
        """A key that the server accepts."""
        return (self.home / KEY_FILE).read_text() if self.kind == "managed" else KEY

    def read_cpu_time(self) -> float:
        """Returns the CPU seconds of all threads. Linux derives the id of a process's clock from its pid."""
        return time.clock_gettime(~self.pid << 3 | 2)


@contextmanager
def run_server(name: str, kind: str, tree: Path) -> Iterator[Server]:
    """Runs a server process of a checkout, and waits until it is ready."""
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
    ):
        command = [
            sys.executable,
            __file__,
            "--serve",
            kind,
            "--home",
            directory,
            "--fd",
            str(listener.fileno()),
        ]
        env = os.environ | {"PYTHONPATH": str(tree / "src")}
        child = subprocess.Popen(command, pass_fds=[listener.fileno()], env=env, stderr=subprocess.DEVNULL)
        server = Server(name, kind, child.pid, listener.getsockname()[1], Path(directory))
        try:
            deadline = time.monotonic() + 60
            while kind == "managed" and not (server.home / KEY_FILE).exists():
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{name} did not start")
                time.sleep(0.05)
            send_requests(server, 1, stream=False)
            yield server
        finally:
            child.terminate()
            child.wait(30)


# --- the client ---------------------------------------------------------------------------------------------


def build_request(key: str, stream: bool) -> bytes:
    """Builds the bytes of one HTTP request."""
    fields = {"temperature": 0.7, "max_tokens": CHUNKS if stream else TOKENS, "stream": stream}
    messages = [{"role": "user", "content": PROMPT}]
    body = json.dumps({"model": "scripted", "messages": messages} | fields).encode()
    head = [f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}", "accept: */*"]
    head += [
        "content-type: application/json",
        f"content-length: {len(body)}",
        "user-agent: benchmark",
        "",
        "",
    ]
    return "\r\n".join(head).encode() + body


def send_requests(server: Server, request_count: int, stream: bool) -> None:
    """Sends requests on several connections at once. Raises if an answer is incomplete or not a 200."""
    request, unsent_count, waiting = build_request(server.key, stream), request_count, 0
    selector, connections = selectors.DefaultSelector(), dict[int, socket.socket]()
    for _ in range(min(CONNECTIONS, request_count)):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request)
        connections[connection.fileno()] = connection
        selector.register(connection, selectors.EVENT_READ, bytearray())
        unsent_count, waiting = unsent_count - 1, waiting + 1
    while waiting:
        for ready, _ in selector.select(60):
            received, ready_connection = ready.data, connections[ready.fd]
            data = ready_connection.recv(1 << 16)
            if not data:
                raise SystemExit(f"{server.name} closed a connection after {bytes(received)!r}")
            received += data
            if not is_complete(received, stream):
                continue
            if stream and received.count(b'"content":" antiphon"') != CHUNKS:
                raise SystemExit(f"{server.name} left out chunks: {bytes(received)!r}")
            received.clear()
            waiting -= 1
            if unsent_count:
                ready_connection.sendall(request)
                unsent_count, waiting = unsent_count - 1, waiting + 1
    for connection in connections.values():
        connection.close()
    selector.close()


def is_complete(received: bytearray, stream: bool) -> bool:
    """Whether an answer is complete. Raises if it is not a 200."""
    if not received.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"not a 200: {bytes(received)!r}")
    if stream:
        return received.endswith(b"0\r\n\r\n")
    head, separator, body = received.partition(b"\r\n\r\n")
    return bool(separator) and len(body) >= int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


def measure(server: Server, times: int, stream: bool) -> float:
    """Returns the CPU microseconds of one answer, or of one chunk."""
    before = server.read_cpu_time()
    send_requests(server, times, stream)
    if server.kind == "managed":
        time.sleep(DRAIN_SECONDS)
    return (server.read_cpu_time() - before) / (times * (CHUNKS if stream else 1)) * 1e6


# --- the comparison -----------------------------------------------------------------------------------------


def main(rounds: int, against: Path | None, scale: float) -> None:
    """Measures every server in each round. The first round warms up."""
    answers, streams = int(ANSWERS * scale), int(STREAMS * scale)
    results: dict[tuple[str, bool], list[float]] = {}
    with ExitStack() as stack:
        sides = [("plain", "plain", ROOT), ("managed", "managed", ROOT)]
        if against is not None:
            sides += [("plain, other", "plain", against), ("managed, other", "managed", against)]
        sides.append(("bare", "bare", ROOT))
        servers = [stack.enter_context(run_server(*side)) for side in sides]
        for round_number in range(rounds + 1):
            for stream in (False, True):
                for server in servers if round_number % 2 else servers[::-1]:
                    figure = measure(server, streams if stream else answers, stream)
                    if round_number:
                        results.setdefault((server.name, stream), []).append(figure)
    print(
        f"{rounds} rounds, {os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()},"
    )
    print(f"load average {os.getloadavg()[0]:.1f}; microseconds of CPU: median (quietest round)")
    for stream in (False, True):
        report("a streamed chunk" if stream else "a buffered answer", stream, results)


def report(title: str, stream: bool, results: dict[tuple[str, bool], list[float]]) -> None:
    """Prints the results of one load, and their ratios."""
    medians = {
        name: statistics.median(figures) for (name, kind), figures in results.items() if kind is stream
    }
    print(title)
    for name, value in medians.items():
        print(f"  {name:<18}{value:8.1f} ({min(results[name, stream]):.1f})")
    print(f"  managed adds {medians['managed'] - medians['plain']:.1f}")
    for name in ("plain", "managed"):
        if other := medians.get(f"{name}, other"):
            print(f"  {name}: {medians[name] / other:.2f} of the other tree")
    print(f"  plain: {medians['plain'] / medians['bare']:.1f} of bare Starlette")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, metavar="TREE", help="another checkout to compare with")
    parser.add_argument("--scale", type=float, default=1.0, help="of the requests in one round")
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        KINDS[options.serve](socket.socket(fileno=options.fd), options.home)
    else:
        main(options.rounds, options.against, options.scale)
