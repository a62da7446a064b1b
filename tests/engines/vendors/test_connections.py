"""Connections on which a vendor sends too much, too little, or reads nothing more."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil
import pytest

from antiphon.engines.vendors.address_guard import GuardedResolver
from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.connection import (
    AnswerRefused,
    ConnectionLost,
    UpstreamResponse,
    VendorConnection,
)
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.pool import ConnectionPool, Server
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderFailed, ProviderTimeout
from tests.support.references import is_freed
from tests.support.waiting import await_until

ONE = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\none"
TWO = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\ntwo"

Script = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
"""Answers one request, told by its number from 1 on."""


@dataclass
class RawVendor:
    port: int = 0
    requests: int = 0
    open: int = 0


@asynccontextmanager
async def serve(script: Script) -> AsyncIterator[RawVendor]:
    """A vendor that reads heads of requests, whose bodies are read by nobody, and writes bytes."""
    vendor = RawVendor()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        vendor.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                vendor.requests += 1
                await script(writer, vendor.requests)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            vendor.open -= 1

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    vendor.port = server.sockets[0].getsockname()[1]
    try:
        yield vendor
    finally:
        server.close()


@asynccontextmanager
async def connect(vendor: RawVendor, connections: int = 8) -> AsyncIterator[Provider]:
    base = f"http://127.0.0.1:{vendor.port}/v1"
    options = ProviderOptions(
        "first", base, ("authorization", "Bearer "), allows_private=True, connections=connections
    )
    provider = Provider(options, OpenAIUpstream(), lambda: "a-key")
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(provider: Provider, body: bytes = b"", seconds: float = 50) -> bytes:
    call = UpstreamCall("/chat/completions", body, is_streamed=False)
    response = await provider.send(call, asyncio.get_running_loop().time() + seconds)
    try:
        return await response.read()
    finally:
        response.close()
        await provider.end_request()


def open_pool(vendor: RawVendor, limit: int) -> ConnectionPool:
    server = Server("127.0.0.1", vendor.port)
    return ConnectionPool(server, GuardedResolver(ThreadPoolExecutor(1), True, 50), limit, 50)


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection without order."""
    stream: socket.socket = writer.get_extra_info("socket")
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def count_connections(port: int) -> int:
    found = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == port for each in found)


@pytest.mark.parametrize("pause", [0.0, 0.05])
@pytest.mark.parametrize("surplus", [TWO, TWO[:20], b"HTTP/1.1 408 Late\r\ncontent-length: 0\r\n\r\n"])
async def test_bytes_after_an_answer_answer_no_other_request(surplus: bytes, pause: float):
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(ONE[:-1])
        await asyncio.sleep(0.02)  # the body is awaited when it ends
        writer.write(ONE[-1:] + (surplus if not pause and number == 1 else b""))
        await asyncio.sleep(pause)
        if pause and number == 1:
            writer.write(surplus)

    async with serve(answer) as vendor, connect(vendor) as provider:
        assert await ask(provider) == b"one"
        if pause:
            await await_until(lambda: vendor.open == 0, what="the surplus has closed the connection")
        assert [await ask(provider), await ask(provider)] == [b"one", b"one"]
        assert vendor.requests == 3


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What came on all connections. A reset may discard what has not come."""
    found: list[bytes] = []
    receive = VendorConnection.data_received

    def note(connection: VendorConnection, data: bytes) -> None:
        found.append(data)
        receive(connection, data)

    monkeypatch.setattr(VendorConnection, "data_received", note)
    return found


@pytest.mark.parametrize("begun", [b"H", ONE[:12], ONE[:30], b"HTTP/1.1 100 Continue\r\n\r\n"])
@pytest.mark.parametrize("is_reset", [True, False])
async def test_a_begun_answer_is_not_asked_again(begun: bytes, is_reset: bool, received: list[bytes]):
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 1:
            writer.write(ONE)
            return
        writer.write(begun)
        await await_until(lambda: b"".join(received).endswith(begun), what="it has begun")
        reset(writer) if is_reset else writer.close()

    async with serve(answer) as vendor, connect(vendor) as provider:
        assert await ask(provider) == b"one"
        with pytest.raises(ProviderFailed):
            await ask(provider)
        assert vendor.requests == 2


async def test_a_reset_breaks_a_body_without_a_length(received: list[bytes]):
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}")
        await await_until(lambda: b"".join(received).endswith(b"{}"), what="the body has come")
        reset(writer)

    async with serve(answer) as vendor, connect(vendor) as provider:
        with pytest.raises(ConnectionLost):
            await ask(provider)


async def test_a_vendor_that_reads_no_more_keeps_no_connection():
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        await asyncio.sleep(3600)

    async with serve(answer) as vendor, connect(vendor) as provider:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask(provider, b"x" * 16_000_000, seconds=600))
            await await_until(lambda: vendor.requests == 1, what="the vendor is asked")
            asking.cancel()  # the client leaves
        await await_until(lambda: count_connections(vendor.port) == 0, 10, "the connection is closed")


async def test_a_request_that_leaves_passes_its_turn_on():
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(ONE)

    async with serve(answer) as vendor, asyncio.TaskGroup() as group:
        pool, deadline = open_pool(vendor, limit=1), asyncio.get_running_loop().time() + 50
        first = await pool.open(deadline)
        leaving, waiting = (group.create_task(pool.open(deadline)) for _ in range(2))
        await asyncio.sleep(0.05)
        pool.take_back(first)  # it is the turn of the one that leaves
        leaving.cancel()
        assert await waiting is first
        await pool.aclose()


async def test_the_log_says_that_all_connections_are_in_use():
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        await asyncio.sleep(3600)

    async with serve(answer) as vendor, connect(vendor, connections=1) as provider:
        async with asyncio.TaskGroup() as group:
            first = group.create_task(ask(provider))
            await await_until(lambda: vendor.requests == 1, what="the only connection is in use")
            with pytest.raises(ProviderTimeout) as caught:
                await ask(provider, seconds=0.2)
            first.cancel()
        assert "all 1 connections were in use" in str(caught.value.cause)
        assert vendor.requests == 1


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"no answer\r\n\r\n", AnswerRefused),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20, AnswerRefused),
        (ONE[:12], ConnectionLost),
    ],
)
async def test_what_a_failed_call_held_is_freed_at_once(sent: bytes, error: type[OSError]):
    async def answer(writer: asyncio.StreamWriter, number: int) -> None:
        writer.write(sent)
        writer.close()

    async with serve(answer) as vendor:
        pool = open_pool(vendor, 1)

        async def call() -> None:
            deadline = asyncio.get_running_loop().time() + 50
            response = UpstreamResponse(await pool.open(deadline), pool.take_back, deadline)
            await response.exchange(b"GET / HTTP/1.1\r\n\r\n", b"")

        assert await is_freed(call, error)
        await pool.aclose()
