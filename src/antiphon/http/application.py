"""The application: one function that every request passes, in the order in which things happen."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers as StarletteHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match, Route, compile_path
from starlette.types import Message, Receive, Scope, Send

from antiphon.errors import AntiphonError, MethodNotAllowed, RouteNotFound
from antiphon.http.authenticate import Authenticator
from antiphon.http.body import BodyReader
from antiphon.http.connection import connection_of
from antiphon.http.edge import EXCHANGE, Edge, Exchange, gathered
from antiphon.http.errors import send_error, translated
from antiphon.http.nearest import nearest_path
from antiphon.http.origins import Headers, OriginCheck
from antiphon.http.records import record_refusal
from antiphon.http.standings import NAMES as STANDINGS
from antiphon.http.standings import limit_headers
from antiphon.http.work import ClientLeft

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
"""What a caller may name a request: enough for every tracing format, and nothing that a log or header could
trip on."""

EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "x-antiphon-ignored",
    "x-antiphon-relaxed",
    *STANDINGS,
)
"""Response headers that a web page of an allowed origin may read."""

NO_SNIFF = (b"x-content-type-options", b"nosniff")

OTHER = "other"
"""Route of a path that is none: what callers make up is no label."""

LEFT = "left"
"""Status of a request whose caller did not wait for an answer."""

Endpoint = Callable[[Exchange, Scope, Send], Awaitable[None]]
"""Answers a request whose body was read."""


class Response:
    """What is sent for one request: adds the headers of every answer, and knows how far it is."""

    __slots__ = ("_headers", "_send", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._headers = [(b"x-request-id", request_id.encode()), NO_SNIFF]
        self.status = LEFT

    @property
    def begun(self) -> bool:
        """Whether anything was sent."""
        return self.status is not LEFT

    async def send(self, message: Message) -> None:
        """As ASGI's send."""
        if message["type"] == "http.response.start":
            self.status = str(message["status"])
            message = {**message, "headers": [*message["headers"], *self._headers]}
        await self._send(message)


class Application:
    """The ASGI application."""

    def __init__(
        self, edge: Edge, endpoints: Mapping[str, Endpoint], others: Starlette, table: Sequence[Route]
    ) -> None:
        """`endpoints`: what generates, by path; each takes a JSON body by POST. `others`: all other routes.
        `table`: every route there is."""
        self._edge = edge
        self._endpoints = endpoints
        self._others = others
        self._origins = OriginCheck(edge)
        self._authenticator = Authenticator(edge)
        self._bodies = BodyReader(edge)
        self._table = table
        self._prefixes = [dialect.prefix for dialect in edge.dialects]
        self._labels = RouteLabels(route.path for route in table)
        self._cors = _cors(edge, others, table) if edge.settings.cors_origins else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        loop, path, headers = asyncio.get_running_loop(), scope["path"], gathered(scope)
        began = loop.time()
        exchange = scope[EXCHANGE] = Exchange(self._request_id(headers), headers)
        response = Response(send, exchange.request_id)
        answer = response.send if self._cors is None else self._with_cors(scope, headers, response.send)
        try:
            with translated(exchange.request_id):
                if self._cors is not None and is_preflight(scope["method"], headers):
                    await self._cors(scope, receive, response.send)
                    return
                self._origins.require(scope, headers)
                exchange.actor = await self._authenticator.authenticate(scope["method"], path, headers)
                endpoint = self._endpoints.get(path) if scope["method"] == "POST" else None
                if endpoint is None:
                    await self._route(scope, receive, answer)
                    return
                account = await self._bodies.read(exchange, receive, connection_of(scope))
                try:
                    await endpoint(exchange, scope, answer)
                finally:
                    account.release()
        except ClientLeft:
            return
        except AntiphonError as error:
            await self._refuse(error, exchange, scope, response, answer)
        finally:
            self._edge.metrics.answered(self._labels.find(path), response.status, loop.time() - began)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What does not generate. Raises RouteNotFound or MethodNotAllowed."""
        scope["app"] = self._others
        try:
            await self._others.router(scope, receive, send)
        except HTTPException as problem:
            if problem.status_code == MethodNotAllowed.status or scope["path"] in self._endpoints:
                raise self._wrong_method(scope) from None
            nearest = nearest_path(scope["path"], scope["method"], self._table, self._prefixes)
            hint = "" if nearest is None else f"did you mean {nearest}? "
            raise RouteNotFound(f"no such path; {hint}GET /openapi.json lists all") from None

    async def _refuse(
        self, error: AntiphonError, exchange: Exchange, scope: Scope, response: Response, send: Send
    ) -> None:
        """Records an error, and sends it unless an answer has begun, which can only break off."""
        dialect = self._edge.dialect_of(scope["path"])
        record_refusal(error, dialect.status(error), scope, self._edge)
        if not response.begun:
            await send_error(send, dialect, error, limit_headers(exchange.progress.standings))

    def _wrong_method(self, scope: Scope) -> MethodNotAllowed:
        """Names every method that is taken at a path; the router tells those of the first route."""
        at = (route for route in self._table if route.matches(scope)[0] is not Match.NONE)
        error = MethodNotAllowed(f"{scope['method']} is not taken here")
        error.allowed = tuple(sorted({method for route in at for method in route.methods or ()}))
        return error

    def _request_id(self, headers: Headers) -> str:
        values = headers.get(b"x-request-id")
        if values is not None and len(values) == 1 and REQUEST_ID.fullmatch(values[0]):
            return values[0].decode()
        return f"req-{self._edge.clock.unique()}"

    def _with_cors(self, scope: Scope, headers: Headers, send: Send) -> Send:
        """The same, with what a web page of an allowed origin is told."""
        if self._cors is None or b"origin" not in headers:
            return send
        return partial(self._cors.send, send=send, request_headers=StarletteHeaders(scope=scope))


class RouteLabels:
    """The path of the route that answers, as it is declared: a label of metrics."""

    def __init__(self, paths: Iterable[str]) -> None:
        known = tuple(paths)
        self._whole = frozenset(path for path in known if "{" not in path)
        self._open = {path: compile_path(path)[0] for path in known if "{" in path}

    def find(self, path: str) -> str:
        if path in self._whole:
            return path
        return next((declared for declared, known in self._open.items() if known.match(path)), OTHER)


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether a browser asks what a page may send."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def _cors(edge: Edge, others: Starlette, table: Sequence[Route]) -> CORSMiddleware:
    """Starlette's answers to web pages of other origins. It wraps nothing."""
    methods = {method for route in table for method in route.methods or ()} - {"HEAD"}
    return CORSMiddleware(
        others,
        allow_origins=edge.settings.cors_origins,
        allow_methods=sorted(methods),
        allow_headers=("*",),
        expose_headers=EXPOSED,
    )
