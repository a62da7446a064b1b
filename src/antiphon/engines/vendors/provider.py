"""A provider: the address of a vendor, the credential, and one HTTP client per process.

It sends a request and returns the open response. It translates nothing and follows no redirect. It sends a
request again only if the vendor had closed the idle connection to which the request was written.
"""

import asyncio
import base64
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType

from multidict import CIMultiDict
from yarl import URL

from antiphon.domain.values import Struct, field
from antiphon.engines.vendors.address_guard import (
    GuardedResolver,
    LookUp,
    is_literal,
    is_public,
    is_unusual_number,
)
from antiphon.engines.vendors.base import (
    MAX_ERROR_BODY,
    UNREADABLE,
    UpstreamCall,
    UpstreamDialect,
    VendorError,
)
from antiphon.engines.vendors.connection import (
    MAX_ANSWER,
    NO_BODY_ENCODING,
    ConnectionLost,
    StallWatch,
    UpstreamResponse,
)
from antiphon.engines.vendors.errors import SecretFilter, build_error
from antiphon.engines.vendors.pool import (
    ConnectFailed,
    ConnectionPool,
    Server,
    build_tls_context,
    load_system_certificates,
)
from antiphon.errors import (
    AntiphonError,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderTimeout,
    ProviderUnavailable,
    SettingsError,
)

STALE_S = 1.0
"""Seconds within which a request notices a closed connection. If the connection closes later, the vendor may
have begun to generate."""

MAX_STALE_CONNECTIONS = 4
"""The most connections that one request tries, if the vendor has closed each of them."""

ERROR_BODY_S = 5.0
"""Seconds within which the body of an error must arrive, after its status."""

MAX_PATHS = 4096
"""The most paths in the cache of request heads. Callers choose parts of some paths, so the cache needs a
bound."""

MAX_MODELS = 4 << 20
"""The most bytes of a list of models."""

CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a header must not contain."""

SHORTEST_KEY = 8
"""The fewest characters of a header's value that may be a key."""

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ProviderOptions(Struct, frozen=True):
    """The operator's description of a provider."""

    name: str
    base_url: str
    credential_header: tuple[str, str]
    """The name of the header with the key, and the text before the key."""
    headers: Mapping[str, str] = field(default_factory=dict)
    allows_private: bool = False
    reports_fields: bool = False
    """Whether its answers report fields that it ignores, and keywords of schemas that it does not enforce."""
    proxy: str | None = None
    ca_file: str | None = None
    connections: int = 1024
    connect_timeout: float = 5.0
    first_byte_timeout: float = 120.0
    chunk_timeout: float = 60.0
    timeout: float = 600.0
    max_answer_bytes: int = MAX_ANSWER
    """The most bytes of a whole answer, and of one event of a stream."""


class Provider:
    """The client of one vendor."""

    def __init__(
        self,
        options: ProviderOptions,
        upstream: UpstreamDialect,
        read_key: Callable[[], str | None],
        look_up: LookUp | None = None,
    ) -> None:
        """`read_key`: returns the key, or None if the vendor needs none. It is called again after the vendor
        has refused the key. `look_up`: resolves names instead of the system. Raises SettingsError for a
        private address that is not allowed."""
        self.options = options
        self.upstream = upstream
        self.name = options.name
        self._resolve_name = look_up
        self._read_key = read_key
        self._key = read_key()
        self._base = options.base_url.rstrip("/")
        self._headers = self._build_headers()
        self._keys, self._secrets = self._build_secret_filters()
        url = URL(self._base)
        self.server = url.host or "", url.port or 0
        """Host and port, for traces."""
        self._heads: dict[tuple[str, str], bytes] = {}
        """The lines and shared headers of requests, by method and path."""
        self._pool: ConnectionPool | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._running_requests = 0
        """Requests that use this client."""
        self._is_retired = False
        self.watch = StallWatch(options.chunk_timeout)
        self._require_public()

    def _require_public(self) -> None:
        """Raises SettingsError if the address is a private IP address that is not allowed, or a number in a
        form that cannot be checked."""
        host = URL(self._base).host or ""
        if is_unusual_number(host):
            raise SettingsError(
                f"the address of the provider {self.name} is a number in an unusual form; write four decimal "
                "numbers, such as 127.0.0.1"
            )
        if not self.options.allows_private and is_literal(host) and not is_public(host):
            raise SettingsError(
                f"the provider {self.name} has a private address; write private = true into "
                f"[providers.{self.name}] to allow it"
            )

    async def send(
        self,
        call: UpstreamCall,
        deadline: float,
        on_sent: Callable[[], None] = lambda: None,
        method: str = "POST",
    ) -> UpstreamResponse:
        """Sends a request and returns the response, whose headers have arrived. If the vendor had closed the
        idle connection to which the request was written, sends it again. The caller must close the response,
        and then call `end_request`.

        `deadline`: seconds of the event loop's clock. `on_sent` is called when the request is written to a
        connection. Raises a ProviderError.
        """
        self._running_requests += 1
        try:
            pool, get_time = self._pool or self._open_pool(), asyncio.get_running_loop().time
            head = self._build_head(method, call)
            for _ in range(MAX_STALE_CONNECTIONS):
                connection = pool.take_idle() or await pool.open(deadline)
                is_used, started_at = connection.is_used, get_time()
                response = UpstreamResponse(connection, pool.take_back, deadline)
                self.watch.add(response)
                on_sent()
                try:
                    await response.exchange(head, call.body)
                except ConnectionLost:
                    # A vendor closes an idle connection as the next request is written to it: it has read
                    # nothing, so the request can be sent again (RFC 9110, 9.2.2).
                    if not is_used or response.has_bytes or get_time() - started_at > STALE_S:
                        raise
                else:
                    break
            else:
                raise ConnectionLost("the vendor closed every connection")
            if response.status == 200:
                return response
            try:
                raise await self._read_error(response)
            finally:
                response.close()
        except OSError as failure:
            await self.end_request()
            raise self.map_failure(failure) from None
        except BaseException:
            await self.end_request()
            raise

    def map_failure(self, failure: Exception) -> AntiphonError:
        """Returns the error for a failure of the connection. It shows no address."""
        cause = self.describe_failure(failure)
        if isinstance(failure, ConnectFailed):
            return ProviderUnavailable(f"the provider {self.name} cannot be reached", cause=cause)
        if isinstance(failure, TimeoutError):
            return ProviderTimeout(f"the provider {self.name} did not answer in time", cause=cause)
        return ProviderFailed(f"the connection to the provider {self.name} broke", cause=cause)

    def describe_failure(self, failure: Exception) -> str:
        """Returns a failure for the operator's log. The text can quote the vendor's bytes, so the keys are
        removed. Addresses stay."""
        return self._keys.remove(f"{type(failure).__name__}: {failure}")

    def remove_secrets(self, text: str) -> str:
        """Returns a vendor's text without the key and the vendor's host."""
        return self._secrets.remove(text)

    def map_error(
        self, status: int, error: VendorError, headers: Mapping[str, str] = NO_HEADERS
    ) -> AntiphonError:
        """Returns the error for a response, or an error event of a stream, with this status."""
        return build_error(self.name, status, error, headers, self._secrets)

    async def fetch_models(self) -> tuple[str, ...]:
        """Returns the names of the vendor's models. Raises a ProviderError."""
        deadline = asyncio.get_running_loop().time() + self.options.first_byte_timeout
        call = UpstreamCall(self.upstream.build_models_path(), b"", is_streamed=False)
        response = await self.send(call, deadline, method="GET")
        try:
            return self.upstream.decode_models(await response.read(MAX_MODELS))
        except OSError as failure:
            raise self.map_failure(failure) from None
        except UNREADABLE:
            raise ProviderFailed(
                f"the provider {self.name} sent a list of models that cannot be read"
            ) from None
        finally:
            response.close()
            await self.end_request()

    async def end_request(self) -> None:
        """Counts one request less that uses this client. Closes a retired client after its last request."""
        self._running_requests -= 1
        if self._is_retired and not self._running_requests:
            await self.aclose()

    async def retire(self) -> None:
        """Closes the client once no request uses it. A request that already has this object can still use
        it."""
        self._is_retired = True
        if not self._running_requests:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes every connection."""
        pool, threads = self._pool, self._threads
        self._pool = self._threads = None
        self.watch.close()
        if pool is not None:
            await pool.aclose()
        if threads is not None:
            threads.shutdown(wait=False)

    def _open_pool(self) -> ConnectionPool:
        """Creates the connection pool in the running event loop."""
        options, url = self.options, URL(self._base)
        proxy = None if options.proxy is None else URL(options.proxy)
        proxy_host = None if proxy is None else proxy.host
        self._threads = ThreadPoolExecutor(2, f"antiphon-dns-{options.name}")
        resolver = GuardedResolver(
            self._threads, options.allows_private, options.connect_timeout, proxy_host, self._resolve_name
        )
        tunnel_request = b""
        if proxy is not None:
            headers = [("Host", f"{url.host_subcomponent}:{url.port}"), ("User-Agent", "antiphon")]
            if proxy.user is not None:
                headers.append(("Proxy-Authorization", format_basic(proxy)))
            line = f"CONNECT {url.host_subcomponent}:{url.port} HTTP/1.1\r\n"
            tunnel_request = line.encode() + format_headers(headers) + b"\r\n"
        self._pool = ConnectionPool(
            self._find_server(url),
            resolver,
            options.connections,
            options.connect_timeout,
            None if proxy is None else self._find_server(proxy),
            tunnel_request,
        )
        return self._pool

    def _find_server(self, url: URL) -> Server:
        """Returns the server of an address, with the certificates that it is checked by."""
        tls = None
        if url.scheme == "https":
            ca_file = self.options.ca_file
            tls = load_system_certificates() if ca_file is None else build_tls_context(ca_file)
        return Server(url.raw_host or "", url.port or 0, tls)

    async def _read_error(self, response: UpstreamResponse) -> AntiphonError:
        """Returns the error of a response whose status is not 200."""
        if 200 <= response.status < 400:
            outcome = (
                "a redirect, which is not followed"
                if response.status >= 300
                else f"the status {response.status} instead of 200"
            )
            return ProviderFailed(
                f"the provider {self.name} answered with {outcome}", cause=f"status {response.status}"
            )
        body = b""
        response.deadline = min(response.deadline, asyncio.get_running_loop().time() + ERROR_BODY_S)
        try:
            while len(body) < MAX_ERROR_BODY and (part := await response.read_part()):
                body += part[: MAX_ERROR_BODY - len(body)]
        except OSError:
            pass  # the status alone suffices
        try:
            vendor_error = self.upstream.decode_error(response.status, body)
        except UNREADABLE:
            vendor_error = VendorError("")
        error = self.map_error(response.status, vendor_error, response.headers)
        if isinstance(error, ProviderKeyRefused):
            error.is_key_renewed = self.renew_key()
        return error

    def renew_key(self) -> bool:
        """Reads the key again, because its file may contain a new one. Returns whether it does. If the key
        cannot be read, the old one stays."""
        with suppress(SettingsError):
            key = self._read_key()
            if key != self._key:
                self._key = key
                self._headers = self._build_headers()
                self._keys, self._secrets = self._build_secret_filters()
                self._heads.clear()
                return True
        return False

    def _build_secret_filters(self) -> tuple[SecretFilter, SecretFilter]:
        """Builds the filter of the log, and that of messages to callers. Both remove the key, the proxy's
        password, and the values of headers that are long enough for a key. Messages have no host either."""
        keys = [value for value in self.options.headers.values() if len(value) >= SHORTEST_KEY]
        if self._key:
            keys.append(self._key)
        proxy = URL(self.options.proxy or "")
        if proxy.password:
            keys += [proxy.password, f"{proxy.user}:{proxy.password}"]
        return SecretFilter(keys), SecretFilter(keys, (URL(self._base).host or "",))

    def _build_headers(self) -> CIMultiDict[str]:
        """Builds the headers that all requests share."""
        headers = CIMultiDict(self.upstream.headers)
        headers.update(self.options.headers)
        headers.setdefault("User-Agent", "antiphon")
        headers["Content-Type"] = "application/json"
        headers["Accept-Encoding"] = NO_BODY_ENCODING
        if self._key is not None:
            name, prefix = self.options.credential_header
            headers[name] = prefix + self._key
        proxy = URL(self.options.proxy or "")
        if (
            proxy.user is not None and URL(self._base).scheme == "http"
        ):  # else the tunnel to the vendor has it
            headers["Proxy-Authorization"] = format_basic(proxy)
        return headers

    def _build_head(self, method: str, call: UpstreamCall) -> bytes:
        """Returns the request's line and headers. Builds the shared part once for each path."""
        shared_head = self._heads.get((method, call.path))
        if shared_head is None:
            if len(self._heads) >= MAX_PATHS:
                self._heads.clear()
            url = URL(self._base + call.path, encoded=True)
            is_relayed = self.options.proxy is not None and url.scheme == "http"
            line = f"{method} {url if is_relayed else url.raw_path_qs} HTTP/1.1\r\n"
            host = ("Host", url.host_port_subcomponent or "")
            shared_head = line.encode() + format_headers((host, *self._headers.items()))
            self._heads[method, call.path] = shared_head
        own_headers = format_headers(call.headers) if call.headers else b""
        length = b"Content-Length: %d\r\n" % len(call.body) if call.body else b""
        return b"%b%b%b\r\n" % (shared_head, own_headers, length)


def format_basic(url: URL) -> str:
    """Returns the user and the password of an address as a header's value."""
    return "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()


def format_headers(headers: Iterable[tuple[str, str]]) -> bytes:
    """Returns headers in HTTP/1.1 form. Raises ValueError for a control character."""
    lines = [f"{name}: {value}" for name, value in headers]
    if any(map(CONTROL_CHARACTER.search, lines)):
        raise ValueError("a header has a control character")
    return "".join([f"{line}\r\n" for line in lines]).encode()
