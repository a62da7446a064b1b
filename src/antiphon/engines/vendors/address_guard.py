"""Refuses connections to private addresses, unless the operator allowed them for the provider.

The address is checked after the name is resolved, and the connection goes to the checked address.
"""

import asyncio
import ipaddress
import socket
from concurrent.futures import Executor

from aiohttp.abc import AbstractResolver, ResolveResult

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressRefused(OSError):
    """A name leads to an address that is not public."""


def is_public(host: str) -> bool:
    """Whether the text is a public IP address."""
    address: IPAddress = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_global and not address.is_multicast


def is_literal(host: str) -> bool:
    """Whether a host is an IP address and no name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class GuardedResolver(AbstractResolver):
    """Resolves names in a thread, and refuses a name with an address that is not public."""

    def __init__(self, threads: Executor, allows_private: bool, timeout: float) -> None:
        """`timeout`: seconds of one look-up."""
        self._threads = threads
        self._allows_private = allows_private
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns the addresses of a name. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout):
                found = await loop.run_in_executor(self._threads, _look_up, host, port, family)
        except TimeoutError:
            raise OSError(f"the name {host} was not resolved in time") from None
        for each in found:
            if not self._allows_private and not is_public(each["host"]):
                raise AddressRefused(f"the name {host} leads to a private address")
        return found

    async def close(self) -> None:
        """Does nothing: the threads belong to the provider."""


def _look_up(host: str, port: int, family: int) -> list[ResolveResult]:
    """Resolves a name. Raises OSError."""
    infos = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=int(address[1]),
            family=kind,
            proto=protocol,
            flags=socket.AI_NUMERICHOST,
        )
        for kind, _, protocol, _, address in infos
    ]
