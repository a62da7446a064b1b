"""The HTTP path over a scripted engine: requests per second, CPU time per request and per streamed chunk.

python benchmarks/http_path.py [--rounds 20] [--seconds 2]

One server process and one load generator run at a time. The same load goes to a bare Starlette application
that decodes the same body with msgspec and answers with as many bytes. The ratio shows the cost that Antiphon
adds to its framework: authentication, strict decoding, the pipeline with its log record, the events,
cancellation.

A buffered answer has 16 tokens that the engine returns at once; the callers send as many requests as
possible. Each stream has 50 tokens a second, so every chunk is one wake-up and one write. CPU time is user
and system time of the server process. Prints median and worst of the rounds.
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

from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app
from antiphon.http.server import serve
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine

CALLERS = 16
"""The number of connections that request buffered answers."""

STREAMS = 64
"""The number of connections that read streams."""

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


def serve_antiphon(listener: socket.socket) -> None:
    """Serves Antiphon with a key and without a visible log. Its engine returns tokens at once or one by
    one."""
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
    state = AppState(pipeline, models, OpenAI(), ServerSettings(), (SettingsKey(KEY),))
    uvloop.run(serve(create_app(state), state, listener))


def serve_echo(listener: socket.socket) -> None:
    """Serves the framework alone. It decodes the body and answers with as many bytes and chunks."""
    decoder, encoder = msgspec.json.Decoder(), msgspec.json.Encoder()
    delta = {"index": 0, "delta": {"content": TEXT}, "logprobs": None, "finish_reason": None}
    names = {"id": "x" * 41, "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "scripted"}
    chunk = b"data: %b\n\n" % encoder.encode(names | {"choices": [delta]})

    async def answer_request(request: Request) -> Response:
        body = decoder.decode(await request.body())
        if body.get("stream"):
            return StreamingResponse(stream_chunks(), media_type="text/event-stream")
        answer = names | {"choices": [{"text": TEXT * TOKENS}], "usage": dict.fromkeys("abcd", 100)}
        return Response(encoder.encode(answer), media_type="application/json")

    async def stream_chunks() -> AsyncIterator[bytes]:
        for _ in range(CHUNKS):
            await asyncio.sleep(PACE)
            yield chunk

    app = Starlette(routes=[Route(PATH, answer_request, methods=["POST"])])
    config = uvicorn.Config(app, loop="uvloop", http="httptools", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])


SERVERS: dict[str, Callable[[socket.socket], None]] = {"antiphon": serve_antiphon, "echo": serve_echo}


@contextmanager
def run_server(name: str) -> Iterator[tuple[psutil.Process, int]]:
    """Runs a server process. Yields the process and its port."""
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


def build_request(stream: bool, model: str = "scripted", key: str = KEY) -> bytes:
    """Builds the bytes of one HTTP request."""
    fields = {"temperature": 0.7, "max_tokens": CHUNKS if stream else TOKENS, "stream": stream}
    messages = [{"role": "user", "content": PROMPT}]
    body = json.dumps({"model": model, "messages": messages} | fields).encode()
    head = [f"POST {PATH} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {key}", "accept: */*"]
    head += ["content-type: application/json", f"content-length: {len(body)}", "user-agent: bench", "", ""]
    return "\r\n".join(head).encode() + body


class Caller(asyncio.Protocol):
    """One connection that sends the next request after each answer. Raises if an answer is not a 200."""

    def __init__(self, request: bytes, stream: bool) -> None:
        self.count = 0
        """The number of answers, or of chunks in streams."""
        self.stop = False
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._stream = stream
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received = (self._received[-8:] if self._stream else self._received) + data
        self.count += data.count(b'"content"') if self._stream else 0
        if not self._is_complete():
            return
        self._received = b""
        self.count += not self._stream
        assert self._transport is not None
        if self.stop:
            self._transport.close()
            self.closed.set_result(None)
        else:
            self._transport.write(self._request)

    def _is_complete(self) -> bool:
        if self._stream:
            return self._received.endswith(b"0\r\n\r\n")
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return False
        assert head.startswith(b"HTTP/1.1 200"), self._received
        return len(body) >= int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])


@dataclass(frozen=True)
class Figure:
    """The result of one round."""

    rate: float
    """Answers or chunks per second."""
    cpu: float
    """Microseconds of the server's CPU time for each."""


async def measure(
    server: psutil.Process, port: int, stream: bool, seconds: float, model: str = "scripted", key: str = KEY
) -> Figure:
    """Runs one round of load."""
    loop, request = asyncio.get_running_loop(), build_request(stream, model, key)
    callers = [
        (await loop.create_connection(lambda: Caller(request, stream), "127.0.0.1", port))[1]
        for _ in range(STREAMS if stream else CALLERS)
    ]
    before, began = server.cpu_times(), time.perf_counter()
    await asyncio.sleep(seconds)
    after, elapsed = server.cpu_times(), time.perf_counter() - began
    count = sum(caller.count for caller in callers)
    for caller in callers:
        caller.stop = True
    await asyncio.gather(*(caller.closed for caller in callers))
    cpu_seconds = after.user + after.system - before.user - before.system
    return Figure(count / elapsed, cpu_seconds / count * 1e6)


async def wait_until_started(port: int, key: str = KEY) -> None:
    """Waits until the server answers. Its port is open from the beginning."""
    _, caller = await asyncio.get_running_loop().create_connection(
        lambda: Caller(build_request(False, key=key), False), "127.0.0.1", port
    )
    caller.stop = True
    async with asyncio.timeout(30):
        await caller.closed


async def main(rounds: int, seconds: float) -> None:
    """Runs every load against both servers in turn, so that other load on the machine affects both."""
    figures: dict[tuple[bool, str], list[Figure]] = {}
    with run_server("antiphon") as antiphon, run_server("echo") as echo:
        for _, port in (antiphon, echo):
            await wait_until_started(port)
        for round_number in range(rounds + 1):
            for stream in (False, True):
                for name, (server, port) in (("antiphon", antiphon), ("echo", echo)):
                    figure = await measure(server, port, stream, seconds)
                    if round_number:  # the first round warms up
                        figures.setdefault((stream, name), []).append(figure)
    print(f"{rounds} rounds of {seconds} s, {os.cpu_count()} {platform.machine()} cores,")
    print(f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f}")
    for stream in (False, True):
        print(
            f"{STREAMS} streams of {1 / PACE:.0f}/s"
            if stream
            else f"{TOKENS} tokens, buffered, {CALLERS} callers"
        )
        report(figures[stream, "antiphon"], figures[stream, "echo"], stream)


def report(antiphon: list[Figure], echo: list[Figure], stream: bool) -> None:
    """Prints the results of one load, and the ratio of the medians."""
    for name, figures in (("antiphon", antiphon), ("echo", echo)):
        if stream:
            print_line(f"{name}: CPU per chunk", [figure.cpu for figure in figures], "us", max)
        else:
            print_line(f"{name}: answers", [figure.rate for figure in figures], "/s", min)
            print_line(f"{name}: CPU per answer", [figure.cpu for figure in figures], "us", max)
    ratios = [
        antiphon_figure.cpu / echo_figure.cpu
        for antiphon_figure, echo_figure in zip(antiphon, echo, strict=True)
    ]
    print(f"  {'CPU time, antiphon to echo':<30}{statistics.median(ratios):10.1f}x")


def print_line(name: str, figures: list[float], unit: str, worst: Callable[[list[float]], float]) -> None:
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
