"""The application: one ASGI function that handles every request. The code follows the order in which a
request is handled."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

from starlette.datastructures import Headers as StarletteHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Message, Receive, Scope, Send

from antiphon.dialects.base import Endpoint, EventStream, Request, Response
from antiphon.errors import AntiphonError, MethodNotAllowed, RouteNotFound
from antiphon.http.authenticate import Authenticator, Headers, OriginCheck
from antiphon.http.body import BodyReader
from antiphon.http.connection import Connection, get_connection
from antiphon.http.errors import record_failure, record_refusal, send_error, to_api_error
from antiphon.http.front_page import declare_front_page
from antiphon.http.in_flight import ClientLeft, cancel_on_disconnect
from antiphon.http.knowledge import list_knowledge_endpoints
from antiphon.http.openapi import declare_document, declare_pages
from antiphon.http.responses import RATE_LIMIT_HEADERS, build_limit_headers, send_file, send_response
from antiphon.http.routing import Routes, find_nearest_path
from antiphon.http.server_status import declare_health, declare_info, declare_metrics
from antiphon.http.services import ServerServices
from antiphon.http.spans import close_request, open_request, refuse_request
from antiphon.http.sse import EventWriter, Pace
from antiphon.http.state import AppState, group_headers

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
"""A request id that a caller can send. It fits every tracing format and is safe in logs and headers."""

EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "x-antiphon-ignored",
    "x-antiphon-relaxed",
    *RATE_LIMIT_HEADERS,
)
"""Response headers that a web page of an allowed origin may read."""

NO_SNIFF = (b"x-content-type-options", b"nosniff")

LEFT = "left"
"""The status, in logs and metrics, of a request whose caller left before the answer."""


class ResponseState:
    """The response to one request. It adds the common headers and remembers the status that was sent."""

    __slots__ = ("_headers", "_send", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._headers = [(b"x-request-id", request_id.encode()), NO_SNIFF]
        self.status = LEFT

    @property
    def has_begun(self) -> bool:
        """Whether the response has begun."""
        return self.status is not LEFT

    async def send(self, message: Message) -> None:
        """Sends an ASGI message, with the common headers on the first."""
        if message["type"] == "http.response.start":
            self.status = str(message["status"])
            message = {**message, "headers": [*message["headers"], *self._headers]}
        await self._send(message)


class Application:
    """The ASGI application."""

    def __init__(self, edge: AppState, endpoints: Sequence[Endpoint]) -> None:
        """`endpoints`: all endpoints of the server."""
        self._edge = edge
        self.routes = Routes(endpoints)
        self._services = ServerServices(edge)
        self._origins = OriginCheck(edge)
        self._authenticator = Authenticator(edge)
        self._bodies = BodyReader(edge)
        self._prefixes = [dialect.prefix for dialect in edge.dialects]
        self._pace = Pace(edge.settings.keep_alive_interval, edge.settings.send_timeout)
        self._cors = _create_cors(edge, self.routes) if edge.settings.cors_origins else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path, headers = scope["method"], scope["path"], group_headers(scope)
        began = asyncio.get_running_loop().time()
        request = _build_request(scope, self._choose_request_id(headers), headers)
        state = ResponseState(send, request.id)
        answer = state.send if self._cors is None else self._add_cors_headers(scope, headers, state.send)
        if self._edge.tracer is not None and method == "POST":
            request.span = open_request(self._edge.tracer, request, self.routes.get_label(path))
        try:
            if self._cors is not None and is_preflight(method, headers):
                await self._cors(scope, receive, state.send)
                return
            self._origins.require(scope, headers)
            found = self.routes.find(method, path)
            right = self.routes.get_right_for_missing(path) if found is None else found.endpoint.right
            request.actor = await self._authenticator.authenticate(request, right)
            if found is None:
                raise self._build_not_found(method, path)
            request.path_params = found.params
            await self._read_and_handle(found.endpoint, request, get_connection(scope), receive, answer)
        except ClientLeft:
            return
        except Exception as problem:  # noqa: BLE001 - the edge's border: what it is becomes an answer
            await self._refuse(to_api_error(problem, request.id), request, scope["raw_path"], state, answer)
        finally:
            seconds = asyncio.get_running_loop().time() - began
            self._edge.metrics.count_answer(self.routes.get_label(path), state.status, seconds)
            if request.span is not None:
                close_request(request.span, request, state.status)

    async def _read_and_handle(
        self, endpoint: Endpoint, request: Request, connection: Connection, receive: Receive, send: Send
    ) -> None:
        """Reads the body and lets the endpoint answer. Raises an AntiphonError, or ClientLeft."""
        if endpoint.body is None:
            await self._handle(endpoint, request, connection, send)
            return
        account = await self._bodies.read(endpoint.body, request, receive, connection)
        try:
            await self._handle(endpoint, request, connection, send)
        finally:
            account.release()

    async def _handle(self, endpoint: Endpoint, request: Request, connection: Connection, send: Send) -> None:
        """Lets the endpoint answer, and sends its answer."""
        if endpoint.ends_with_caller:
            with self._cancel_on_leave(request, connection):
                answer = await endpoint.handler(request, self._services)
        else:
            answer = await endpoint.handler(request, self._services)
        if isinstance(answer, Response):
            await send_response(send, answer, build_limit_headers(request.progress.limit_statuses))
        elif isinstance(answer, EventStream):
            await self._stream(answer, request, connection, send)
        else:
            await send_file(send, answer, connection)

    async def _stream(
        self, stream: EventStream, request: Request, connection: Connection, send: Send
    ) -> None:
        """Writes the events of a stream and its end. Raises any error that occurs before the first event."""

        def headers() -> list[tuple[bytes, bytes]]:
            return [*stream.headers(), *build_limit_headers(request.progress.limit_statuses)]

        writer = EventWriter(send, connection, self._pace, headers, stream.keep_alive)
        last = None
        try:
            with self._cancel_on_leave(request, connection):
                await _write_events(stream, writer)
            last = stream.encoder.end()
        except ClientLeft:
            raise
        except Exception as problem:
            if not writer.has_begun:
                raise
            last = self._break_off(stream, to_api_error(problem, request.id), request)
        finally:
            if last is None:
                writer.abandon()
        await writer.close(last)

    def _break_off(self, stream: EventStream, error: AntiphonError, request: Request) -> bytes:
        """Records the error of a stream, and returns the stream's last event."""
        if request.span is not None:
            request.span.fail(error.code)
        record_failure("stream_failed", error, request, self._edge)
        return stream.encoder.encode_error(error)

    async def _refuse(
        self, error: AntiphonError, request: Request, raw_path: bytes, state: ResponseState, send: Send
    ) -> None:
        """Records an error, and sends it unless the response has begun. A begun response breaks off.

        No frame that the error's traceback refers to stores the error. Such a reference cycle would keep the
        whole request in memory.
        """
        dialect = self._edge.get_dialect(request.path)
        if request.span is not None:
            refuse_request(request.span, error, dialect.get_status(error))
        record_refusal(error, dialect.get_status(error), request, raw_path, self._edge)
        if not state.has_begun:
            headers = build_limit_headers(request.progress.limit_statuses)
            headers += dialect.build_error_headers(error, self._edge.clock.wall())
            await send_error(send, dialect, error, request, headers)

    def _cancel_on_leave(self, request: Request, connection: Connection) -> AbstractContextManager[object]:
        """Returns a context that cancels its work if the caller leaves, if the time is up, or if the caller's
        key is ended."""
        edge = self._edge
        seconds = edge.settings.request_timeout
        return cancel_on_disconnect(connection, edge.ongoing, seconds, request.actor, request.progress)

    def _build_not_found(self, method: str, path: str) -> AntiphonError:
        """Returns the error for an unknown path, or for a method that the path does not accept."""
        if taken := self.routes.list_methods(path):
            error = MethodNotAllowed(f"{method} is not taken here")
            error.allowed = tuple(sorted(taken))
            return error
        nearest = find_nearest_path(path, method, self.routes, self._prefixes)
        hint = "" if nearest is None else f"did you mean {nearest}? "
        return RouteNotFound(f"no such path; {hint}GET /openapi.json lists all")

    def _choose_request_id(self, headers: Headers) -> str:
        """Returns the caller's request id if it is valid, otherwise a new one."""
        values = headers.get(b"x-request-id")
        if values is not None and len(values) == 1 and REQUEST_ID.fullmatch(values[0]):
            return values[0].decode()
        return f"req-{self._edge.clock.unique()}"

    def _add_cors_headers(self, scope: Scope, headers: Headers, send: Send) -> Send:
        """Returns `send` extended by the CORS headers, if a web page of another origin sent the request."""
        if self._cors is None or b"origin" not in headers:
            return send
        return partial(self._cors.send, send=send, request_headers=StarletteHeaders(scope=scope))


async def _write_events(stream: EventStream, writer: EventWriter) -> None:
    """Writes every event of a stream. Closes the stream's source in every case."""
    encode = stream.encoder.encode
    async with stream.events as events:
        async for event in events:
            await writer.put(encode(event))


def is_preflight(method: str, headers: Headers) -> bool:
    """Whether the request is a CORS preflight of a browser."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


def _create_cors(edge: AppState, routes: Routes) -> CORSMiddleware:
    """Returns Starlette's CORS middleware, which answers preflights. It wraps no application."""
    return CORSMiddleware(
        _answer_nothing,
        allow_origins=edge.settings.cors_origins,
        allow_methods=sorted(routes.methods),
        allow_headers=("*",),
        expose_headers=EXPOSED,
    )


async def _answer_nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Takes the place of the wrapped application and is never called: the middleware answers every preflight
    itself."""


def _build_request(scope: Scope, request_id: str, headers: Headers) -> Request:
    """Builds the request of an ASGI scope."""
    client = scope.get("client")
    return Request(
        request_id,
        scope["method"],
        scope["path"],
        headers,
        scope.get("query_string", b""),
        client[0] if client else None,
    )


def create_app(edge: AppState) -> Application:
    """Creates the ASGI application. Starts nothing."""
    return Application(edge, list_endpoints(edge))


def list_endpoints(edge: AppState) -> list[Endpoint]:
    """Returns the endpoints of the dialects, of the admin API and of the server itself."""
    own = declare_server_endpoints(edge)
    return [
        *(endpoint for dialect in edge.dialects for endpoint in dialect.endpoints),
        *edge.admin,
        *list_knowledge_endpoints(edge),
        *own,
        declare_document(edge, own),
        *declare_pages(),
        declare_front_page(edge),
    ]


def declare_server_endpoints(edge: AppState) -> tuple[Endpoint, ...]:
    """Returns the endpoints that describe the server: metrics, information and health."""
    return (declare_metrics(edge), *declare_info(edge), *declare_health(edge))
