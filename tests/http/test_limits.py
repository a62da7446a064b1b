"""What arrives slowly, without end, or too large is refused in time and in the envelope."""

import asyncio
import json
import os
from typing import Any

import psutil
import pytest

from antiphon_testing import ScriptedAnswer
from tests.support.http_server import CHAT, HELLO, TEXT, at_most, gone, request_bytes, serving
from tests.support.waiting import await_until

MIB = 1 << 20
SOON: Any = {"receive_timeout": 0.2}
"""Stated in the tests below: refused after 0.2 seconds; asserted: within ten."""


@pytest.mark.parametrize(
    "beginning",
    [
        b"G",
        b"GET /v1/models HTTP/1.1\r\n",
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-a",
        b"\r\n",
        b"\r\n\r\n",
    ],
)
async def test_headers_that_do_not_come_are_a_408(beginning):
    async with serving(**SOON) as server, server.line() as line:
        await line.send(beginning)
        reply = await line.reply()
        assert (reply.status, reply.error["code"]) == (408, "request_timeout")
        assert reply.headers["connection"] == "close" and await line.rest() == b""


async def test_headers_that_trickle_are_a_408():
    async with serving(**SOON) as server, server.line() as line:
        await line.send(b"GET /health HTTP/1.1\r\nx-slow: ")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            while not reading.done():
                await line.send(b"x")
                await asyncio.sleep(0.02)
        assert reading.result().status == 408


async def test_a_body_that_does_not_come_is_a_408():
    async with serving(**SOON) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO)[:-5])
        reply = await line.reply()
        assert (reply.status, reply.error["code"]) == (408, "request_timeout")
        assert await line.rest() == b""


async def test_a_body_that_trickles_is_a_408():
    async with serving(**SOON) as server, server.line() as line:
        await line.send(request_bytes(CHAT, b"", headers={"content-length": "100000"}))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            while not reading.done():
                await line.send(b" ")
                await asyncio.sleep(0.02)
        assert reading.result().status == 408


async def test_chunks_without_end_are_a_413():
    async with serving(max_body_bytes=MIB) as server, server.line() as line:
        head = request_bytes(CHAT, b"", headers={"content-length": None, "transfer-encoding": "chunked"})
        await line.send(head)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            while not reading.done():
                await line.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await asyncio.sleep(0)
        reply = reading.result()
        assert (reply.status, reply.error["code"]) == (413, "body_too_large")


async def test_a_declared_size_is_refused_before_anything_is_read(served):
    async with served.line() as line:
        await line.send(request_bytes(CHAT, b"", headers={"content-length": str(20 * MIB)}))
        reply = await line.reply()
    assert (reply.status, reply.error["code"]) == (413, "body_too_large")
    assert "8,388,608" in reply.error["message"]


async def test_a_client_that_sends_a_refused_body_can_read_why():
    async with serving(max_body_bytes=MIB) as server, server.line() as line:
        await line.send(request_bytes(CHAT, b" " * 20 * MIB))
        assert (await line.reply()).status == 413
        await line.send(request_bytes(CHAT, HELLO))
        assert (await line.reply()).status == 200


async def test_a_client_that_goes_on_sending_a_refused_body_is_dropped(monkeypatch):
    async with serving(max_body_bytes=MIB, **SOON) as server, server.line() as line:
        monkeypatch.setattr("antiphon.http.protocol.LINGER_SECONDS", 0.2)
        await line.send(request_bytes(CHAT, b"", headers={"content-length": str(1 << 40)}))
        assert (await line.reply()).status == 413
        with pytest.raises(ConnectionError):
            await endless(line)
        await gone(server.connections)


async def endless(line):
    while True:
        await line.send(b" " * 0x10000)


async def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not():
    async with serving(max_body_bytes=2000) as server:
        text = json.dumps(HELLO).encode()
        for chunked in (False, True):
            for size, status in ((2000, 200), (2001, 413)):
                data = text + b" " * (size - len(text))
                how = {"content-length": None, "transfer-encoding": "chunked"} if chunked else {}
                sent = b"%x\r\n%b\r\n0\r\n\r\n" % (size, data) if chunked else data
                async with server.line() as line:
                    await line.send(
                        request_bytes(CHAT, b"", headers={"content-length": str(size)} | how) + sent
                    )
                    assert (await line.reply()).status == status


async def test_memory_does_not_grow_with_what_is_refused():
    process = psutil.Process(os.getpid())
    async with serving(max_body_bytes=MIB) as server:
        await server.ask(CHAT, HELLO)
        before = process.memory_info().rss
        for _ in range(4):
            async with server.line() as line:
                await line.send(request_bytes(CHAT, b"", headers={"content-length": str(64 * MIB)}))
                for _ in range(64):
                    await line.send(b" " * MIB)
                assert (await line.reply()).status == 413
        assert process.memory_info().rss - before < 48 * MIB, "far less than the 256 MiB that were sent"


@pytest.mark.parametrize("pieces", [1, 50])
async def test_headers_over_64_kib_are_a_431(served, pieces):
    async with served.line() as line:
        request = request_bytes(CHAT, HELLO, headers={"x-big": "y" * 70_000})
        step = len(request) // pieces + 1
        for at in range(0, len(request), step):
            await line.send(request[at : at + step])
            await asyncio.sleep(0)
        reply = await line.reply()
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("end", [b"", b"\r\n"])
async def test_thousands_of_tiny_headers_are_a_431(served, end):
    """They would take twenty times their size in memory, before any key is read."""
    names = [b"%x:\r\n" % number for number in range(5000)]
    async with served.line() as line:
        await line.send(request_bytes("/health")[:-2] + b"".join(names[:1000]) + b"\r\n")
        assert (await line.reply()).status == 200
        await line.send(request_bytes("/health")[:-2] + b"".join(names) + end)
        reply = await line.reply()
    assert (reply.status, reply.error["code"]) == (431, "headers_too_large")


async def test_headers_without_end_are_a_431(served):
    async with served.line() as line:
        await line.send(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            for _ in range(100):
                await line.send(b"x-a: " + b"b" * 2000 + b"\r\n")
                await asyncio.sleep(0)
                if reading.done():
                    break
        assert reading.result().status == 431


async def test_many_slow_connections_leave_others_alone():
    async with serving(receive_timeout=0.5) as server:
        slow = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n")
        assert (await server.ask("/health")).status == 200
        assert (await server.ask(CHAT, HELLO)).status == 200
        async with at_most(10):
            for reader, writer in slow:
                assert b" 408 " in await reader.readline()
                writer.transport.abort()
        await gone(server.connections)


async def test_an_answer_longer_than_the_request_timeout_is_not_cut():
    """The deadline of arrival ends with the request."""
    async with serving(ScriptedAnswer(wait=0.6), **SOON) as server:
        for body in (HELLO, HELLO | {"stream": True}):
            assert (await server.ask(CHAT, body)).status == 200


async def test_an_idle_connection_outlasts_the_request_timeout():
    async with serving(**SOON) as server, server.line() as line:
        for _ in range(2):
            await line.send(request_bytes(CHAT, HELLO))
            assert (await line.reply()).status == 200
            await asyncio.sleep(0.5)


async def test_a_generation_that_takes_too_long_is_a_504():
    async with serving(ScriptedAnswer(wait=3600), request_timeout=0.2, keep_alive_interval=0.05) as server:
        buffered = await server.ask(CHAT, HELLO)
        assert (buffered.status, buffered.error["code"]) == (504, "deadline_exceeded")
        streamed = await server.ask(CHAT, HELLO | {"stream": True})
        assert streamed.events()[-1]["error"]["code"] == "deadline_exceeded"
        await gone(server.edge.in_flight)


async def test_each_request_has_the_whole_request_timeout():
    """They share one timer."""
    async with serving(ScriptedAnswer(wait=3600), request_timeout=0.3) as server:
        times = []

        async def ask_once():
            began = asyncio.get_running_loop().time()
            answer = await server.ask(CHAT, HELLO)
            times.append(asyncio.get_running_loop().time() - began)
            assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")

        async with at_most(10), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(ask_once())
                await asyncio.sleep(0.1)
        assert len(times) == 3 and min(times) >= 0.29, times


async def test_requests_sent_together_are_answered_in_order(served):
    async with served.line() as line:
        bodies = [{"model": "m", "prompt": "x" * size} for size in (1, 2, 3)]
        await line.send(b"".join(request_bytes(TEXT, body) for body in bodies))
        counts = [(await line.reply()).json()["usage"]["prompt_tokens"] for _ in bodies]
    assert counts == [1, 2, 3]


CHUNKED: Any = {"content-length": None, "transfer-encoding": "chunked"}


async def test_trailers_without_end_are_a_431(served):
    async with served.line() as line:
        await line.send(request_bytes(CHAT, b"", headers=CHUNKED) + b"2\r\n{}\r\n0\r\n")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            for _ in range(100):
                await line.send(b"x-a: " + b"b" * 4000 + b"\r\n")
                await asyncio.sleep(0)
                if reading.done():
                    break
        assert reading.result().status == 431


async def test_trailers_change_nothing_of_a_request(served):
    body = json.dumps(HELLO).encode()
    async with served.line() as line:
        await line.send(request_bytes(CHAT, b"", headers=CHUNKED))
        await line.send(
            b"%x\r\n%b\r\n0\r\nhost: elsewhere\r\ncontent-type: text/plain\r\n\r\n" % (len(body), body)
        )
        assert (await line.reply()).status == 200


INTRUSIONS = {"malformed": b"NO HTTP\r\n\r\n", "endless": b"GET / HTTP/1.1\r\nx: " + b"a" * 400_000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("intrusion", INTRUSIONS.values(), ids=INTRUSIONS)
async def test_what_is_no_request_waits_for_the_running_one(caplog, stream, intrusion):
    """Nothing is written into the middle of an answer."""
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate)) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO | {"stream": stream}))
        await running(server)
        await line.send(intrusion)
        await line.send(intrusion)
        gate.set()
        assert b"Hello" in (await line.reply()).body
        assert (await line.reply()).status in (400, 431)
        assert await line.rest() == b""
    assert "internal_error" not in caplog.text


@pytest.mark.parametrize("intrusion", INTRUSIONS.values(), ids=INTRUSIONS)
async def test_a_client_that_leaves_behind_what_is_no_request_is_seen(intrusion):
    async with serving(ScriptedAnswer(pace=0.01, endless=True)) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO) + intrusion)
        await running(server)
        line.drop()
        await gone(server.edge.in_flight)


async def running(server):
    async with at_most(10):
        await await_until(lambda: len(server.edge.in_flight))


async def test_a_connection_that_never_speaks_is_closed(monkeypatch):
    monkeypatch.setattr("antiphon.http.protocol.IDLE_SECONDS", 0.2)
    async with serving() as server, server.line() as line:
        assert await line.rest() == b""
        await gone(server.connections)


async def test_a_connection_whose_refused_body_has_ended_is_idle(monkeypatch):
    """Although nothing follows the last byte of that body."""
    monkeypatch.setattr("antiphon.http.protocol.IDLE_SECONDS", 0.2)
    async with serving(max_body_bytes=MIB) as server, server.line() as line:
        await line.send(request_bytes(CHAT, b"", headers={"content-length": str(2 * MIB)}))
        assert (await line.reply()).status == 413
        line.writer.write(b" " * 2 * MIB)
        assert await line.rest() == b""
        await gone(server.connections)


async def test_a_refused_chunked_body_is_read_only_briefly(monkeypatch):
    """Also when there was much time left for the request to arrive."""
    monkeypatch.setattr("antiphon.http.protocol.LINGER_SECONDS", 0.2)
    async with serving(max_body_bytes=MIB, receive_timeout=600) as server, server.line() as line:
        await line.send(request_bytes(CHAT, b"", headers=CHUNKED))
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(line.reply())
            while not reading.done():
                await line.send(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await asyncio.sleep(0)
        assert reading.result().status == 413
        async with at_most(10):
            with pytest.raises(ConnectionError):
                await endless(line)
        await gone(server.connections)


async def test_the_sum_of_bodies_is_bounded_and_the_next_must_retry():
    """Two running requests hold what is allowed; a third is refused unread, and taken afterwards."""
    gate = asyncio.Event()
    padded = HELLO | {"messages": [{"role": "user", "content": "x" * 900}]}
    async with serving(ScriptedAnswer(gate=gate), max_body_bytes=1100, max_bodies_bytes=2200) as server:
        async with asyncio.TaskGroup() as group:
            held = [group.create_task(server.ask(CHAT, padded)) for _ in range(2)]
            async with at_most(10):
                await await_until(lambda: len(server.edge.in_flight) >= 2)
            assert 1800 < server.edge.body_budget.byte_count < 2200
            async with server.line() as line:
                await line.send(request_bytes(CHAT, b"", headers={"content-length": "1000"}))
                announced = await line.reply()
            chunk = json.dumps(padded).encode()
            async with server.line() as line:
                await line.send(request_bytes(CHAT, b"", headers=CHUNKED))
                await line.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(chunk), chunk))
                unannounced = await line.reply()
            for reply in (announced, unannounced):
                assert (reply.status, reply.error["code"]) == (503, "server_busy")
                assert (reply.headers["retry-after"], reply.headers["x-should-retry"]) == ("1", "true")
            assert (await server.ask(TEXT, {"model": "zzz", "prompt": "x"})).status == 404, "small ones fit"
            gate.set()
        assert [task.result().status for task in held] == [200, 200]
        assert server.edge.body_budget.byte_count == 0
        assert (await server.ask(CHAT, padded)).status == 200


async def test_a_promised_body_takes_no_room_until_it_comes():
    async with (
        serving(max_body_bytes=1100, max_bodies_bytes=1100) as server,
        server.line() as one,
        server.line() as other,
    ):
        for line in (one, other):
            await line.send(request_bytes(CHAT, b"", headers={"content-length": "1000"}))
        assert (await server.ask(CHAT, HELLO)).status == 200


async def test_one_whole_body_fits_whatever_all_together_may_hold():
    async with serving(max_body_bytes=100_000, max_bodies_bytes=1024) as server:
        assert (await server.ask(TEXT, {"model": "m", "prompt": "x" * 2000})).status == 200
