"""Which addresses a provider may have, and which a name may lead to."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from socket import AF_INET

import pytest

from antiphon.engines.vendors.address_guard import AddressRefused, GuardedResolver, ResolvedAddress, is_public
from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import ProviderUnavailable, SettingsError
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream

CALL = UpstreamCall("/chat/completions", b'{"model": "fake", "messages": []}', is_streamed=False)

PRIVATE = [
    "127.0.0.1",
    "127.8.9.10",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::1",
    "::",
    "fd00::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:169.254.169.254",
    "64:ff9b::127.0.0.1",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2001:db8::1",
    "2001:0:7f00:1::",
]

PUBLIC = ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "2002:808:808::1"]


def build(url: str, allows_private: bool = False, **options: object) -> Provider:
    given = ProviderOptions("first", url, ("Authorization", "Bearer "), allows_private=allows_private)
    return Provider(given, OpenAIUpstream(), lambda: "a-key", **options)  # type: ignore[arg-type]


async def send(provider: Provider) -> int:
    """The status of a request. Raises a ProviderError."""
    try:
        response = await provider.send(CALL, asyncio.get_running_loop().time() + 50)
        await response.read()
        await provider.end_request()
        return response.status
    finally:
        await provider.aclose()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_known(address: str):
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_known(address: str):
    assert is_public(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_needs_the_operators_word(address: str):
    host = f"[{address.replace('%', '%25')}]" if ":" in address else address
    with pytest.raises(SettingsError, match="private = true"):
        build(f"http://{host}/v1")
    build(f"http://{host}/v1", allows_private=True)


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "127.1",
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "127.0.1",
        "017700000001",
        "127.0.0.1.",
    ],
)
def test_numbers_in_odd_forms_are_refused_in_any_case(host: str):
    for allows_private in (False, True):
        with pytest.raises(SettingsError, match="unusual form"):
            build(f"http://{host}/v1", allows_private)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "ip6-localhost"])
async def test_names_that_lead_to_private_addresses_are_refused(host: str, upstream: ScriptedUpstream):
    port, before = upstream.url.rpartition(":")[2], upstream.connections
    with pytest.raises(ProviderUnavailable) as caught:
        await send(build(f"http://{host}:{port}"))
    assert host not in caught.value.message and "127." not in caught.value.message
    assert upstream.connections == before


async def test_the_log_says_why_an_address_was_refused(upstream: ScriptedUpstream):
    with pytest.raises(ProviderUnavailable) as caught:
        await send(build(f"http://localhost:{upstream.url.rpartition(':')[2]}"))
    assert "leads to a private address; private = true" in str(caught.value.cause)


async def test_the_connection_goes_to_the_checked_address(upstream: ScriptedUpstream):
    asked: list[str] = []

    def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
        """A name that leads elsewhere at the second look."""
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "192.0.2.1"
        return [build_result(host, address, port)]

    port = upstream.url.rpartition(":")[2]
    provider = build(f"http://vendor.test:{port}", allows_private=True, look_up=look_up)
    assert await send(provider) == 200
    assert asked == ["vendor.test"]
    assert upstream.requests[-1].headers["host"].startswith("vendor.test:")


async def test_one_private_address_among_several_is_refused():
    def look_up(host: str, port: int, family: int) -> list[ResolvedAddress]:
        return [build_result(host, address, port) for address in ("8.8.8.8", "127.0.0.1")]

    with ThreadPoolExecutor(1) as threads:
        guarded = GuardedResolver(threads, False, 5, look_up=look_up)
        with pytest.raises(AddressRefused):
            await guarded.resolve("vendor.test", 443)
        proxied = GuardedResolver(threads, False, 5, "proxy.test", look_up)
        assert len(await proxied.resolve("proxy.test", 3128)) == 2


def build_result(host: str, address: str, port: int) -> ResolvedAddress:
    return ResolvedAddress(hostname=host, host=address, port=port, family=AF_INET, proto=6, flags=0)
