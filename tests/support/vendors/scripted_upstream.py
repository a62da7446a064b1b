"""A vendor on loopback that answers in OpenAI's shapes, and fails as the name of the model says.

`fake` answers. `fake-503` answers with that status, `fake-429-after-7` also with Retry-After.
`fake-FAULT-at-POINT` fails at one point of the exchange: see FAULTS and POINTS.
"""

import asyncio
import contextlib
import json
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

WORDS = ("One", " two", " three", " four", " five")
"""The text of every answer, in parts."""

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}

POINTS = ("before-headers", "after-headers", "mid-chunk", "between-chunks", "after-finish")
"""Where an exchange can fail, in its order."""

FAULTS = ("reset", "close", "stall", "garbage", "truncated", "error", "huge")
"""What happens there: the connection is reset or closed in order, nothing more comes, bytes come that are no
event, an event is cut, an error event comes, or an event that is too large."""

STATUS = re.compile(r"fake-(\d{3})(?:-after-(\d+))?")
FAULT = re.compile(rf"fake-({'|'.join(FAULTS)})-at-({'|'.join(POINTS)})")

HUGE = 17 << 20

ERROR = json.dumps({"error": {"message": "boom at http://10.1.2.3/x", "type": "server_error"}}).encode()


@dataclass
class UpstreamRequest:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ScriptedUpstream:
    """The vendor. `requests` has all requests in order."""

    url: str = ""
    requests: list[UpstreamRequest] = field(default_factory=list)
    left: int = 0
    """Requests whose client left before the answer was complete."""
    refused_key: str | None = None
    """A key that gets a 401."""
    pace: float = 0.0
    """Seconds between two chunks."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await read_request(reader):
                self.requests.append(request)
                try:
                    await self._answer(request, reader, writer)
                except (ConnectionError, asyncio.CancelledError):
                    self.left += 1
                    raise
        writer.close()

    async def _answer(
        self, request: UpstreamRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        model = str(request.body.get("model", ""))
        if self.refused_key and request.headers.get("authorization", "").endswith(self.refused_key):
            send_status(writer, 401, None)
        elif request.path.endswith("/models"):
            send_json(writer, 200, {"data": [{"id": "fake"}, {"id": "fake-503"}]})
        elif found := STATUS.fullmatch(model):
            send_status(writer, int(found[1]), found[2])
        elif request.path.endswith("/embeddings"):
            vectors = [{"index": at, "embedding": [1.0, at]} for at, _ in enumerate(request.body["input"])]
            send_json(writer, 200, {"data": vectors, "usage": {"prompt_tokens": 3}})
        else:
            fault = FAULT.fullmatch(model)
            parts = build_parts(request.body)
            kind, point = (fault[1], fault[2]) if fault else ("", "")
            await self._send(parts, kind, point, (reader, writer))
        await writer.drain()

    async def _send(
        self,
        parts: list[bytes],
        fault: str,
        point: str,
        connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Sends an answer in chunks, and fails at the point."""
        reader, writer = connection
        is_stream = parts[0].startswith(b"data:")
        kind = "text/event-stream" if is_stream else "application/json"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        places = {
            "before-headers": 0,
            "after-headers": 1,
            "mid-chunk": 3,
            "between-chunks": 4,
            "after-finish": len(parts),
        }
        stop = min(places.get(point, -1), len(parts))
        for at, part in enumerate([head, *map(frame, parts)]):
            if at == stop:
                if point == "mid-chunk":
                    writer.write(part[: len(part) // 2])
                await self._fail(fault, is_stream, connection)
                return
            writer.write(part)
            await writer.drain()
            await self._wait(reader)
        if stop == len(parts):
            await self._fail(fault, is_stream, connection)
            return
        writer.write(b"0\r\n\r\n")

    async def _wait(self, reader: asyncio.StreamReader) -> None:
        """Waits between two chunks. Raises ConnectionError if the client leaves meanwhile."""
        if self.pace:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.pace):
                    if not await reader.read(1):
                        raise ConnectionResetError("the client left")

    async def _fail(
        self, fault: str, is_stream: bool, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    ) -> None:
        """Fails as scripted, and then waits until the client leaves."""
        reader, writer = connection
        match fault:
            case "reset":
                plug = writer.get_extra_info("socket")
                plug.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: close sends RST
                writer.transport.abort()
                raise ConnectionResetError
            case "close":
                writer.close()
                raise ConnectionResetError
            case "garbage":
                writer.write(frame(b"\x00\xff not an event\n\ndata: {]\n\n"))
            case "truncated":
                writer.write(
                    frame(b'data: {"choices": [{"index": 0, "delta": {"content": "cu') + b"0\r\n\r\n"
                )
            case "error" if is_stream:
                writer.write(frame(b"data: %b\n\n" % ERROR))
            case "error":
                writer.write(frame(ERROR) + b"0\r\n\r\n")
            case "huge":
                writer.write(frame(b"data: " + b"x" * HUGE))
        await writer.drain()
        if not await reader.read(1):
            raise ConnectionResetError("the client left")


async def read_request(reader: asyncio.StreamReader) -> UpstreamRequest | None:
    """Reads a request; None if the client closed the connection."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return UpstreamRequest(first.split()[1], headers, json.loads(body) if body else {})


def build_parts(body: dict[str, Any]) -> list[bytes]:
    """The parts of an answer: one for a whole answer, or the events of a stream."""
    is_chat = "messages" in body
    name = "chat.completion" if is_chat else "text_completion"
    base = {"id": "chatcmpl-1", "object": name, "created": 1, "model": body.get("model")}
    text = "".join(WORDS)
    if not body.get("stream"):
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        return [json.dumps(base | {"choices": [choice], "usage": USAGE}).encode()]
    base["object"] = name + ".chunk" if is_chat else name
    deltas: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}] if is_chat else []
    deltas += [{"delta": {"content": word}} if is_chat else {"text": word} for word in WORDS]
    chunks = [base | {"choices": [{"index": 0, "finish_reason": None} | delta]} for delta in deltas]
    end: dict[str, Any] = {"delta": {}} if is_chat else {"text": ""}
    chunks.append(base | {"choices": [{"index": 0, "finish_reason": "stop"} | end]})
    if (body.get("stream_options") or {}).get("include_usage"):
        chunks.append(base | {"choices": [], "usage": USAGE})
    return [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def frame(part: bytes) -> bytes:
    """A part as a chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(part), part)


def send_json(writer: asyncio.StreamWriter, status: int, body: object, headers: str = "") -> None:
    """Sends a whole answer."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Said\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
    writer.write(f"{head}{headers}\r\n".encode() + data)


def send_status(writer: asyncio.StreamWriter, status: int, retry_after: str | None) -> None:
    """Sends an error, or a redirect to a place that must not be asked."""
    headers = "" if retry_after is None else f"retry-after: {retry_after}\r\n"
    if 300 <= status < 400:
        headers += "location: http://127.0.0.1:9/stolen\r\n"
    error = {"message": f"said {status} of sk-secret-0123456789abcdef", "type": "said", "code": None}
    send_json(writer, status, {"error": error}, headers)


@contextmanager
def serve_upstream() -> Iterator[ScriptedUpstream]:
    """A scripted vendor in a thread of its own."""
    upstream, loop, ready = ScriptedUpstream(), asyncio.new_event_loop(), threading.Event()
    tasks: set[asyncio.Task[None]] = set()
    servers: list[asyncio.Server] = []

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await upstream.handle(reader, writer)
        except ConnectionError:
            writer.close()
        finally:
            tasks.discard(task)

    async def listen() -> None:
        servers.append(await asyncio.start_server(connect, "127.0.0.1", 0))
        upstream.url = f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}/v1"
        ready.set()

    async def end() -> None:
        servers[0].close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        loop.stop()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(listen())
        loop.run_forever()
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield upstream
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop)
        thread.join(10)
