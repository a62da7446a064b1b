"""How connections to a vendor are opened, used again and closed, and what of an answer stays on them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from socket import AF_INET, SO_SNDBUF, SOL_SOCKET, socket

import pytest

from antiphon.engines.vendors.address_guard import GuardedResolver, ResolvedAddress
from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.connection import MAX_UNREAD
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.pool import ConnectFailed, ConnectionPool, Server
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderFailed, ProviderUnavailable
from tests.support.certificates import write_certificate
from tests.support.waiting import await_until

CALL = UpstreamCall("/chat/completions", b'{"model":"fake"}', is_streamed=False)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
ANSWER = HEAD + b"content-length: 2\r\n\r\n{}"


class Vendor:
    """A vendor that gives its answers in turn, and then the last one again."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self.answers = list(answers)
        self.port = self.connections = self.open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(CALL.body))
                writer.write(self.answers[0] if len(self.answers) == 1 else self.answers.pop(0))
        writer.close()
        self.open -= 1


@asynccontextmanager
async def serve(*answers: bytes, tls: ssl.SSLContext | None = None) -> AsyncIterator[Vendor]:
    vendor = Vendor(answers or (ANSWER,))
    server = await asyncio.start_server(vendor.handle, "127.0.0.1", 0, ssl=tls)
    vendor.port = server.sockets[0].getsockname()[1]
    try:
        yield vendor
    finally:
        server.close()


@asynccontextmanager
async def connect(base: str, **options: object) -> AsyncIterator[Provider]:
    given = ProviderOptions("first", base, ("authorization", "Bearer "), allows_private=True, **options)  # type: ignore[arg-type]
    provider = Provider(given, OpenAIUpstream(), lambda: "a-key")
    try:
        yield provider
    finally:
        await provider.aclose()


async def ask(provider: Provider) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an answer."""
    response = await provider.send(CALL, asyncio.get_running_loop().time() + 50)
    try:
        return await response.read(), dict(response.headers)
    finally:
        response.close()
        await provider.end_request()


@asynccontextmanager
async def open_pool(
    port: int, addresses: Sequence[str], connect_timeout: float = 50
) -> AsyncIterator[ConnectionPool]:
    """A pool of a vendor whose name leads to these addresses."""

    def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
        return [
            ResolvedAddress(hostname=host, host=address, port=port, family=AF_INET, proto=6, flags=0)
            for address in addresses
        ]

    with ThreadPoolExecutor(1) as threads:
        resolver = GuardedResolver(threads, allows_private=True, timeout=50, look_up=look_up)
        pool = ConnectionPool(Server("vendor.test", port), resolver, 8, connect_timeout)
        yield pool
        await pool.aclose()


async def open_connection(pool: ConnectionPool) -> str:
    """Opens a connection, and returns the address to which it goes."""
    connection = await pool.open(asyncio.get_running_loop().time() + 50)
    assert connection.transport is not None
    peer: tuple[str, int] = connection.transport.get_extra_info("peername")
    connection.abort()
    pool.take_back(connection)
    return peer[0]


@asynccontextmanager
async def keep_silent(port: int) -> AsyncIterator[str]:
    """An address at whose port nobody accepts: its queue is full, so the system ignores who comes."""
    with socket() as listener:
        listener.bind(("127.0.0.2", port))
        listener.listen(0)
        waiting = [socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(("127.0.0.2", port))
        yield "127.0.0.2"
        for each in waiting:
            each.close()


async def test_the_next_address_is_tried_when_one_refuses():
    async with serve() as vendor, open_pool(vendor.port, ["127.0.0.3", "127.0.0.1"]) as pool:
        assert [await open_connection(pool) for _ in range(2)] == ["127.0.0.1"] * 2


async def test_the_next_address_is_tried_beside_a_silent_one():
    async with (
        serve() as vendor,
        keep_silent(vendor.port) as silent,
        open_pool(vendor.port, [silent, "127.0.0.1"]) as pool,
    ):
        assert await open_connection(pool) == "127.0.0.1"


async def test_a_connection_must_be_open_in_time():
    async with (
        serve() as vendor,
        keep_silent(vendor.port) as silent,
        open_pool(vendor.port, [silent], connect_timeout=0.1) as pool,
    ):
        with pytest.raises(ConnectFailed, match=r"cannot connect to vendor.test:\d+ in 0.1 seconds"):
            await open_connection(pool)
        with pytest.raises(TimeoutError):
            await pool.open(asyncio.get_running_loop().time() + 0.05)


async def test_the_addresses_take_turns():
    async with serve() as vendor:
        with socket() as other:
            other.bind(("127.0.0.2", vendor.port))
            other.listen()
            async with open_pool(vendor.port, ["127.0.0.1", "127.0.0.2"]) as pool:
                found = [await open_connection(pool) for _ in range(4)]
    assert found == ["127.0.0.1", "127.0.0.2"] * 2


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("antiphon.engines.vendors.pool.KEEP_ALIVE_S", 0.05)
    async with serve() as vendor, connect(f"http://127.0.0.1:{vendor.port}") as provider:
        await ask(provider)
        await await_until(lambda: vendor.open == 0, what="the idle connection is closed")
        await ask(provider)
        assert vendor.connections == 2


async def test_trailers_and_informational_headers_are_no_headers():
    early = b"HTTP/1.1 103 Early Hints\r\nx-early: 1\r\ncontent-encoding: gzip\r\n\r\n"
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx-late: 1\r\nx-last: 1\r\n\r\n"
    async with (
        serve(early + chunked, ANSWER) as vendor,
        connect(f"http://127.0.0.1:{vendor.port}") as provider,
    ):
        first, second = await ask(provider), await ask(provider)
    assert first == (b"{}", {"content-type": "application/json", "transfer-encoding": "chunked"})
    assert second == (b"{}", {"content-type": "application/json", "content-length": "2"})
    assert vendor.connections == 1


async def test_a_vendor_waits_for_a_slow_reader():
    """What the reader leaves is read from the network up to a bound."""
    sent, total = 0, 64 << 20

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_SNDBUF, 1 << 16)
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % total)
        with suppress(ConnectionError):
            while sent < total:
                writer.write(b"x" * (1 << 16))
                sent += 1 << 16
                await writer.drain()
            writer.close()

    async with await asyncio.start_server(stream, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with connect(address, max_answer_bytes=2 * total) as provider:
            response = await provider.send(CALL, asyncio.get_running_loop().time() + 50)
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < total // 2
            assert len(await response.read_part()) < 4 * MAX_UNREAD
            assert len(await response.read(2 * total)) > total // 2
            assert sent == total
            await provider.end_request()


@asynccontextmanager
async def serve_proxy(answer: bytes, port: int, heads: list[bytes]) -> AsyncIterator[str]:
    """A proxy that gives this answer to CONNECT, and then copies bytes between the client and a port."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if not answer.startswith(b"HTTP/1.1 200"):
            writer.close()
            return
        to_vendor = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(reader, to_vendor[1]))
            group.create_task(copy(to_vendor[0], writer))

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        yield f"http://me:pw@127.0.0.1:{server.sockets[0].getsockname()[1]}"


def load_certificate(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def test_a_tunnel_of_a_proxy_is_used_again(tmp_path: Path):
    certificate, key = write_certificate(tmp_path)
    heads: list[bytes] = []
    async with (
        serve(tls=load_certificate(certificate, key)) as vendor,
        serve_proxy(b"HTTP/1.1 200 Connected\r\n\r\n", vendor.port, heads) as proxy,
        connect(f"https://localhost:{vendor.port}/v1", proxy=proxy, ca_file=str(certificate)) as provider,
    ):
        assert [(await ask(provider))[0] for _ in range(2)] == [b"{}", b"{}"]
    assert heads == [
        b"CONNECT localhost:%d HTTP/1.1\r\nHost: localhost:%d\r\nUser-Agent: antiphon\r\n"
        b"Proxy-Authorization: Basic bWU6cHc=\r\n\r\n" % (vendor.port, vendor.port)
    ]


async def test_the_vendor_in_a_tunnel_is_checked(tmp_path: Path):
    async with (
        serve(tls=load_certificate(*write_certificate(tmp_path))) as vendor,
        serve_proxy(b"HTTP/1.1 200 Connected\r\n\r\n", vendor.port, []) as proxy,
        connect(f"https://localhost:{vendor.port}/v1", proxy=proxy) as provider,
    ):
        with pytest.raises(ProviderUnavailable) as caught:
            await ask(provider)
    assert "certificate verify failed" in str(caught.value.cause)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (b"", "the proxy closed the connection"),
        (b"junk\r\n\r\n", "the proxy gave no answer of HTTP"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "the proxy answered with the status 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nsurplus", "the proxy sent bytes into the tunnel"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_named(answer: bytes, cause: str):
    async with (
        serve() as vendor,
        serve_proxy(answer, vendor.port, []) as proxy,
        connect(f"https://localhost:{vendor.port}/v1", proxy=proxy) as provider,
    ):
        with pytest.raises(ProviderFailed) as caught:
            await ask(provider)
    assert str(caught.value.cause).endswith(cause)
