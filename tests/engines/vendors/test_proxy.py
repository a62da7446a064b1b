"""Vendors behind the operator's proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderFailed, ProviderRefused

CALL = UpstreamCall("/chat/completions", b'{"model":"fake"}', is_streamed=False)
CREDENTIAL = "Proxy-Authorization: Basic bWU6cHc="


@asynccontextmanager
async def serve_proxy(answer: bytes, heads: list[str]) -> AsyncIterator[str]:
    """A proxy that gives one answer to everything, and keeps the heads of requests. Yields its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head.decode())
                if head.startswith(b"POST"):
                    await reader.readexactly(len(CALL.body))
                writer.write(answer)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://me:pw@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def build(base: str, proxy: str) -> Provider:
    options = ProviderOptions("first", base, ("authorization", "Bearer "), allows_private=True, proxy=proxy)
    return Provider(options, OpenAIUpstream(), lambda: "key")


async def test_a_proxy_gets_the_whole_address_and_its_credential():
    heads: list[str] = []
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    async with serve_proxy(answer, heads) as address:
        provider = build("http://vendor.test:8080/v1", address)
        for _ in range(2):  # the second on the same connection
            response = await provider.send(CALL, asyncio.get_running_loop().time() + 50)
            assert await response.read() == b"{}"
            await provider.end_request()
        await provider.aclose()
    assert len(heads) == 2
    for head in heads:
        line, *headers = head.split("\r\n")
        assert line == "POST http://vendor.test:8080/v1/chat/completions HTTP/1.1"
        assert CREDENTIAL in headers and "authorization: Bearer key" in headers
        assert "Host: vendor.test:8080" in headers


async def test_a_tunnel_gets_no_key_of_the_vendor():
    heads: list[str] = []
    async with serve_proxy(b"HTTP/1.1 407 No\r\ncontent-length: 0\r\n\r\n", heads) as address:
        provider = build("https://vendor.test/v1", address)
        with pytest.raises(ProviderFailed) as caught:
            await provider.send(CALL, asyncio.get_running_loop().time() + 50)
        await provider.aclose()
    assert caught.value.cause is not None and "407" in caught.value.cause
    assert "pw" not in caught.value.cause + caught.value.message
    (head,) = heads
    assert head.startswith("CONNECT vendor.test:443 HTTP/1.1\r\n")
    assert CREDENTIAL in head and "Bearer" not in head


async def test_a_proxy_that_echoes_its_credential_shows_it_to_nobody():
    heads: list[str] = []
    body = '{"error":{"message":"bad bWU6c2VjcmV0LW9mLXRoZS1wcm94eQ== or secret-of-the-proxy"}}'
    answer = f"HTTP/1.1 400 No\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()
    async with serve_proxy(answer, heads) as address:
        provider = build("http://vendor.test/v1", address.replace("pw", "secret-of-the-proxy"))
        with pytest.raises(ProviderRefused) as caught:
            await provider.send(CALL, asyncio.get_running_loop().time() + 50)
        await provider.aclose()
    assert caught.value.message.endswith(": bad *** or ***")
