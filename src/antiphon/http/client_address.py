"""The address of the client that sent a request, for the log and the audit.

Behind a proxy, the connection's address is the proxy's. Each proxy appends the address that it sees to the
header X-Forwarded-For. A client can send that header too, so only the part that trusted proxies wrote counts.
Nothing else uses this address: no right and no limit depends on it.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache

FORWARDED_FOR = b"x-forwarded-for"

MAX_HOPS = 32
"""The most addresses that are read. A client behind a trusted proxy can send a long header."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class TrustedProxies:
    """The proxies whose X-Forwarded-For counts."""

    def __init__(self, networks: Sequence[str]) -> None:
        """`networks`: addresses and networks such as 10.0.0.0/8. Raises ValueError."""
        self._networks = [ipaddress.ip_network(network, strict=False) for network in networks]

    def find_client(self, peer: str | None, headers: Mapping[bytes, list[bytes]]) -> str | None:
        """Returns the address of the client: the first one from the right that is not a trusted proxy. An
        entry that is no address ends the search at the proxy that wrote it. `peer`: the address of the
        connection; None for a connection without one, such as a Unix socket."""
        if not self._networks or peer is None or FORWARDED_FOR not in headers:
            return peer
        client, address = peer, parse_address(peer)
        header = b",".join(headers[FORWARDED_FOR]).decode("latin-1")
        hops = header.rsplit(",", MAX_HOPS)[-MAX_HOPS:]
        while address is not None and hops and any(address in network for network in self._networks):
            address = parse_address(hops.pop())
            client = client if address is None else str(address)
        return client


@lru_cache(maxsize=1024)
def parse_address(text: str) -> Address | None:
    """Returns the address of a hop; None if it is no address. Some proxies add the port, and brackets around
    an IPv6 address. An IPv4 address in IPv6 notation is returned as IPv4."""
    text = text.strip(" \t")
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
