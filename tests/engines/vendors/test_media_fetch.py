"""An address of a caller is fetched only from hosts that the operator allows, and never from a private
network."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_INET

import pytest

from antiphon.domain.context import SystemClock
from antiphon.engines.vendors.address_guard import LookUp, ResolvedAddress
from antiphon.engines.vendors.media_fetch import MediaFetcher
from antiphon.engines.vendors.pool import build_tls_context
from antiphon.errors import InvalidValue
from tests.support.certificates import write_certificate

FIELD = "messages[0].content[0].image_url"
FILE = b"\x89PNG and what follows"
FOUND = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: %d\r\n\r\n" % len(FILE) + FILE


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("tls"))


class FileHost:
    """A server of TLS at loopback, for the name `localhost`. Its script writes the answer."""

    def __init__(self) -> None:
        self.answer: bytes | Callable[[asyncio.StreamWriter], Awaitable[None]] = FOUND
        self.heads: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            if isinstance(self.answer, bytes):
                writer.write(self.answer)
            else:
                await self.answer(writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def hosting(certificate: tuple[Path, Path]) -> AsyncIterator[FileHost]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    host = FileHost()
    server = await asyncio.start_server(host.serve, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


class Names:
    """Resolves names to addresses by turns, and counts."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.asked: list[str] = []

    def __call__(self, host: str, port: int, family: int) -> list[ResolvedAddress]:
        self.asked.append(host)
        address = self.addresses[min(len(self.asked), len(self.addresses)) - 1]
        return [
            ResolvedAddress(hostname=host, host=each, port=port, family=AF_INET, proto=6, flags=0)
            for each in address.split()
        ]


@asynccontextmanager
async def fetching(
    certificate: tuple[Path, Path] | None,
    *allowed: str,
    private: bool = True,
    look_up: LookUp | None = None,
    seconds: float = 50,
) -> AsyncIterator[Callable[..., Awaitable[bytes]]]:
    file = None if certificate is None else str(certificate[0])
    fetcher = MediaFetcher(
        allowed, private, look_up or Names("127.0.0.1"), lambda: build_tls_context(file), seconds
    )

    async def fetch(url: str, max_bytes: int = 1_000) -> bytes:
        return await fetcher.fetch(url, max_bytes, FIELD, "someone", SystemClock())

    try:
        yield fetch
    finally:
        await fetcher.aclose()


async def refuse(fetch: Callable[..., Awaitable[bytes]], url: str, words: str) -> InvalidValue:
    with pytest.raises(InvalidValue) as refused:
        await fetch(url)
    error = refused.value
    assert words in error.message and error.param == FIELD and error.message.startswith(FIELD)
    assert "127.0.0.1" not in error.message and "private" not in error.message
    return error


async def test_a_file_of_an_allowed_host_is_fetched_without_a_header_of_anyone(certificate) -> None:
    async with hosting(certificate) as host, fetching(certificate, f"localhost:{host.port}") as fetch:
        assert await fetch(f"https://LOCALHOST:{host.port}/a/b.png?x=1&y=%20") == FILE
        lines = host.heads[0].decode().split("\r\n")
        assert lines[:2] == ["GET /a/b.png?x=1&y=%20 HTTP/1.1", f"Host: localhost:{host.port}"]
        assert {line.partition(":")[0].lower() for line in lines[1:] if line} == {
            "host", "user-agent", "accept", "accept-encoding", "connection",
        }  # fmt: skip


async def test_the_name_is_resolved_once_and_the_connection_goes_there(certificate) -> None:
    names = Names("127.0.0.1", "192.0.2.1")
    async with (
        hosting(certificate) as host,
        fetching(certificate, f"localhost:{host.port}", look_up=names) as fetch,
    ):
        assert await fetch(f"https://localhost:{host.port}/") == FILE
        assert names.asked == ["localhost"]


async def test_no_private_address_is_reached_and_the_error_does_not_tell_it_apart(certificate) -> None:
    def fail(host: str, port: int, family: int) -> list[ResolvedAddress]:
        raise OSError("no such name")

    async with hosting(certificate) as host:
        url, allowed = f"https://localhost:{host.port}/", f"localhost:{host.port}"
        sentences = set()
        for look_up in (Names("127.0.0.1"), Names("8.8.8.8 127.0.0.1"), Names("169.254.169.254"), fail):
            async with fetching(certificate, allowed, private=False, look_up=look_up) as fetch:
                sentences.add((await refuse(fetch, url, "cannot be reached")).message)
        assert len(sentences) == 1 and host.connections == 0


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.0.0.1", "169.254.169.254", "0.0.0.0", "[::1]", "[fd00::1]", "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]", "2130706433", "0x7f.1", "127.1", "0177.0.0.1",
    ],
)  # fmt: skip
async def test_numbers_that_are_no_public_address_are_not_reached(host: str) -> None:
    names = Names("8.8.8.8")
    async with fetching(None, "*", host, private=False, look_up=names) as fetch:
        await refuse(fetch, f"https://{host}/", "cannot be reached")
    assert names.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "https://good.test@evil.test/", "https://good.test\\@evil.test/", "https://good.test:443@evil.test/",
        "https://evil.test\\.good.test/", "https://good.test#@evil.test/", "https://good.test./", "https:///x",
        "https://good.test/a#b", "https://good.test/a b", "https://good.test/\r\nHost: evil.test",
        "http://good.test/", "https://good.test:99999999/", "https://good_test/", "https://gооd.test/",
        "file:///etc/passwd", "https://-good.test/", "https://[::1%25lo]/", "HTTPS:good.test/",
    ],
)  # fmt: skip
async def test_an_address_that_programs_read_differently_is_not_read_at_all(url: str) -> None:
    names = Names("8.8.8.8")
    async with fetching(None, "*", "good.test", look_up=names) as fetch:
        await refuse(fetch, url, "has an address that is not fetched")
    assert names.asked == []


async def test_only_named_hosts_and_ports_are_fetched_from() -> None:
    names = Names("8.8.8.8")
    async with fetching(None, "good.test", "good.test:8443", look_up=names) as fetch:
        for url in ("https://other.test/", "https://good.test.evil.test/", "https://good.test:22/"):
            await refuse(fetch, url, "from which this server fetches nothing")
    async with fetching(None, "*", look_up=names) as fetch:
        await refuse(fetch, "https://good.test:22/", "from which this server fetches nothing")
    async with fetching(None, look_up=names) as fetch:
        await refuse(fetch, "https://good.test/", "from which this server fetches nothing")
    assert names.asked == []


async def test_no_redirect_is_followed(certificate) -> None:
    async with hosting(certificate) as host, fetching(certificate, f"localhost:{host.port}") as fetch:
        for status in (301, 302, 303, 307, 308):
            host.answer = (
                f"HTTP/1.1 {status} Moved\r\nlocation: https://localhost:{host.port}/secret\r\n"
                "content-length: 0\r\n\r\n"
            ).encode()
            await refuse(fetch, f"https://localhost:{host.port}/", "is a redirect")
        assert host.connections == 5


async def test_other_answers_are_refused(certificate) -> None:
    async def stream_for_ever(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"400\r\n" + bytes(1024) + b"\r\n")
            await writer.drain()

    long = b"HTTP/1.1 200 OK\r\ncontent-length: 9999999\r\n\r\n" + bytes(5_000)
    packed = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx"
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\nxx"
    cases: list[tuple[bytes | Callable[[asyncio.StreamWriter], Awaitable[None]], str]] = [
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answered with the status 404"),
        (long, "has more than 1,000 bytes"),
        (stream_for_ever, "has more than 1,000 bytes"),
        (packed, "the connection broke, or the answer is no HTTP/1.1"),
        (cut, "the connection broke, or the answer is no HTTP/1.1"),
        (b"SSH-2.0-OpenSSH\r\n", "the connection broke, or the answer is no HTTP/1.1"),
    ]
    async with hosting(certificate) as host, fetching(certificate, f"localhost:{host.port}") as fetch:
        for answer, words in cases:
            host.answer = answer
            await refuse(fetch, f"https://localhost:{host.port}/", words)


async def test_a_slow_host_is_given_up(certificate) -> None:
    async def say_nothing(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    async with (
        hosting(certificate) as host,
        fetching(certificate, f"localhost:{host.port}", seconds=0.3) as fetch,
    ):
        host.answer = say_nothing
        await refuse(fetch, f"https://localhost:{host.port}/", "did not arrive within 0.3 seconds")


async def test_a_host_with_an_unknown_certificate_is_not_asked(certificate) -> None:
    async with hosting(certificate) as host, fetching(None, f"localhost:{host.port}") as fetch:
        await refuse(fetch, f"https://localhost:{host.port}/", "cannot be reached")
        assert host.heads == []
