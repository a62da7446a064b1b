"""The HTTP path over a scripted engine: requests per second, CPU time per request and per streamed chunk.

    python benchmarks/http_path.py [--rounds 20] [--seconds 2]

One server process, one load generator beside it. The same load goes to a bare Starlette application that
decodes the same body with msgspec and answers with as many bytes, so the ratio says what Antiphon adds to its
own framework: authentication, strict decoding, the pipeline with its log record, the events, cancellation.

A buffered answer has 16 tokens that are there at once; as many are asked for as can be answered. Streams
run at 50 tokens a second each, so every chunk is a wake-up and a write of its own. CPU time is the server
process's own, user and system. Prints median and worst of the rounds.
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import psutil
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from antiphon.auth.keyring import ServiceKey
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.serve import serve
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon.testing import ScriptedAnswer, ScriptedEngine

CALLERS = 16
"""Connections that ask for buffered answers."""

STREAMS = 64
"""Connections that read streams."""

PACE = 0.02
"""Seconds between the chunks of one stream."""

TOKENS = 16
"""Tokens of one buffered answer."""

CHUNKS = 50
"""Text chunks of one stream."""

TEXT = " antiphon"
PROMPT = "Tell me a story about a fox and a hen, and let it end well. " * 5
PATH = "/v1/chat/completions"
KEY = "benchmark-key-0123456789"


# --- the servers --------------------------------------------------------------------------------------------


def antiphon_server(listener: socket.socket) -> None:
    """Antiphon with a key, logging to nowhere, over an engine whose tokens come at once or one by one."""
    logger = logging.getLogger("antiphon")
    logger.addHandler(logging.FileHandler(os.devnull))
    logger.setLevel(logging.INFO)
    at_once, one_by_one = (
        ScriptedAnswer((TEXT,) * TOKENS, pace=None),
        ScriptedAnswer((TEXT,) * CHUNKS, pace=PACE),
    )
    engine = ScriptedEngine(lambda request: at_once if request.output.max_tokens == TOKENS else one_by_one)
    models = ModelRegistry((Model("scripted", (ModelRoute(engine),), 0),))
    pipeline = Pipeline(models, Metrics(), 1.0)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings(), (ServiceKey(KEY),))
    uvloop.run(serve(create_app(edge), edge, listener))


def echo_server(listener: socket.socket) -> None:
    """The framework alone: decode, answer; for a stream, as many chunks of as many bytes."""
    decoder, encoder = msgspec.json.Decoder(), msgspec.json.Encoder()
    delta = {"index": 0, "delta": {"content": TEXT}, "logprobs": None, "finish_reason": None}
    names = {"id": "x" * 41, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "scripted"}
    chunk = b"data: %b\n\n" % encoder.encode(names | {"choices": [delta]})

    async def echo(request: Request) -> Response:
        body = decoder.decode(await request.body())
        if body.get("stream"):
            return StreamingResponse(chunks(), media_type="text/event-stream")
        answer = names | {"choices": [{"text": TEXT * TOKENS}], "usage": dict.fromkeys("abcd", 100)}
        return Response(encoder.encode(answer), media_type="application/json")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            await asyncio.sleep(PACE)
            yield chunk

    app = Starlette(routes=[Route(PATH, echo, methods=["POST"])])
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


SERVERS: dict[str, Callable[[socket.socket], None]] = {"antiphon": antiphon_server, "echo": echo_server}


@contextmanager
def running(name: str) -> Iterator[tuple[psutil.Process, int]]:
    """A server process and its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, __file__, "--serve", name, "--fd", str(listener.fileno())]
        child = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield psutil.Process(child.pid), port
    finally:
        child.terminate()
        child.wait(10)


# --- the load -----------------------------------------------------------------------------------------------


def request_bytes(stream: bool, model: str = "scripted", key: str = KEY) -> bytes:
    """One request as it goes over the wire."""
    asked = {"temperature": 0.7, "max_tokens": CHUNKS if stream else TOKENS, "stream": stream}
    messages = [{"role": "user", "content": PROMPT}]
    body = json.dumps({"model": model, "messages": messages} | asked).encode()
    head = [f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}", "accept: */*"]
    head += ["content-type: application/json", f"content-length: {len(body)}", "user-agent: bench", "", ""]
    return "\r\n".join(head).encode() + body


class Caller(asyncio.Protocol):
    """One connection that asks again as soon as it is answered. Raises when an answer is not a 200."""

    def __init__(self, question: bytes, stream: bool) -> None:
        self.done = 0
        """Answers, or chunks of streams."""
        self.stop = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._question = question
        self._stream = stream
        self._got = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._question)

    def data_received(self, data: bytes) -> None:
        self._got = (self._got[-8:] if self._stream else self._got) + data
        self.done += data.count(b'"content"') if self._stream else 0
        if not self._whole():
            return
        self._got = b""
        self.done += not self._stream
        assert self._transport is not None
        if self.stop:
            self._transport.close()
            self.over.set_result(None)
        else:
            self._transport.write(self._question)

    def _whole(self) -> bool:
        if self._stream:
            return self._got.endswith(b"0\r\n\r\n")
        head, mark, body = self._got.partition(b"\r\n\r\n")
        if not mark:
            return False
        assert head.startswith(b"HTTP/1.1 200"), self._got
        return len(body) >= int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


@dataclass(frozen=True)
class Figure:
    """One round."""

    rate: float
    """Answers or chunks per second."""
    cpu: float
    """Microseconds of the server's CPU time for each."""


async def measure(
    server: psutil.Process, port: int, stream: bool, seconds: float, model: str = "scripted", key: str = KEY
) -> Figure:
    """One round of load."""
    loop, question = asyncio.get_running_loop(), request_bytes(stream, model, key)
    callers = [
        (await loop.create_connection(lambda: Caller(question, stream), "127.0.0.1", port))[1]
        for _ in range(STREAMS if stream else CALLERS)
    ]
    before, began = server.cpu_times(), time.perf_counter()
    await asyncio.sleep(seconds)
    after, took = server.cpu_times(), time.perf_counter() - began
    done = sum(caller.done for caller in callers)
    for caller in callers:
        caller.stop = True
    await asyncio.gather(*(caller.over for caller in callers))
    spent = after.user + after.system - before.user - before.system
    return Figure(done / took, spent / done * 1e6)


async def started(port: int, key: str = KEY) -> None:
    """Waits until the server answers. Its port is open from the beginning."""
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: Caller(request_bytes(False, key=key), False), "127.0.0.1", port
    )
    caller.stop = True
    async with asyncio.timeout(30):
        await caller.over


async def main(rounds: int, seconds: float) -> None:
    """Every load against both servers, alternating, so that a noisy neighbour hits both."""
    found: dict[tuple[bool, str], list[Figure]] = {}
    with running("antiphon") as ours, running("echo") as bare:
        for _, port in (ours, bare):
            await started(port)
        for number in range(rounds + 1):
            for stream in (False, True):
                for name, (server, port) in (("antiphon", ours), ("echo", bare)):
                    figure = await measure(server, port, stream, seconds)
                    if number:  # the first round warms up
                        found.setdefault((stream, name), []).append(figure)
    print(f"{rounds} rounds of {seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for stream in (False, True):
        print(
            f"{STREAMS} streams of {1 / PACE:.0f}/s"
            if stream
            else f"{TOKENS} tokens, buffered, {CALLERS} callers"
        )
        report(found[stream, "antiphon"], found[stream, "echo"], stream)


def report(ours: list[Figure], bare: list[Figure], stream: bool) -> None:
    """Prints one load's figures, and the ratio of the medians."""
    for name, figures in (("antiphon", ours), ("echo", bare)):
        if stream:
            line(f"{name}: CPU per chunk", [figure.cpu for figure in figures], "us", max)
        else:
            line(f"{name}: answers", [figure.rate for figure in figures], "/s", min)
            line(f"{name}: CPU per answer", [figure.cpu for figure in figures], "us", max)
    ratios = [mine.cpu / other.cpu for mine, other in zip(ours, bare, strict=True)]
    print(f"  {'CPU time, antiphon to echo':<30}{statistics.median(ratios):10.1f}x")


def line(name: str, figures: list[float], unit: str, worst: Callable[[list[float]], float]) -> None:
    """Prints median and worst."""
    print(f"  {name:<30}{statistics.median(figures):10,.1f} {unit:<4} worst {worst(figures):10,.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        SERVERS[options.serve](socket.socket(fileno=options.fd))
    else:
        asyncio.run(main(options.rounds, options.seconds))
