"""What every request passes, outermost first: the stamp, the border, the guard, and for bodies the gate.

Pure ASGI, so a client that leaves is seen by whoever asks. Authentication, which stands between guard and
gate, has its
own module.
"""

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.errors import (
    AntiphonError,
    BodyTooLarge,
    InternalError,
    PermissionDenied,
    RequestError,
    RequestTimedOut,
    UnsupportedMediaType,
)
from antiphon.http.bodies import Account
from antiphon.http.edge import EXCHANGE, Edge, Exchange, exchange_of, gathered
from antiphon.http.errors import cause_of, internal, level_of, send_error
from antiphon.http.standings import limit_headers
from antiphon.http.work import ClientLeft
from antiphon.settings import is_loopback
from antiphon.telemetry.logs import record
from antiphon.telemetry.places import frames

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
"""What a caller may name a request: enough for every tracing format, and nothing that a log or header could
trip on."""

ABORT = "antiphon.abort"
"""Key in the scope's state of the function that drops the connection at once."""

ARRIVAL = "antiphon.arrival"
"""Key in the scope's state of the loop's time at which the first byte of the request came."""

HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::\d{1,5})?")

WEB = frozenset({"http", "https"})
"""Schemes of pages that a server can have: an extension's origin may hold any name, ours too."""

EVERYDAY_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Loopback names that need no parsing."""

Headers = dict[bytes, list[bytes]]

JSON_TYPE = b"application/json"


@contextmanager
def translated(request_id: str) -> Iterator[None]:
    """Turns a defect into an InternalError and a log record with its place, but not its message. An engine
    that contained a defect of its own says the place."""
    try:
        yield
    except InternalError as problem:
        if problem.message == internal(request_id).message:
            raise
        record("internal_error", logging.ERROR, request_id=request_id, problem=problem.message)
        raise internal(request_id) from problem
    except (AntiphonError, ClientLeft):
        raise
    except Exception as problem:
        record("internal_error", logging.ERROR, request_id=request_id, problem=frames(problem))
        raise internal(request_id) from problem


class Stamp:
    """The outermost layer: gives the request its id, and every response that id in a header."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = gathered(scope)
        exchange = scope[EXCHANGE] = Exchange(self._request_id(headers), headers)
        name = exchange.request_id.encode()
        stamps = [(b"x-request-id", name), (b"x-content-type-options", b"nosniff")]

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *stamps]}
            await send(message)

        await self._app(scope, receive, stamped)

    def _request_id(self, headers: Headers) -> str:
        values = headers.get(b"x-request-id", [])
        if len(values) == 1 and REQUEST_ID.fullmatch(values[0]):
            return values[0].decode()
        return f"req-{self._edge.clock.unique()}"


class Border:
    """Turns whatever is raised into an error response. Once a response has begun it can only break off."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            with translated(exchange.request_id):
                await self._app(scope, receive, noted)
        except ClientLeft:
            return
        except AntiphonError as error:
            dialect = self._edge.dialect_of(scope["path"])
            self._note(error, dialect.status(error), exchange, scope)
            if not begun:
                await send_error(send, dialect, error, limit_headers(exchange.progress.standings))

    def _note(self, error: AntiphonError, status: int, exchange: Exchange, scope: Scope) -> None:
        if isinstance(error, InternalError):
            return
        record(
            "refused",
            level_of(error),
            request_id=exchange.request_id,
            status=status,
            code=error.code,
            cause=cause_of(error),
            param=error.param,
            method=scope["method"],
        )


class Guard:
    """Refuses what a web page of another site sends, and, while there is no key, names that are not of this
    machine.

    A page that rebinds its own name to 127.0.0.1 sends that name as Host; a page of another site says so in
    Origin or
    Sec-Fetch-Site.
    """

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._local = not edge.verifiers
        self._hosts = frozenset(host.lower() for host in edge.settings.allowed_hosts)
        self._origins = frozenset(edge.settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = exchange_of(scope).headers
        host = self._checked_host(headers.get(b"host", []))
        if not self._same_site(headers, host) and not _is_navigation(scope["method"], headers):
            raise PermissionDenied(
                "refused: a web page of another origin sent this; ANTIPHON_CORS_ORIGINS allows some"
            )
        await self._app(scope, receive, send)

    def _checked_host(self, values: list[bytes]) -> str:
        if len(values) > 1:
            raise RequestError("the request has several Host headers")
        host = values[0].decode("latin-1").lower() if values else ""
        if self._local and not self._is_ours(host):
            raise PermissionDenied(
                "refused: without a key only loopback names are served; use http://127.0.0.1, "
                "or add the name to ANTIPHON_ALLOWED_HOSTS"
            )
        return host

    def _is_ours(self, host: str) -> bool:
        match = HOST.fullmatch(host)
        name = match["name"] if match else ""
        return name in EVERYDAY_HOSTS or is_loopback(name) or name in self._hosts

    def _same_site(self, headers: Headers, host: str) -> bool:
        if origins := headers.get(b"origin"):
            origin = origins[0].decode("latin-1")
            known = origin in self._origins or "*" in self._origins
            scheme, _, name = origin.lower().partition("://")
            own = scheme in WEB and name == host != ""
            return len(origins) == 1 and (known or own)
        return all(site in (b"same-origin", b"none") for site in headers.get(b"sec-fetch-site", ()))


def _is_navigation(method: str, headers: Headers) -> bool:
    """Whether a person follows a link here: the page that holds the link sees nothing of the answer."""
    return method == "GET" and b"origin" not in headers and headers.get(b"sec-fetch-mode") == [b"navigate"]


class Gate:
    """Lets a JSON body in, whole, within its limits of size and time, and hands it on in the exchange."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._limit = edge.settings.max_body_bytes
        self._bodies = edge.bodies
        self._most = max(edge.settings.max_bodies_bytes, self._limit)
        self._seconds = edge.settings.receive_timeout
        self._told_apart = edge.tenants is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        _require_json(exchange.headers)
        declared = int(exchange.headers.get(b"content-length", (b"0",))[0])
        if declared > self._limit:
            raise self._too_large()
        actor = exchange.actor.caller if self._told_apart else None
        with self._bodies.account(self._most, actor) as account:
            account.expect(declared)
            exchange.body = await self._read(scope, receive, account)
            await self._app(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, account: Account) -> bytes:
        arrival = scope["state"].get(ARRIVAL, asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout_at(arrival + self._seconds):
                return await self._whole(receive, account)
        except TimeoutError:
            raise RequestTimedOut(f"the request did not arrive within {self._seconds:g} seconds") from None

    async def _whole(self, receive: Receive, account: Account) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            if account.held + len(parts[-1]) > self._limit:
                raise self._too_large()
            account.charge(len(parts[-1]))
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._limit:,} bytes (ANTIPHON_MAX_BODY_BYTES)")


def _require_json(headers: Headers) -> None:
    types, codings = headers.get(b"content-type"), headers.get(b"content-encoding", ())
    if types != [JSON_TYPE] and not _is_json(types or []):
        raise UnsupportedMediaType("the body must be JSON; send it with Content-Type: application/json")
    if any(coding.strip().lower() != b"identity" for coding in codings):
        raise UnsupportedMediaType("compressed bodies are not taken; send it without Content-Encoding")
    if any(coding.strip().lower() != b"chunked" for coding in headers.get(b"transfer-encoding", ())):
        raise UnsupportedMediaType("of transfer codings only chunked is taken: Transfer-Encoding: chunked")


def _is_json(types: list[bytes]) -> bool:
    media, _, options = (types[0] if len(types) == 1 else b"").lower().partition(b";")
    return media.strip() == JSON_TYPE and options.strip() in (b"", b"charset=utf-8", b'charset="utf-8"')
