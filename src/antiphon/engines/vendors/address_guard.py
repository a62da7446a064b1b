"""Refuses connections to private addresses, unless the operator allowed them for the provider.

The address is checked after the name is resolved, and the connection goes to the checked address.
"""

import asyncio
import errno
import ipaddress
import re
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypedDict

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All IPv6 addresses that are given to hosts of the internet."""

NAT64_ADDRESSES = ipaddress.IPv6Network("64:ff9b::/96")
"""IPv6 addresses that a NAT64 turns into the IPv4 address in their last four bytes."""

NUMERIC_HOST = re.compile(r"(0[xX][0-9a-fA-F]*|\d+)(\.(0[xX][0-9a-fA-F]*|\d+)){0,3}\.?")
"""A host of one to four decimal or hexadecimal numbers, which some programs read as an IPv4 address."""


class ResolvedAddress(TypedDict):
    """One address of a name, in the form that aiohttp's resolvers have."""

    hostname: str
    host: str
    port: int
    family: int
    proto: int
    flags: int


LookUp = Callable[[str, int, int], list[ResolvedAddress]]
"""Resolves a name, its port and its family of addresses. Raises OSError."""


class AddressRefused(OSError):
    """Raised if a host name has an address that is not public."""


def is_public(host: str) -> bool:
    """Whether an IP address, in brackets or not, is public. Raises ValueError if the text is no IP
    address."""
    address: IPAddress = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global and not address.is_multicast
    embedded = _find_embedded_ipv4(address)
    if embedded is not None:
        return embedded.is_global and not embedded.is_multicast
    return address.is_global and address in GLOBAL_UNICAST


def _find_embedded_ipv4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Returns the IPv4 address to which connections to an IPv6 address go: of a mapped, 6to4 or NAT64
    address. Returns None for other IPv6 addresses."""
    if address in NAT64_ADDRESSES:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def is_literal(host: str) -> bool:
    """Whether a host is an IP address and no name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def is_unusual_number(host: str) -> bool:
    """Whether a host is an IPv4 address in a form that only some programs read: `127.1`, `2130706433`,
    `0x7f.1`."""
    return NUMERIC_HOST.fullmatch(host) is not None and not is_literal(host)


class GuardedResolver:
    """Resolves names in a thread, and refuses a name with an address that is not public."""

    def __init__(
        self,
        threads: Executor,
        allows_private: bool,
        timeout: float,
        proxy: str | None = None,
        look_up: LookUp | None = None,
    ) -> None:
        """`timeout`: seconds of one look-up. `proxy`: the host of the operator's proxy, which may be
        private. `look_up`: resolves names instead of the system."""
        self._resolve_name = look_up or look_up_name
        self._threads = threads
        self._allows_private = allows_private
        self._timeout = timeout
        self._proxy = proxy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolvedAddress]:
        """Returns the addresses of a name. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                addresses = await loop.run_in_executor(self._threads, self._resolve_name, host, port, family)
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, f"the name {host} was not resolved in time") from None
        if not self._allows_private and host != self._proxy:
            for address in addresses:
                if not is_public(address["host"]):
                    raise AddressRefused(
                        errno.EACCES,
                        f"the name {host} leads to a private address; private = true allows it",
                    )
        return addresses

    async def close(self) -> None:
        """Does nothing: the threads belong to the provider."""


def look_up_name(host: str, port: int, family: int) -> list[ResolvedAddress]:
    """Resolves a name. Raises OSError."""
    infos = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    return [
        ResolvedAddress(
            hostname=host,
            host=str(address[0]),
            port=int(address[1]),
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST,
        )
        for kind, _, protocol, _, address in infos
    ]
