"""Answers that wait for a client: who takes nothing is cut, who reads slowly gets all of it."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from antiphon_testing import ScriptedAnswer, ScriptedEngine
from tests.support.http_server import CHAT, HELLO, at_most, gone, request_bytes, serving
from tests.support.waiting import await_until

LARGE = 12_000_000
"""Bytes of an answer: more than the kernel holds for a client."""

SOON: Any = {"send_timeout": 0.5}
"""Asserted: cut within ten seconds."""

WAYS: dict[str, bytes] = {
    "kept": request_bytes(CHAT, HELLO),
    "closing": request_bytes(CHAT, HELLO, headers={"connection": "close"}),
    "HTTP/1.0": request_bytes(CHAT, HELLO).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "another behind it": request_bytes(CHAT, HELLO) * 2,
}


def large() -> ScriptedEngine:
    return ScriptedEngine(ScriptedAnswer(("x" * LARGE,)))


@contextlib.asynccontextmanager
async def reluctant(server, sent):
    """A connection with a small window, which has sent something."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", server.port))
        await loop.sock_sendall(sock, sent)
        yield sock


async def length_of_head(sock):
    """Reads the head of an answer byte by byte: how long its body is."""
    loop, head = asyncio.get_running_loop(), b""
    while not head.endswith(b"\r\n\r\n"):
        head += await loop.sock_recv(sock, 1)
    return int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])


async def slowly(sock, size, pause=0.01):
    """Reads so many bytes, 64 KiB at a time; how many came."""
    loop, got = asyncio.get_running_loop(), 0
    while got < size and (part := await loop.sock_recv(sock, min(size - got, 1 << 16))):
        got += len(part)
        await asyncio.sleep(pause)
    return got


@pytest.mark.parametrize("way", WAYS)
async def test_a_client_that_does_not_read_a_whole_answer_is_cut(way):
    async with serving(large(), **SOON) as server, reluctant(server, WAYS[way]):
        async with at_most(10):
            await await_until(lambda: server.connections)
        await gone(server.connections)
        await gone(server.edge.in_flight)
        async with at_most(10):
            await await_until(lambda: not server.edge.body_budget.byte_count)  # all have left the middleware


@pytest.mark.parametrize("way", ["kept", "closing", "HTTP/1.0"])
async def test_a_client_that_reads_slowly_gets_the_whole_answer(way, monkeypatch):
    """Although that takes many times what an idle connection, or one that takes nothing, is given."""
    monkeypatch.setattr("antiphon.http.protocol.IDLE_SECONDS", 0.2)
    monkeypatch.setattr("antiphon.http.protocol.LINGER_SECONDS", 0.2)
    async with serving(large(), send_timeout=0.4) as server, reluctant(server, WAYS[way]) as sock:
        began = asyncio.get_running_loop().time()
        size = await length_of_head(sock)
        assert size > LARGE and await slowly(sock, size) == size
        assert asyncio.get_running_loop().time() - began > 1.0, "else this has shown nothing"
        async with at_most(10):
            assert await asyncio.get_running_loop().sock_recv(sock, 1) == b"", "closed once it has rested"


async def test_a_slow_reader_that_makes_progress_is_not_cut():
    """The kernel, which holds megabytes, takes nothing until a third of them is gone: over a second here."""
    async with serving(large(), send_timeout=0.4) as server, reluctant(server, WAYS["closing"]) as sock:
        size = await length_of_head(sock)
        slow = await slowly(sock, 2_500_000, pause=0.06)
        assert await slowly(sock, size - slow, pause=0) == size - slow


async def test_a_slow_reader_may_ask_again():
    async with serving(large(), send_timeout=0.4) as server, reluctant(server, WAYS["kept"]) as sock:
        for _ in range(2):
            size = await length_of_head(sock)
            assert await slowly(sock, size) == size
            await asyncio.get_running_loop().sock_sendall(sock, WAYS["kept"])


async def test_idle_connections_and_silent_streams_are_not_cut():
    """Nothing waits to be written there."""
    gate = asyncio.Event()
    async with (
        serving(ScriptedAnswer(gate=gate), send_timeout=0.1) as server,
        server.line() as line,
        server.line() as resting,
    ):
        await line.send(request_bytes(CHAT, HELLO | {"stream": True}))
        await asyncio.sleep(0.5)
        gate.set()
        assert b"[DONE]" in (await line.reply()).body
        await resting.send(request_bytes("/health"))
        assert (await resting.reply()).status == 200
