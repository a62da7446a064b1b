"""A vendor that does its worst: the model's name chooses how. It speaks OpenAI's API on loopback.

`BEHAVIOURS` has them all, each with what a caller may see of it. `serve_hostile_vendor` runs the vendor in a
thread; `python -m tests.support.vendors.hostile_vendor` runs it as a process, for benchmarks, and prints its
address.
"""

import asyncio
import base64
import json
import sys
import threading
import time
import urllib.parse
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20

PIECE = 65_536
"""Bytes of one write."""

USAGE = {"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}

FLOOD_S = 60.0
"""Seconds after which an endless answer ends, if its client has not left."""

CHUNKED = "Transfer-Encoding: chunked"

COMPLETE = ""
"""An outcome: the caller gets a whole answer."""

FAILED, BROKEN, REFUSED = "provider_failed", "provider_stream_broken", "provider_refused"
TIMEOUT = "provider_timeout"


@dataclass(frozen=True)
class HostileRequest:
    """What the vendor was asked."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def key(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


Parts = Iterable[bytes] | AsyncIterator[bytes]

Answer = Callable[[HostileRequest], Parts]


@dataclass(frozen=True)
class Behaviour:
    """One way to do harm. `whole` and `streamed`: the error's code for the caller, or COMPLETE."""

    answer: Answer
    whole: str
    streamed: str
    is_endless: bool = False
    """Whether only a time limit of the server ends it."""
    makes_vectors: bool = False


# --- parts of answers ---------------------------------------------------------------------------------------


def event(value: object) -> bytes:
    """One server-sent event with JSON, or with these bytes."""
    return b"data: %b\n\n" % (value if isinstance(value, bytes) else json.dumps(value).encode())


def chunk(delta: object, finish: str | None = None, **more: object) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def text(content: str) -> bytes:
    return event(chunk({"content": content}))


def call(index: int | None = 0, id_: str | None = None, **function: str) -> bytes:
    """An event with a part of a tool call."""
    return event(chunk({"tool_calls": [{"index": index, "id": id_, "function": function}]}))


def finish(reason: str = "stop") -> bytes:
    return event(chunk({}, reason))


DONE = event(b"[DONE]")
END = finish() + event({"choices": [], "usage": USAGE}) + DONE


def choice(content: object = "hello", **more: object) -> dict[str, object]:
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop", **more}


def body(*choices: object, usage: object = USAGE) -> bytes:
    return json.dumps({"choices": choices or (choice(),), "usage": usage}).encode()


def head(status: int = 200, kind: str = "application/json", *lines: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", *lines, "", "")).encode()


def whole(content: bytes, status: int = 200, *lines: str) -> bytes:
    """An answer with its length."""
    return head(status, "application/json", f"Content-Length: {len(content)}", *lines) + content


SSE = head(200, "text/event-stream", "Connection: close")


def always(*parts: bytes) -> Answer:
    """Answers with these bytes, whatever was asked."""
    return lambda request: parts


def stream(*events: bytes) -> Answer:
    """Answers with a stream, and closes the connection."""
    return always(SSE, *events)


def either(content: bytes, *events: bytes) -> Answer:
    """Answers with a whole body, or with a stream if one was asked for."""
    return lambda request: (SSE, *events) if request.is_streamed else (whole(content),)


def with_usage(usage: dict[str, object]) -> Answer:
    return either(
        body(usage=usage), text("he"), text("llo"), finish(), event({"choices": [], "usage": usage}), DONE
    )


def error(message: object, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def repeat(part: bytes, size: int) -> Iterator[bytes]:
    """A part again and again, up to `size` bytes."""
    block = part * max(1, PIECE // len(part))
    for _ in range(size // len(block)):
        yield block


async def flood(first: bytes, part: bytes, pause: float = 0.0) -> AsyncIterator[bytes]:
    """A part again and again, until the client leaves."""
    yield first
    ends_at = time.monotonic() + FLOOD_S
    block = part if pause else part * max(1, PIECE // len(part))
    while time.monotonic() < ends_at:
        yield block
        if pause:
            await asyncio.sleep(pause)


def drip(*parts: bytes) -> Answer:
    """A stream that arrives byte by byte."""

    async def answer(request: HostileRequest) -> AsyncIterator[bytes]:
        yield SSE
        for byte in b"".join(parts):
            yield bytes([byte])
            await asyncio.sleep(0)

    return answer


# --- answers that need code ---------------------------------------------------------------------------------


def send_unasked_gzip(request: HostileRequest) -> Iterator[bytes]:
    """Four GiB of blanks, compressed a thousandfold."""
    kind = "text/event-stream" if request.is_streamed else "application/json"
    yield head(200, kind, "Content-Encoding: gzip", "Connection: close")
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield packer.compress(b"data: ")
    blanks = b" " * MIB
    for _ in range(4096):
        yield packer.compress(blanks)
    yield packer.flush()


def send_plain_gzip(request: HostileRequest) -> Iterator[bytes]:
    """A harmless answer, compressed although the request refuses that."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    content = SSE_BODY if request.is_streamed else body()
    kind = "text/event-stream" if request.is_streamed else "application/json"
    yield head(200, kind, "Content-Encoding: gzip", "Connection: close")
    yield packer.compress(content) + packer.flush()


SSE_BODY = text("hello") + END


def send_open_lines(request: HostileRequest) -> Iterator[bytes]:
    """An event that does not end: long lines, then many short ones."""
    yield SSE + text("x")
    yield from repeat(b":" + b"x" * (PIECE - 2) + b"\n", 7 * MIB)
    for _ in range(100_000):
        yield b":y\n"


def send_many_lines(request: HostileRequest) -> Iterator[bytes]:
    """Events of a million lines."""
    yield SSE + text("x")
    for _ in range(20):
        yield from repeat(b"a\n", 2 * MIB)
        yield b"\n"


def send_sized(first: bytes, part: bytes, size: int, last: bytes) -> Answer:
    """A whole answer of `size` bytes between `first` and `last`."""

    def answer(request: HostileRequest) -> Iterator[bytes]:
        count = size // len(part)
        yield head(200, "application/json", f"Content-Length: {len(first) + count * len(part) + len(last)}")
        yield first
        per_piece = max(1, PIECE // len(part))
        for begin in range(0, count, per_piece):
            yield part * min(per_piece, count - begin)
        yield last

    return answer


def send_call_parts(request: HostileRequest) -> Iterator[bytes]:
    """Parts of one call, each with another id, whose arguments never become whole."""
    yield SSE + call(id_="c", name="f", arguments='{"a":"' + "x" * 1000)
    for round_ in range(20):
        yield b"".join(call(id_=f"d{round_}.{index}", name="f", arguments="x" * 100) for index in range(500))
    yield finish("tool_calls") + DONE


def send_unread_scores(request: HostileRequest) -> Iterator[bytes]:
    """Log-probabilities without text: they wait for the text that they belong to."""
    yield SSE
    score = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}
    scores = [{"index": 0, "delta": {}, "logprobs": {"content": [score] * 5}}]
    yield from repeat(event({"choices": scores}), 8 * MIB)
    yield SSE_BODY


def send_tiny_chunks(request: HostileRequest) -> Iterator[bytes]:
    """A body in HTTP chunks of one byte."""
    kind = "text/event-stream" if request.is_streamed else "application/json"
    yield head(200, kind, CHUNKED)
    yield from repeat(b"1\r\n \r\n", 24 * MIB)


def send_split(request: HostileRequest) -> Parts:
    """A mark of the byte order, all kinds of line ends, and characters cut in two, byte by byte."""
    smile = json.dumps(chunk({"content": "h\u00e9\U0001f600"}), ensure_ascii=False).encode()
    return drip(
        b"\xef\xbb\xbf: c\r\n\r\nevent: message\r\ndata: " + smile + b"\r\n\r\n",
        b"data:" + json.dumps(chunk({}, "stop")).encode() + b"\r\rdata: [DONE]\r\n\r\n",
    )(request)


def echo_key(request: HostileRequest) -> Iterable[bytes]:
    """An error with the key in many forms."""
    shown = list_key_forms(request.key)
    return (whole(error(" | ".join(shown), type=request.key, code=request.key, param=request.key[:20]), 400),)


def list_key_forms(key: str) -> list[str]:
    """Forms of a key from which anybody reads it, and parts that help to guess it."""
    raw = key.encode()
    return [
        key,
        key.upper(),
        key[:12],
        key[:-1],
        key[: len(key) // 2],
        f"{key[:12]}...",
        base64.b64encode(raw).decode(),
        base64.b64encode(b"Bearer " + raw).decode(),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
        urllib.parse.quote(key, safe=""),
        "".join(f"%{byte:02x}" for byte in raw),
        raw.hex(),
        "".join(f"\\u{byte:04x}" for byte in raw),
    ]


def echo_request(request: HostileRequest) -> Parts:
    """The request in the answer's text, without its credential."""
    shown = {name: value for name, value in request.headers.items() if name != "authorization"}
    content = json.dumps([request.path, shown, request.body])
    return either(body(choice(content)), text(content), END)(request)


async def answer_twice_later(request: HostileRequest) -> AsyncIterator[bytes]:
    """A second answer on the connection a moment after the first."""
    yield whole(body(choice("first")))
    await asyncio.sleep(0.05)
    yield whole(body(choice("STOLEN SECOND ANSWER")))


def make_vectors(numbers: object, repeats_index: bool = False) -> Answer:
    def answer(request: HostileRequest) -> Iterable[bytes]:
        inputs = request.body["input"]
        vectors = [
            {"index": 0 if repeats_index else index, "embedding": numbers} for index, _ in enumerate(inputs)
        ]
        return (whole(json.dumps({"data": vectors, "usage": USAGE}).encode()),)

    return answer


def vary_usage(**counts: object) -> Answer:
    return with_usage({**USAGE, **counts})


SMALL_CHOICE = b'{"index":0,"delta":{}},'

LENGTH = len(body())

CHUNKED_BODY = b"%x\r\n%b\r\n0\r\n\r\n" % (LENGTH, body())

NUMBERED_HEADERS = b"".join(b"X-%d: %b\r\n" % (number, b"y" * 8000) for number in range(2000))

SCORED = {"content": [{"token": "a", "logprob": -1.0, "bytes": [1, 2, 999], "top_logprobs": []}]}


# --- the behaviours -----------------------------------------------------------------------------------------

BEHAVIOURS: dict[str, Behaviour] = {
    # size and work
    "gzip": Behaviour(send_plain_gzip, FAILED, FAILED),
    "gzip-bomb": Behaviour(send_unasked_gzip, FAILED, FAILED),
    "open-lines": Behaviour(send_open_lines, FAILED, BROKEN),
    "many-lines": Behaviour(send_many_lines, FAILED, BROKEN),
    "big-json": Behaviour(
        send_sized(b'{"choices":[{"message":{"content":"', b"a" * MIB, 250 * MIB, b'"}}]}'),
        FAILED,
        FAILED,
    ),
    "largest-text": Behaviour(
        send_sized(
            b'{"choices":[{"message":{"content":"', b'\\"\xc3\xa9', 7 * MIB, b'"},"finish_reason":"stop"}]}'
        ),
        COMPLETE,
        COMPLETE,
    ),
    "nodes": Behaviour(send_sized(b'{"choices":[', SMALL_CHOICE, 200 * MIB, b"{}]}"), FAILED, FAILED),
    "fewer-nodes": Behaviour(send_sized(b'{"choices":[', SMALL_CHOICE, 7 * MIB, b"{}]}"), FAILED, FAILED),
    "most-nodes": Behaviour(send_sized(b'{"choices":[', SMALL_CHOICE, 3 * MIB // 2, b"{}]}"), FAILED, FAILED),
    "most-parts": Behaviour(
        send_sized(
            b'{"choices":[',
            b'{"index":0,"delta":{"content":"x"}},',
            2 * MIB,
            b'{"index":0,"delta":{},"finish_reason":"stop"}]}',
        ),
        COMPLETE,
        COMPLETE,
    ),
    "unknown-keys": Behaviour(
        send_sized(b'{"choices":[{"message":{"function_call":{"a":[', b"{},", 7 * MIB, b"{}]}}}]}"),
        FAILED,
        FAILED,
    ),
    "deep": Behaviour(always(whole(b'{"choices":' + b"[" * 2_000_000)), FAILED, FAILED),
    "tiny-chunks": Behaviour(send_tiny_chunks, FAILED, FAILED),
    "blank-lines": Behaviour(lambda request: flood(SSE, b"\n"), FAILED, FAILED),
    "comments": Behaviour(lambda request: flood(SSE, b":\n\n"), FAILED, FAILED),
    "flood": Behaviour(lambda request: flood(SSE, text("word ")), BROKEN, BROKEN),
    "many-calls": Behaviour(send_call_parts, COMPLETE, COMPLETE),
    "unread-scores": Behaviour(send_unread_scores, COMPLETE, COMPLETE),
    # heads
    "1xx": Behaviour(lambda request: flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), FAILED, FAILED),
    "one-1xx": Behaviour(
        lambda request: (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", *normal(request)),
        COMPLETE,
        COMPLETE,
    ),
    "huge-head": Behaviour(always(b"HTTP/1.1 200 OK\r\n", NUMBERED_HEADERS), FAILED, FAILED),
    "huge-chunk-extension": Behaviour(
        lambda request: flood(head(200, "application/json", CHUNKED) + b"5;", b"e"),
        FAILED,
        FAILED,
    ),
    "no-head": Behaviour(always(body()), FAILED, FAILED),
    "header-injection": Behaviour(
        always(
            whole(
                body(),
                200,
                "x-antiphon-ignored: a, b\tSet-Cookie: x=1",
                "Set-Cookie: evil=1",
                "x-antiphon-route: fake",
                "Retry-After: 5",
            )
        ),
        COMPLETE,
        COMPLETE,
    ),
    "redirect": Behaviour(
        always(head(302, "text/html", "Content-Length: 0", "Location: http://127.0.0.1:9/")), FAILED, FAILED
    ),
    "redirect-307": Behaviour(
        always(head(307, "text/html", "Content-Length: 0", "Location: http://127.0.0.1:9/")), FAILED, FAILED
    ),
    "html": Behaviour(
        always(head(200, "text/html", "Content-Length: 18") + b"<html>login</html>"), FAILED, FAILED
    ),
    "empty-200": Behaviour(always(whole(b"")), FAILED, FAILED),
    "204": Behaviour(always(b"HTTP/1.1 204 No Content\r\n\r\n"), FAILED, FAILED),
    # lengths
    "both-lengths": Behaviour(
        always(head(200, "application/json", "Content-Length: 5", CHUNKED) + CHUNKED_BODY), FAILED, FAILED
    ),
    "two-lengths": Behaviour(
        always(head(200, "application/json", f"Content-Length: {LENGTH}", "Content-Length: 3") + body()),
        FAILED,
        FAILED,
    ),
    "short-length": Behaviour(
        always(head(200, "application/json", f"Content-Length: {LENGTH + 50}", "Connection: close") + body()),
        FAILED,
        FAILED,
    ),
    "http10-cut": Behaviour(
        always(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + body()[:60]), FAILED, FAILED
    ),
    "twice": Behaviour(
        always(whole(body(choice("first"))) + whole(body(choice("STOLEN SECOND ANSWER")))), COMPLETE, COMPLETE
    ),
    "twice-late": Behaviour(answer_twice_later, COMPLETE, COMPLETE),
    # ends
    "same-finish-twice": Behaviour(stream(text("hi"), finish(), END), COMPLETE, COMPLETE),
    "other-finish": Behaviour(stream(text("hi"), finish(), finish("length"), DONE), BROKEN, BROKEN),
    "after-done": Behaviour(stream(text("hi"), END, text("MORE")), COMPLETE, COMPLETE),
    "after-finish": Behaviour(stream(text("hi"), finish(), text("MORE"), DONE), BROKEN, BROKEN),
    "no-finish": Behaviour(stream(text("hi"), DONE), BROKEN, BROKEN),
    "cut": Behaviour(stream(text("hi")), BROKEN, BROKEN),
    "done-like": Behaviour(stream(text("hi"), finish(), event(b"[DONE]garbage")), COMPLETE, COMPLETE),
    "fake-finish": Behaviour(
        either(
            body(choice('data: [DONE]\n\ndata: {"error": 1}\n\n')),
            text("\n\ndata: [DONE]\n\n"),
            END,
        ),
        COMPLETE,
        COMPLETE,
    ),
    "split": Behaviour(send_split, COMPLETE, COMPLETE),
    # calls
    "calls": Behaviour(
        stream(
            call(id_="c1", name="f", arguments=""),
            call(arguments='{"a":'),
            call(1, "c2", name="g", arguments="{"),
            call(arguments="1}"),
            call(1, arguments='"b": "\ud83d"}'),
            finish("tool_calls"),
            DONE,
        ),
        BROKEN,  # half a character is no text
        BROKEN,
    ),
    "call-name-in-parts": Behaviour(
        stream(
            call(id_="c", name="get_", arguments=""),
            call(name="weather", arguments="{}"),
            finish("tool_calls"),
            DONE,
        ),
        BROKEN,
        BROKEN,
    ),
    "call-index": Behaviour(
        stream(
            call(2**62, "c1", name="f", arguments="{}"),
            call(-5, "c2", name="f", arguments="{}"),
            finish("tool_calls"),
            DONE,
        ),
        COMPLETE,
        COMPLETE,
    ),
    "call-without-json": Behaviour(
        stream(call(id_="c", name="f", arguments='{"a": '), finish("tool_calls"), DONE), COMPLETE, COMPLETE
    ),
    "calls-with-one-index": Behaviour(
        stream(
            call(id_="c1", name="f", arguments='{"a": "}{"}'),
            call(id_="c2", name="f", arguments="{}"),
            finish("tool_calls"),
            DONE,
        ),
        COMPLETE,
        COMPLETE,
    ),
    # usage
    "negative-usage": Behaviour(
        vary_usage(prompt_tokens=-5, completion_tokens=-7, total_tokens=-12), COMPLETE, COMPLETE
    ),
    "huge-usage": Behaviour(vary_usage(prompt_tokens=2**31, completion_tokens=2**31), COMPLETE, COMPLETE),
    "more-cached": Behaviour(vary_usage(prompt_tokens_details={"cached_tokens": 10**6}), COMPLETE, COMPLETE),
    "float-usage": Behaviour(vary_usage(completion_tokens=2.5), FAILED, BROKEN),
    "endless-number": Behaviour(
        lambda request: ((whole(body().replace(b'"prompt_tokens": 9', b'"prompt_tokens": ' + b"9" * 400)),)),
        COMPLETE,
        COMPLETE,
    ),
    # values
    "surrogate": Behaviour(
        always(whole(b'{"choices":[{"message":{"content":"a\\ud800b"},"finish_reason":"stop"}]}')),
        FAILED,
        FAILED,
    ),
    "nan": Behaviour(always(whole(body(choice(logprobs=SCORED)).replace(b"-1.0", b"NaN"))), FAILED, FAILED),
    "far-index": Behaviour(always(whole(body(choice(index=10**9)))), FAILED, FAILED),
    "two-choices": Behaviour(always(whole(body(choice(), choice(index=1)))), FAILED, FAILED),
    "echo": Behaviour(echo_request, COMPLETE, COMPLETE),
    # errors
    "key-echo": Behaviour(echo_key, REFUSED, REFUSED),
    "long-word-error": Behaviour(always(whole(error("a" * 8192), 400)), REFUSED, REFUSED),
    "dotted-error": Behaviour(always(whole(error("a." * 4096), 400)), REFUSED, REFUSED),
    "many-keys-error": Behaviour(always(whole(error("sk-" * 2731), 400)), REFUSED, REFUSED),
    "control-characters": Behaviour(
        always(
            whole(
                error(
                    "\x1b[2Jfoo\r\nlevel=error\u2028\u202e",
                    type="t\nx",
                    code="c\r\nInjected: 1",
                ),
                400,
            )
        ),
        REFUSED,
        REFUSED,
    ),
    "gzip-error": Behaviour(
        always(whole(zlib.compress(error("no"), 9, 31), 400, "Content-Encoding: gzip")), REFUSED, REFUSED
    ),
    "error-in-stream": Behaviour(
        stream(event({"error": {"message": "in stream", "code": 500}})), FAILED, FAILED
    ),
    "error-late": Behaviour(stream(text("hi"), event({"error": {"message": "late"}}), END), BROKEN, BROKEN),
    "error-by-name": Behaviour(
        stream(text("hi"), b'event: error\ndata: {"message": "bad"}\n\n', END), BROKEN, BROKEN
    ),
    "late-500": Behaviour(lambda request: fail_late(), FAILED, FAILED),
    # time
    "hang": Behaviour(lambda request: flood(b"", b"", 1.0), TIMEOUT, TIMEOUT, is_endless=True),
    "comments-only": Behaviour(
        lambda request: flood(SSE, b": x\n\n", 0.3), TIMEOUT, TIMEOUT, is_endless=True
    ),
    "slow-tokens": Behaviour(lambda request: flood(SSE, text("x"), 0.3), BROKEN, BROKEN, is_endless=True),
    # vectors
    "vector-nan": Behaviour(
        always(whole(b'{"data":[{"index":0,"embedding":[NaN,1,2,3]}]}')), FAILED, FAILED, makes_vectors=True
    ),
    "vector-infinite": Behaviour(make_vectors([1e300, 1, 2, 3]), FAILED, FAILED, makes_vectors=True),
    "vector-index-twice": Behaviour(
        make_vectors([0.5, 1, 2, 3], repeats_index=True), FAILED, FAILED, makes_vectors=True
    ),
    "vector-long": Behaviour(
        send_sized(b'{"data":[{"embedding":[', b"1,", 200 * MIB, b'1],"index":0}]}'),
        FAILED,
        FAILED,
        makes_vectors=True,
    ),
}


def normal(request: HostileRequest) -> Iterable[bytes]:
    """A faultless answer."""
    return (SSE, SSE_BODY) if request.is_streamed else (whole(body()),)


async def fail_late() -> AsyncIterator[bytes]:
    """A 500 after the vendor has worked."""
    await asyncio.sleep(0.5)
    yield whole(error("boom"), 500)


# --- the server ---------------------------------------------------------------------------------------------


@dataclass
class HostileVendor:
    """`url`: its address. `requests`: the models that were asked for, in order."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    """Set when the first bytes of an answer were written."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._serve(reader, writer):
                    pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request. Returns whether another can follow."""
        request_head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = request_head.rstrip("\r\n").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        request = HostileRequest(first.split()[1], headers, content)
        model = str(content.get("model"))
        self.requests.append(model)
        behaviour = BEHAVIOURS.get(model)
        parts = (behaviour.answer if behaviour else normal)(request)
        sent = b""
        if isinstance(parts, AsyncIterator):
            async for part in parts:
                sent = sent or part
                await self._write(writer, part)
        else:
            for part in parts:
                sent = sent or part
                await self._write(writer, part)
        return b"Content-Length" in sent and b"Connection: close" not in sent

    async def _write(self, writer: asyncio.StreamWriter, part: bytes) -> None:
        writer.write(part)
        self.began.set()
        await writer.drain()


@contextmanager
def serve_hostile_vendor() -> Iterator[HostileVendor]:
    """Runs the vendor in its own thread."""
    vendor, loop, ready = HostileVendor(), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(vendor.handle, "127.0.0.1", 0)
        vendor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await server.serve_forever()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(main)
        remaining = asyncio.all_tasks(loop)
        for task in remaining:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    main = loop.create_task(serve())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(50)
    try:
        yield vendor
    finally:
        loop.call_soon_threadsafe(main.cancel)
        thread.join(50)


if __name__ == "__main__":
    with serve_hostile_vendor() as running:
        sys.stdout.write(f"{running.url}\n")
        sys.stdout.flush()
        sys.stdin.read()
