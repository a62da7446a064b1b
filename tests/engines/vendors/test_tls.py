"""Vendors over TLS: who answers is checked, by the system's certificates or the operator's `ca_file`."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import AntiphonError
from tests.support.certificates import write_certificate

CALL = UpstreamCall("/chat/completions", b'{"model":"fake"}', is_streamed=False)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def serve_tls(certificate: Path, key: Path, heads: list[bytes]) -> AsyncIterator[int]:
    """A vendor with a certificate for `localhost`. Keeps the heads of requests, and yields its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head)
                await reader.readexactly(len(CALL.body))
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def send(address: str, ca_file: Path | None) -> bytes:
    """The answer of the vendor, asked with a key."""
    options = ProviderOptions(
        "first",
        address,
        ("authorization", "Bearer "),
        allows_private=True,
        ca_file=None if ca_file is None else str(ca_file),
        connect_timeout=50,
    )
    provider = Provider(options, OpenAIUpstream(), lambda: "key")
    try:
        response = await provider.send(CALL, asyncio.get_running_loop().time() + 50)
        return await response.read()
    finally:
        await provider.aclose()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return write_certificate(tmp_path)


async def test_the_operators_certificate_is_trusted(pair: tuple[Path, Path]):
    heads: list[bytes] = []
    async with serve_tls(*pair, heads) as port:
        assert await send(f"https://localhost:{port}/v1", pair[0]) == b"{}"
    assert heads[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(("host", "is_trusted"), [("localhost", False), ("127.0.0.1", True)])
async def test_no_key_goes_to_another_server(pair: tuple[Path, Path], host: str, is_trusted: bool):
    """An unknown certificate, and a known one for another name."""
    heads: list[bytes] = []
    async with serve_tls(*pair, heads) as port:
        with pytest.raises(AntiphonError):
            await send(f"https://{host}:{port}/v1", pair[0] if is_trusted else None)
    assert heads == []


@contextmanager
def serve_endless_stream(certificate: Path, key: Path) -> Iterator[tuple[int, threading.Event]]:
    """A vendor that writes one stream and reads nothing more, not even the end of TLS. Yields its port, and
    whether its connection ended."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    is_left = threading.Event()

    def stream(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(4096)
            secured.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                secured.sendall(b"5\r\n: hi\n\r\n")
                time.sleep(0.02)
        is_left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=stream, args=(listener,))
        thread.start()
        yield listener.getsockname()[1], is_left
        thread.join()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_leaves_ends_the_vendors_stream_at_once(run: Callable[..., None], tmp_path: Path):
    certificate, key = write_certificate(tmp_path)

    async def leave(port: int, is_left: threading.Event) -> None:
        address = f"https://localhost:{port}"
        options = ProviderOptions(
            "first", address, ("authorization", "Bearer "), allows_private=True, ca_file=str(certificate)
        )
        provider = Provider(options, OpenAIUpstream(), lambda: "key")
        response = await provider.send(CALL, asyncio.get_running_loop().time() + 60)
        assert await response.read_part()
        response.close()
        assert await asyncio.to_thread(is_left.wait, 25), "an orderly end of TLS takes 30 seconds"
        await provider.end_request()
        await provider.aclose()

    with serve_endless_stream(certificate, key) as served:
        run(leave(*served))
