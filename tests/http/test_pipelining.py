"""Requests that are sent before earlier ones are answered: a few are answered in order, no more are held."""

import asyncio
import gc
import json
from typing import Any

import pytest

from antiphon.http.protocol import MAX_PIPELINED, Exchange
from antiphon_testing import ScriptedAnswer
from tests.support.http_server import CHAT, HELLO, TEXT, at_most, request_bytes, serving
from tests.support.waiting import await_until

CHUNKED: Any = {"content-length": None, "transfer-encoding": "chunked"}
WISH = {"connection": "Upgrade", "upgrade": "websocket"}
HTTP_2 = {"connection": "Upgrade, HTTP2-Settings", "HTTP2-Settings": "AAEAAEAAAAIAAAAB", "Upgrade": "h2c"}
BYTES = 3 << 20
"""Of waiting bodies that one connection may hold; stated: a read of a quarter of a MiB for each request."""


def prompt(size: int) -> dict[str, Any]:
    return {"model": "m", "prompt": "x" * size}


def held(*before: Exchange) -> list[Exchange]:
    """All parsed requests of this process that are not answered, without those of other tests."""
    found = [each for each in gc.get_objects() if isinstance(each, Exchange)]
    return [exchange for exchange in found if not exchange.is_complete and exchange not in before]


async def running(server):
    async with at_most(10):
        await await_until(lambda: len(server.edge.in_flight))


@pytest.mark.parametrize("pad", [0, 1000])
async def test_of_a_crowd_of_requests_few_are_held_and_answered(pad):
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate)) as server, server.line() as line:
        gc.collect()
        before = held()
        one = request_bytes("/health", headers={"x-pad": "p" * pad})
        await line.send(request_bytes(CHAT, HELLO) + one * 100)
        await running(server)
        for _ in range(20):
            line.writer.write(one * 20)
            await asyncio.sleep(0.005)
        assert 1 < len(held(*before)) <= 1 + MAX_PIPELINED
        gate.set()
        assert [(await line.reply()).status for _ in range(1 + MAX_PIPELINED)] == [200] * (1 + MAX_PIPELINED)
        refused = await line.reply()
        assert (refused.status, refused.headers["connection"]) == (400, "close")
        assert "8 requests" in refused.error["message"] and await line.rest() == b""


async def test_a_client_at_the_pipelining_limit_is_always_answered(served):
    """Also when bodies look like ends of heads."""
    sizes = range(1, 120)
    async with served.line() as line:
        for first in range(1, 120, MAX_PIPELINED):
            sent = sizes[first - 1 : first - 1 + MAX_PIPELINED]
            await line.send(b"".join(map(form_of, sent)))
            counts = [(await line.reply()).json()["usage"]["prompt_tokens"] for _ in sent]
            assert counts == list(sent)


def form_of(size: int) -> bytes:
    """A request of one of several forms."""
    text = json.dumps(prompt(size)).encode()
    if size % 4 == 1:
        return request_bytes(TEXT, text + b"\r\n\r\n" * 50)
    if size % 4 == 2:
        text += b"\r\n\r\n" * 9
        chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, text[:9], len(text[9:]), text[9:])
        return request_bytes(TEXT, b"", headers=CHUNKED) + chunks
    return request_bytes(TEXT, text)


async def test_what_follows_a_wish_for_another_protocol_is_answered(served):
    async with served.line() as line:
        wish, empty = (
            request_bytes("/health", headers=WISH | more) for more in ({}, {"content-length": "0"})
        )
        for request in (wish, empty, request_bytes("*", method="CONNECT")):
            await line.send(request + request_bytes(TEXT, prompt(3)))
            await line.reply()
            assert (await line.reply()).json()["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("apart", [False, True])
async def test_a_wish_for_http_2_is_passed_over(served, apart):
    """Java's client has one in its first request; the words may stand in a body too, and stay there."""
    text = json.dumps({"model": "m", "prompt": "x\r\nUpgrade: h2c\r\n"}).encode()
    head = request_bytes(TEXT, b"", headers=HTTP_2 | {"content-length": str(len(text))})
    for pieces in ([head, text] if apart else [head + text], [request_bytes(TEXT, text)]):
        async with served.line() as line:
            for piece in pieces:
                await line.send(piece)
                await asyncio.sleep(0.01 * apart)
            assert (await line.reply()).status == 200
    asked = [stream.request.prompts[0].text for stream in served.engine.streams]
    assert asked == ["x\r\nUpgrade: h2c\r\n"] * 2


@pytest.mark.parametrize("framing", [{}, CHUNKED], ids=["length", "chunks"])
async def test_a_body_after_an_upgrade_is_never_read_as_a_request(served, framing):
    hidden = request_bytes(TEXT, prompt(3))
    head = request_bytes(CHAT, b"", headers=WISH | {"content-length": str(len(hidden))} | framing)
    for pieces in ([head + hidden], [head, hidden]):
        async with served.line() as line:
            line.writer.write(pieces[0])
            reply = await line.reply()
            line.writer.writelines(pieces[1:])
            assert (reply.status, reply.error["code"]) == (400, "invalid_request")
            assert "Upgrade" in reply.error["message"] and await line.rest() == b""
    assert served.engine.streams == []


@pytest.mark.parametrize("cut", [3, 10, 30, 60])
async def test_a_head_that_arrives_around_an_answer_is_read_whole(cut):
    gate = asyncio.Event()
    second = request_bytes(TEXT, prompt(2))
    async with serving(ScriptedAnswer(gate=gate)) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO) + second[:cut])
        await running(server)
        gate.set()
        assert (await line.reply()).status == 200
        await line.send(second[cut:])
        assert (await line.reply()).json()["usage"]["prompt_tokens"] == 2


async def test_a_large_pipelined_body_is_not_read_before_its_turn():
    gate = asyncio.Event()
    large = {"model": "zzz", "messages": [{"role": "user", "content": "x" * 6_000_000}]}
    async with serving(ScriptedAnswer(gate=gate)) as server, server.line() as line:
        gc.collect()
        before = held()
        line.writer.write(request_bytes(CHAT, HELLO) * 5 + request_bytes(CHAT, large))
        await running(server)
        line.writer.write(request_bytes("/health"))
        await asyncio.sleep(0.1)
        assert len(held(*before)) <= 6 and sum(len(each.unread) for each in held(*before)) < BYTES
        gate.set()
        assert [(await line.reply()).status for _ in range(6)] == [200] * 5 + [404]
        assert (await line.reply()).status == 200


async def test_what_is_no_request_in_a_crowd_ends_it():
    async with serving(ScriptedAnswer(wait=3600)) as server, server.line() as line:
        await line.send(request_bytes("/health") * 3 + b"NO HTTP\r\n\r\n" + request_bytes("/health") * 30)
        assert [(await line.reply()).status for _ in range(4)] == [200] * 3 + [400]
        assert await line.rest() == b""


BAD = {
    "no request": b"NO HTTP\r\n\r\n",
    "bytes": b"\x00\x01\x02",
    "another version": b"GET / HTTP/9.9\r\n\r\n",
    "no header": b"GET /health HTTP/1.1\r\nno header\r\n\r\n",
    "no chunk": request_bytes(TEXT, b"", headers=CHUNKED) + b"zz\r\n",
    "large headers": request_bytes("/health", headers={"x": "y" * 70_000}),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("bad", "status"), [(bad, 431 if len(bad) > 9999 else 400) for bad in BAD.values()], ids=BAD
)
async def test_requests_before_bad_bytes_are_answered(served, bad, status, stream):
    async with served.line() as line:
        await line.send(request_bytes(CHAT, HELLO | {"stream": stream}) + request_bytes("/health") + bad)
        assert b"Hello" in (await line.reply()).body
        assert (await line.reply()).json() == {"status": "ok"}
        refused = await line.reply()
        assert (refused.status, refused.headers["connection"]) == (status, "close")
        assert refused.error["type"] == "invalid_request_error"
        assert await line.rest() == b""
    assert len(served.engine.streams) == 1


async def test_nothing_after_a_connections_last_request_is_answered(served):
    async with served.line() as line:
        await line.send(request_bytes(CHAT, HELLO, headers={"connection": "close"}) + BAD["no request"])
        assert (await line.reply()).status == 200
        assert await line.rest() == b""


async def test_a_body_that_breaks_off_ends_its_own_request_at_once(served):
    async with served.line() as line:
        await line.send(BAD["no chunk"])
        assert (await line.reply()).status == 400 and await line.rest() == b""
    assert served.engine.streams == []


async def test_an_answer_without_a_body_is_written_before_a_refusal(served):
    async with served.line() as line:
        await line.send(request_bytes("/health", method="HEAD") + BAD["no request"])
        assert (await line.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        assert (await line.reply()).status == 400
        assert await line.rest() == b""


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_a_refusal_of_the_last_request_is_not_lost_while_its_body_arrives(served, version):
    """A proxy that closes each connection sends on, and a reset would take the answer from it."""
    size = 50_000_000
    sent = request_bytes(CHAT, b"", headers={"connection": "close", "content-length": str(size)})
    async with served.line() as line:
        await line.send(sent.replace(b"HTTP/1.1", version, 1))
        reply = await line.reply()
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        for _ in range(20):
            await line.send(b"x" * 50_000)
            await asyncio.sleep(0.005)
        assert await line.rest() == b""
