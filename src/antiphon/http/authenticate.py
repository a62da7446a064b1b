"""Checks who sends a request: its Host and Origin headers, then its credential. Every path needs a
credential, except the paths of public endpoints.

The path comes from the request line alone, and never from a URL built from the Host header.
"""

import ipaddress
import re
from collections.abc import Mapping
from types import MappingProxyType

from antiphon.auth.base import NO_SCOPE, REFUSAL, RequestedScope
from antiphon.dialects.http_types import PROJECT_HEADERS, USER_HEADERS, Request
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, Right
from antiphon.domain.values import replace
from antiphon.errors import (
    AuthenticationFailed,
    InvalidValue,
    MissingParameter,
    PermissionDenied,
    RequestError,
)
from antiphon.http.protocol import Exchange
from antiphon.http.state import AppState
from antiphon.settings.server import is_loopback

MAX_CREDENTIAL_BYTES = 8192
"""The largest credential in bytes, enough for an issuer's tokens. A longer one is refused before it is
hashed."""

KEY_HEADERS = (b"x-api-key", b"api-key")
SCOPE_HEADERS = (*PROJECT_HEADERS, *USER_HEADERS)

PROJECT_PARAMETER = PROJECT_HEADERS[0].decode()
"""The parameter that an error about the project names."""

SCOPE_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

RIGHT_NAMES = MappingProxyType(
    {
        Right.READ: "read anything",
        Right.GENERATE: "generate",
        Right.WRITE: "change knowledge tables; a service key can if its endpoints name them: /v1/knowledge/*",
        Right.ADAPT: "load or unload adapters; a service key can, for its project, if its endpoints name "
        "them: /empower/api/v1/lora*",
        Right.OBSERVE: "see the numbers of the whole server",
        Right.MANAGE: "manage keys or members",
    }
)
"""The name of each right in a refusal."""

HOST_VALUE = re.compile(
    r"(?P<name>\[[0-9a-f:.]+\]|\[v[0-9a-f]+\.[a-z0-9._~!$&'()*+,;=:-]+\]"
    r"|(?:[a-z0-9._~!$&'()*+,;=-]|%[0-9a-f]{2})+)(?::\d{0,5})?"
)
"""A value of the header Host in lower case (RFC 9110 section 7.2). The name is not empty."""

PAGE_HEADERS = (b"origin", b"sec-fetch-site")
"""Headers that tell which web page sent a request."""

MAX_REMEMBERED_HOSTS = 64
"""The most values of the Host header that are remembered. Most servers get one or two."""

WEB_SCHEMES = frozenset({"http", "https"})
"""Schemes of web pages. The origin of a browser extension has another scheme, and can contain any host name,
even this server's."""

COMMON_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Loopback names that need no parsing."""

Headers = Mapping[bytes, list[bytes]]


class OriginCheck:
    """Refuses requests that a web page of another site sends. If no key is configured, it also refuses
    requests whose host name is not a name of this machine.

    A page that rebinds its own name to 127.0.0.1 sends that name as Host. The headers Origin and
    Sec-Fetch-Site reveal a page of another site.
    """

    def __init__(self, app_state: AppState) -> None:
        self._requires_loopback = not app_state.verifiers
        self._hosts = frozenset(host.lower() for host in app_state.settings.allowed_hosts)
        self._origins = frozenset(app_state.settings.cors_origins)
        self._accepted_hosts: set[bytes] = set()
        """Some values of the Host header that were accepted."""

    def require_allowed(self, exchange: Exchange) -> None:
        """Raises PermissionDenied or RequestError if the request is refused."""
        headers = exchange.headers
        hosts = headers.get(b"host", [])
        if len(hosts) == 1 and hosts[0] in self._accepted_hosts and headers.keys().isdisjoint(PAGE_HEADERS):
            return
        host = self._require_host(exchange.version, hosts)
        if host and len(self._accepted_hosts) < MAX_REMEMBERED_HOSTS:
            self._accepted_hosts.add(hosts[0])
        # A person's click on a link to this server. The page with the link cannot read the answer.
        is_navigation = (
            exchange.method == "GET"
            and b"origin" not in headers
            and headers.get(b"sec-fetch-mode") == [b"navigate"]
        )
        if not (is_navigation or self._is_same_site(headers, host)):
            raise PermissionDenied(
                "refused: a web page of another origin sent this; ANTIPHON_CORS_ORIGINS allows some"
            )

    def _require_host(self, version: str, values: list[bytes]) -> str:
        """Returns the value of the Host header (RFC 9112 section 3.2), which must be present once. Raises
        PermissionDenied or RequestError. Returns an empty text if an HTTP/1.0 client omits the header,
        because browsers always send it."""
        if not values and version == "1.0":
            return ""
        if len(values) != 1:
            host_headers = "several Host headers" if values else "no Host header"
            raise RequestError(f"the request has {host_headers}; send one")
        host = values[0].decode("latin-1").lower()
        match = HOST_VALUE.fullmatch(host)
        if match is None or (match["name"].startswith("[") and not _is_ip_literal(match["name"])):
            raise RequestError("the Host header is not valid; send a name or an address, and perhaps a port")
        name = match["name"]
        is_own_name = name in COMMON_LOOPBACK or is_loopback(name) or name in self._hosts
        if self._requires_loopback and not is_own_name:
            raise PermissionDenied(
                "refused: without a key only loopback names are served; use http://127.0.0.1, "
                "or add the name to ANTIPHON_ALLOWED_HOSTS"
            )
        return host

    def _is_same_site(self, headers: Headers, host: str) -> bool:
        """Whether the request comes from this server's pages, from an allowed origin, or from no web page.
        Reads the headers Origin and Sec-Fetch-Site."""
        if origins := headers.get(b"origin"):
            origin = origins[0].decode("latin-1")
            is_allowed = origin in self._origins or "*" in self._origins
            scheme, _, name = origin.lower().partition("://")
            is_same_origin = scheme in WEB_SCHEMES and name == host != ""
            return len(origins) == 1 and (is_allowed or is_same_origin)
        return all(site in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", ()))


def _is_ip_literal(name: str) -> bool:
    """Whether the text in brackets is an IPv6 address or an address of a later IP version."""
    if name.startswith("[v"):
        return True
    try:
        ipaddress.IPv6Address(name[1:-1])
    except ValueError:
        return False
    return True


class Authenticator:
    """Finds the caller of a request: it asks each verifier in order. If there are no verifiers, every caller
    is the local anonymous actor."""

    def __init__(self, app_state: AppState) -> None:
        self._verifiers = app_state.verifiers
        self._get_dialect = app_state.get_dialect
        self._checks_rights = app_state.keys_on
        """Whether keys can have different rights. If not, no right is checked."""

    async def authenticate(self, request: Request, right: Right | None) -> Actor:
        """Returns the caller. `right` is the right that the caller needs; None accepts everybody. Raises
        AuthenticationFailed, PermissionDenied or a RequestError."""
        if right is None or not self._verifiers:
            return LOCAL_ANONYMOUS
        headers = request.headers
        token = read_credential(headers)
        requested_scope = NO_SCOPE if headers.keys().isdisjoint(SCOPE_HEADERS) else read_scope(headers)
        if token is None:
            raise AuthenticationFailed(REFUSAL)
        try:
            actor = await self._find_actor(token, requested_scope)
        except (PermissionDenied, MissingParameter) as error:
            # Some products' clients send a fixed project id by default. If the caller has no project with
            # this id, the id means the key's own project. Some products let users with several projects name
            # none.
            dialect, project = self._get_dialect(request.path), requested_scope.project
            is_placeholder = project == dialect.placeholder_project
            may_choose = is_placeholder if project is not None else dialect.chooses_project
            if not may_choose or error.param != PROJECT_PARAMETER:
                raise
            own_scope = replace(requested_scope, project=None, takes_oldest=dialect.chooses_project)
            actor = await self._find_actor(token, own_scope)
            request.chosen_project = actor.project
        if self._checks_rights and (actor.grant.endpoints is not None or right not in actor.rights):
            require_right(actor, right, request.path)
        return actor

    async def _find_actor(self, token: str, requested_scope: RequestedScope) -> Actor:
        """Asks the verifiers in order, and returns the actor of the first one that knows the token. Raises
        AuthenticationFailed if no verifier knows it."""
        for verifier in self._verifiers:
            if (actor := await verifier.verify(token, requested_scope)) is not None:
                return actor
        raise AuthenticationFailed(REFUSAL)


def read_scope(headers: Headers) -> RequestedScope:
    """Returns the project and the user that the headers select. Raises InvalidValue if two headers with the
    same meaning differ."""
    return RequestedScope(_read_scope_id(headers, PROJECT_HEADERS), _read_scope_id(headers, USER_HEADERS))


def _read_scope_id(headers: Headers, names: tuple[bytes, ...]) -> str | None:
    """Returns the id of a project or user in headers with the same meaning, or None. An empty header counts
    as absent. Raises InvalidValue for different ids and for an invalid one."""
    values = {value.strip() for name in names for value in headers.get(name, ()) if value.strip()}
    param = names[0].decode()
    if len(values) > 1:
        raise InvalidValue(f"the request has two different values of {param}; send one", param=param)
    if not values:
        return None
    value = values.pop()
    if SCOPE_ID.fullmatch(value) is None:
        raise InvalidValue(
            f"{param} must be an id of at most 64 letters, digits, dots, dashes or underscores", param=param
        )
    return value.decode("ascii")


def require_right(actor: Actor, right: Right, path: str) -> None:
    """Raises PermissionDenied, which names the missing right or path."""
    if right is Right.WRITE:
        has_right = actor.may_write(path)
    else:
        has_right = actor.may_adapt(path) if right is Right.ADAPT else right in actor.rights
    if not has_right:
        raise PermissionDenied(f"this key may not {RIGHT_NAMES[right]}")
    if actor.grant.endpoints is not None and not actor.may_call(path):
        raise PermissionDenied("this key may not call this path")


def read_credential(headers: Headers) -> str | None:
    """Returns the credential in the headers. Returns None if there is none, or if it is too long or not
    UTF-8. An empty header counts as absent. Raises RequestError if the headers contain different
    credentials."""
    tokens: set[bytes] = set()
    for value in headers.get(b"authorization", ()):
        if value.strip():
            scheme, _, token = value.strip().partition(b" ")
            # Bytes that equal no key stand for another scheme than Bearer.
            tokens.add(token.strip() if scheme.lower() == b"bearer" else b"\0" + value)
    for name in KEY_HEADERS:
        if name in headers:
            tokens.update(filter(None, map(bytes.strip, headers[name])))
    if len(tokens) > 1:
        raise RequestError("the request carries two different keys; send one", param="authorization")
    credential = tokens.pop() if tokens else b""
    if not 0 < len(credential) <= MAX_CREDENTIAL_BYTES:
        return None
    try:
        return credential.decode()
    except UnicodeDecodeError:
        return None
