"""Refuses what a web page of another site sends, and, while there is no key, names that are not of this
machine."""

import ipaddress
import re
from collections.abc import Mapping

from starlette.types import Scope

from antiphon.errors import PermissionDenied, RequestError
from antiphon.http.state import AppState
from antiphon.settings.server import is_loopback

HOST = re.compile(
    r"(?P<name>\[[0-9a-f:.]+\]|\[v[0-9a-f]+\.[a-z0-9._~!$&'()*+,;=:-]+\]"
    r"|(?:[a-z0-9._~!$&'()*+,;=-]|%[0-9a-f]{2})+)(?::\d{0,5})?"
)
"""A value of the header Host, in lower case (RFC 9110 section 7.2). An address of http has a name, so it is
not empty."""

WEB = frozenset({"http", "https"})
"""Schemes of pages that a server can have: an extension's origin may hold any name, ours too."""

EVERYDAY_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Loopback names that need no parsing."""

Headers = Mapping[bytes, list[bytes]]


class OriginCheck:
    """Refuses what a web page of another site sends, and, while there is no key, names that are not of this
    machine.

    A page that rebinds its own name to 127.0.0.1 sends that name as Host; a page of another site says so in
    Origin or
    Sec-Fetch-Site.
    """

    def __init__(self, edge: AppState) -> None:
        self._local = not edge.verifiers
        self._hosts = frozenset(host.lower() for host in edge.settings.allowed_hosts)
        self._origins = frozenset(edge.settings.cors_origins)

    def require(self, scope: Scope, headers: Headers) -> None:
        """Raises what refuses the request."""
        host = self._checked_host(scope["http_version"], headers.get(b"host", []))
        if not self._same_site(headers, host) and not _is_navigation(scope["method"], headers):
            raise PermissionDenied(
                "refused: a web page of another origin sent this; ANTIPHON_CORS_ORIGINS allows some"
            )

    def _checked_host(self, version: str, values: list[bytes]) -> str:
        """The one host that a request names (RFC 9112 section 3.2). Empty where a client of HTTP/1.0 names
        none: no web page is one."""
        if not values and version == "1.0":
            return ""
        if len(values) != 1:
            many = "several Host headers" if values else "no Host header"
            raise RequestError(f"the request has {many}; send one")
        host = values[0].decode("latin-1").lower()
        match = HOST.fullmatch(host)
        if match is None or (match["name"].startswith("[") and not _is_literal(match["name"])):
            raise RequestError("the Host header is not valid; send a name or an address, and perhaps a port")
        if self._local and not self._is_ours(match["name"]):
            raise PermissionDenied(
                "refused: without a key only loopback names are served; use http://127.0.0.1, "
                "or add the name to ANTIPHON_ALLOWED_HOSTS"
            )
        return host

    def _is_ours(self, name: str) -> bool:
        return name in EVERYDAY_HOSTS or is_loopback(name) or name in self._hosts

    def _same_site(self, headers: Headers, host: str) -> bool:
        if origins := headers.get(b"origin"):
            origin = origins[0].decode("latin-1")
            known = origin in self._origins or "*" in self._origins
            scheme, _, name = origin.lower().partition("://")
            own = scheme in WEB and name == host != ""
            return len(origins) == 1 and (known or own)
        return all(site in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", ()))


def _is_literal(name: str) -> bool:
    """Whether brackets hold an address of IPv6, or of a version that is still to come."""
    if name.startswith("[v"):
        return True
    try:
        ipaddress.IPv6Address(name[1:-1])
    except ValueError:
        return False
    return True


def _is_navigation(method: str, headers: Headers) -> bool:
    """Whether a person follows a link here: the page that holds the link sees nothing of the answer."""
    return method == "GET" and b"origin" not in headers and headers.get(b"sec-fetch-mode") == [b"navigate"]
