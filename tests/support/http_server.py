"""A real server on a free loopback port in the test's event loop, with a scripted engine, and a raw
client."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from antiphon.assembly.dialects import ALIASES, create_dialects
from antiphon.auth.base import TokenVerifier
from antiphon.auth.keyring import SettingsKey
from antiphon.dialects.base import DialectOptions
from antiphon.dialects.jamai.features import FEATURES
from antiphon.domain.context import Context
from antiphon.domain.events import Event, EventGroup
from antiphon.domain.models import Aliases
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import RequestSize, TokenEngine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.http.application import create_app, list_endpoints
from antiphon.http.server import Server
from antiphon.http.state import AppState
from antiphon.pipeline.documents import DocumentTexts
from antiphon.pipeline.rules import Accounting
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from antiphon_testing.scripted_engine import ScriptedRequest
from tests.support.chat_templates import prove_here
from tests.support.waiting import await_until

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
KEY = "canary-key-4f1d0c8e55"
HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PROMPT: dict[str, Any] = {"model": "m", "prompt": "hi"}
PUBLIC = frozenset(
    {
        "/",
        "/health",
        "/health/ready",
        "/jamai/api/health",
        "/docs",
        "/console",
        "/console/",
        "/console/sign-in.json",
    }
)
"""Paths that need no key, because they contain no data."""

CONSOLE_FILES = "/console/{name:path}"
"""The path of the console's files, which need no key either."""

PUBLIC_TARGETS = PUBLIC | {"/console/{name}"}
"""The same as `targets_of` names them."""

MISSING_PARTS = tuple(f"/jamai/api/{path}" for path in FEATURES)
"""Beginnings of the paths of what JamAI Base has and this server has not."""

SERVED_TABLES = "/jamai/api/v2/gen_tables/knowledge"
"""Below one of them, the tables that this server has."""

TOO_LATE = 5.0
"""Maximum seconds of a refusal. It usually takes milliseconds, or tens of them for the largest bodies."""

PATIENCE = 10.0
"""Timeout of a raw exchange, in seconds as `at_most` counts them."""

PROCESS_PATIENCE = 100.0
"""The same of an exchange for which the server starts a process, which a busy machine lets wait."""

STEP = 0.05
"""Seconds between two steps of `at_most`."""


@dataclass(frozen=True)
class Reply:
    """An HTTP response with its whole body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json()["error"]

    def events(self) -> list[Any]:
        """Returns the parsed data lines of a stream; `[DONE]` stays a text."""
        lines = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


@asynccontextmanager
async def at_most(seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Raises TimeoutError after so many seconds in which the event loop ran. However long the machine stands
    still, that counts as one step: it does to the server in this loop what it does to the test."""
    loop, steps = asyncio.get_running_loop(), round(seconds / STEP)
    timer: asyncio.TimerHandle
    async with asyncio.timeout(None) as limit:

        def step() -> None:
            nonlocal steps, timer
            steps -= 1
            if steps > 0:
                timer = loop.call_later(STEP, step)
            else:
                limit.reschedule(loop.time())

        timer = loop.call_later(STEP, step)
        try:
            yield
        finally:
            timer.cancel()


class Line:
    """A connection that sends and receives bytes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, patience: float = PATIENCE
    ) -> None:
        self.reader = reader
        self.writer = writer
        self._patience = patience

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, mark: bytes) -> bytes:
        async with at_most(self._patience):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Reads until the server closes the connection."""
        async with at_most(self._patience):
            return await self.reader.read()

    async def reply(self) -> Reply:
        """Reads the next response."""
        head = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        status = int(head[0].split(" ")[1])
        if headers.get("transfer-encoding") == "chunked":
            return Reply(status, headers, await self._read_chunks())
        async with at_most(self._patience):
            return Reply(
                status, headers, await self.reader.readexactly(int(headers.get("content-length", 0)))
            )

    async def _read_chunks(self) -> bytes:
        body = b""
        while size := int(await self.until(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.until(b"\r\n")
        return body

    def drop(self) -> None:
        """Aborts the connection."""
        self.writer.transport.abort()


def request_bytes(
    path: str, body: Any = None, *, method: str | None = None, headers: Mapping[str, str | None] | None = None
) -> bytes:
    """Encodes a request with the usual headers; `headers` replace them, and None removes one."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    fields: dict[str, str | None] = {"host": "localhost"}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(data))}
    fields.update(headers or {})
    verb = method or ("GET" if body is None else "POST")
    lines = [
        f"{verb} {path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in fields.items() if value is not None),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


class LooseEngine(ScriptedEngine):
    """An engine that yields a test's events, each alone, even if they break the contract."""

    def __init__(self, events: Callable[[], AsyncGenerator[Event, None]]) -> None:
        super().__init__()
        self._create_events = events

    async def prepare(self, request: GenerationRequest, context: Context) -> ScriptedRequest:
        return ScriptedRequest(RequestSize(5, 1000), partial(self.stream, request))

    @asynccontextmanager
    async def stream(
        self, request: GenerationRequest, context: Context
    ) -> AsyncGenerator[AsyncIterator[EventGroup], None]:
        async with aclosing(self._create_events()) as events, aclosing(_group(events)) as groups:
            yield groups


async def _group(events: AsyncIterator[Event]) -> AsyncGenerator[EventGroup, None]:
    async for event in events:
        yield (event,)


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int
    engine: ScriptedEngine
    edge: AppState
    connections: set[Any]
    patience = PATIENCE
    """Seconds for each part of an answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def line(self) -> AsyncIterator[Line]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        try:
            yield Line(reader, writer, self.patience)
        finally:
            writer.transport.abort()

    async def ask(self, path: str, body: Any = None, **how: Any) -> Reply:
        """Sends a request on a new connection and returns the response."""
        async with self.line() as line:
            await line.send(request_bytes(path, body, **how))
            return await line.reply()

    async def raw(self, data: bytes) -> Reply:
        """Sends bytes unchanged on a new connection and returns the response."""
        async with self.line() as line:
            await line.send(data)
            return await line.reply()


class ProcessServed(Served):
    """A running server that starts processes for some requests."""

    patience = PROCESS_PATIENCE


@asynccontextmanager
async def serving(engine: ScriptedEngine | ScriptedAnswer | None = None, **how: Any) -> AsyncIterator[Served]:
    """Runs a server as `build_edge` makes it; it is aborted at the end of the context."""
    scripted = engine if isinstance(engine, ScriptedEngine) else ScriptedEngine(engine or ScriptedAnswer())
    edge = build_edge(scripted, **how)
    async with serving_edge(edge) as (port, connections):
        yield Served(port, scripted, edge, connections)


def build_edge(
    engine: ScriptedEngine, *, key: str | None = None, accounting: Accounting | None = None, **settings: Any
) -> AppState:
    """The parts of a server with one model `m`."""
    models = ModelRegistry((Model("m", (ModelRoute(engine),), 1_700_000_000),), Aliases(ALIASES))
    verifiers: tuple[TokenVerifier, ...] = (SettingsKey(key),) if key else ()
    server_settings = msgspec.structs.replace(ServerSettings(), **settings)
    metrics = Metrics()
    pipeline = Pipeline(models, metrics, restart_patience=0.0, accounting=accounting)
    dialect, *other_dialects = create_dialects(
        DialectOptions(
            server_settings.unknown_fields == "report",
            server_settings.schema_keywords == "strict",
            refuses_hosted=server_settings.hosted_tools == "refuse",
        )
    )
    return AppState(
        pipeline,
        models,
        dialect,
        server_settings,
        verifiers,
        metrics=metrics,
        prefixed_dialects=tuple(other_dialects),
    )


@asynccontextmanager
async def serving_tokens(
    documents: DocumentTexts | None = None, /, **engines: TokenEngine
) -> AsyncIterator[Served]:
    """Runs a server with token engines by model name; `Served.engine` is unused."""
    renderers = ((name, Renderer(engine, prove=prove_here)) for name, engine in engines.items())
    models = ModelRegistry(
        tuple(Model(name, (ModelRoute(engine),), 1_700_000_000) for name, engine in renderers)
    )
    pipeline = Pipeline(models, Metrics(), restart_patience=0.0, documents=documents)
    dialect, *others = create_dialects(DialectOptions())
    edge = AppState(pipeline, models, dialect, ServerSettings(), prefixed_dialects=tuple(others))
    async with serving_edge(edge) as (port, connections):
        yield Served(port, ScriptedEngine(), edge, connections)


@asynccontextmanager
async def serving_edge(edge: AppState) -> AsyncIterator[tuple[int, set[Any]]]:
    """Runs a server; yields its port and its open connections."""
    server = Server(create_app(edge), edge)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.start(listener)
        try:
            yield listener.getsockname()[1], server.state.connections
        finally:
            server.close()
            await gone(server.state.tasks)


def targets_of(edge: AppState) -> list[tuple[str, str]]:
    """Returns method and path pattern of every endpoint."""
    return [
        (endpoint.method, re.sub(r":path", "", path))
        for endpoint in list_endpoints(edge)
        for path in endpoint.paths
    ]


def thin_out(targets: Iterable[tuple[str, str]], step: int) -> list[tuple[str, str]]:
    """Returns the methods and paths of all routes, but only every `step`-th of those that refuse a missing
    part of JamAI Base: these differ only in their paths, and are more than all others."""
    ordered = sorted(targets)
    missing = {
        target
        for target in ordered
        if target[1].startswith(MISSING_PARTS) and not target[1].startswith(SERVED_TABLES)
    }
    return [target for target in ordered if target not in missing] + sorted(missing)[::step]


async def gone(collection: Any, seconds: float = PATIENCE) -> None:
    """Waits until a collection is empty."""
    async with at_most(seconds):
        await await_until(lambda: not len(collection))


async def statuses(server, requests):
    """The status of each, by its name."""
    found = {}
    for name, request in requests.items():
        async with server.line() as line:
            await line.send(f"{request}\r\n\r\n".encode("latin-1"))
            head = await line.until(b"\r\n\r\n")
        found[name] = int(head.split(b" ", 2)[1])
    return found
