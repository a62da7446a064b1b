"""The application: one function that handles every request. The code follows the order in which a request is
handled."""

import re
from collections.abc import Sequence

from antiphon.console.pages import declare_console
from antiphon.dialects.base import Endpoint
from antiphon.dialects.http_types import EventStream, Request, Response
from antiphon.domain.context import AttributeValue, Span, Tracer
from antiphon.domain.ledger import NOTHING
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, MethodNotAllowed, RouteNotFound
from antiphon.http.authenticate import Authenticator, OriginCheck
from antiphon.http.body import BodyReader
from antiphon.http.body_budget import BodyCounter
from antiphon.http.client_address import FORWARDED_FOR, TrustedProxies
from antiphon.http.cors import Cors
from antiphon.http.errors import (
    SERVER_ERROR,
    record_failure,
    record_refusal,
    sanitize_path,
    send_error,
    to_api_error,
)
from antiphon.http.in_flight import ClientLeft, InFlight
from antiphon.http.knowledge import list_knowledge_endpoints
from antiphon.http.limit_headers import build_limit_headers
from antiphon.http.openapi import declare_document
from antiphon.http.protocol import Exchange
from antiphon.http.responses import (
    EventWriter,
    StreamTimeouts,
    send_file,
    send_response,
)
from antiphon.http.routing import Routes, find_nearest_path
from antiphon.http.server_status import declare_front_page, declare_health, declare_info, declare_metrics
from antiphon.http.services import ServerServices
from antiphon.http.state import AppState

REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
"""A request id that a caller can send. It fits every tracing format and is safe in logs and headers."""

NO_SNIFF = (b"x-content-type-options", b"nosniff")

CLIENT_LEFT = "left"
"""The status, in logs and metrics, of a request whose client left before the answer."""


class Application:
    """Handles all requests of a server."""

    def __init__(self, app_state: AppState, endpoints: Sequence[Endpoint]) -> None:
        """`endpoints`: all endpoints of the server."""
        self._app_state = app_state
        self.routes = Routes(endpoints)
        self._services = ServerServices(app_state)
        self._origin_check = OriginCheck(app_state)
        self._authenticator = Authenticator(app_state)
        self._proxies = TrustedProxies(app_state.settings.trusted_proxies)
        self._body_reader = BodyReader(app_state)
        self._prefixes = [dialect.prefix for dialect in app_state.dialects]
        self._stream_timeouts = StreamTimeouts(
            app_state.settings.keep_alive_interval, app_state.settings.send_timeout
        )
        origins = app_state.settings.cors_origins
        self._cors = Cors(origins, self.routes.methods) if origins else None

    async def __call__(self, exchange: Exchange) -> None:
        app_state, method, path = self._app_state, exchange.method, exchange.path
        started_at = app_state.clock.monotonic()
        headers, peer = exchange.headers, exchange.connection.peer
        sent_ids = headers.get(b"x-request-id", ())
        request_id = (
            sent_ids[0].decode()
            if len(sent_ids) == 1 and REQUEST_ID.fullmatch(sent_ids[0])
            else f"req-{app_state.clock.unique()}"
        )
        match = self.routes.find(method, path)
        request = Request(
            request_id,
            method,
            path,
            headers,
            exchange.query_string,
            path_params=NOTHING if match is None else match.params,
            peer=peer,
        )
        request.client = self._proxies.find_client(peer, headers) if FORWARDED_FOR in headers else peer
        exchange.extra_headers = [(b"x-request-id", request_id.encode()), NO_SNIFF]
        label = self.routes.get_label(path) if match is None else match.label
        if app_state.tracer is not None and method == "POST":
            request.span = open_span(app_state.tracer, request, label)
        body_counter: BodyCounter | None = None
        try:
            if self._cors is not None and b"origin" in headers:
                if method == "OPTIONS" and b"access-control-request-method" in headers:
                    await send_response(exchange, self._cors.answer_preflight(headers), [])
                    return
                exchange.extra_headers += self._cors.build_headers(headers[b"origin"][0])
            self._origin_check.require_allowed(exchange)
            right = self.routes.get_right_for_missing(path) if match is None else match.endpoint.right
            actor = await self._authenticator.authenticate(request, right)
            request.actor = replace(actor, client=request.client)
            if request.chosen_project is not None:
                exchange.extra_headers.append((b"x-antiphon-project", request.chosen_project.encode()))
            if match is None:
                raise self._build_not_found(method, path)
            endpoint = match.endpoint
            if endpoint.body is not None:
                body_counter = await self._body_reader.read(endpoint.body, request, exchange)
            if endpoint.ends_with_caller:
                with self._cancel_on_leave(request, exchange):
                    answer = await endpoint.handler(request, self._services)
            else:
                answer = await endpoint.handler(request, self._services)
            if isinstance(answer, Response):
                await send_response(exchange, answer, self._build_limit_headers(request))
            elif isinstance(answer, EventStream):
                await self._stream(answer, request, exchange)
            else:
                await send_file(exchange, answer)
        except ClientLeft:
            return
        except Exception as exception:  # noqa: BLE001 - every exception becomes an error response
            await self._refuse(to_api_error(exception, request_id), request, exchange)
        finally:
            if body_counter is not None:
                body_counter.release()
            seconds = app_state.clock.monotonic() - started_at
            status = str(exchange.status) if exchange.status else CLIENT_LEFT
            app_state.metrics.count_response(label, status, seconds)
            if request.span is not None:
                close_span(request.span, request, status)

    async def _stream(self, stream: EventStream, request: Request, exchange: Exchange) -> None:
        """Writes all events of a stream; a group of events is one write. Raises an error that occurs before
        the response has begun; a later error becomes the last event."""

        def build_headers() -> list[tuple[bytes, bytes]]:
            return [*stream.headers(), *self._build_limit_headers(request)]

        writer = EventWriter(exchange, self._stream_timeouts, build_headers, stream.encoder.keep_alive)
        last_event, encode = None, stream.encoder.encode
        try:
            # The handler's context ended with the handler, which only made the stream. This one is inside the
            # `try`, so that the error that it raises becomes the last event.
            with self._cancel_on_leave(request, exchange):
                async with stream.events as groups:
                    async for group in groups:
                        await writer.put(b"".join(map(encode, group)))
            last_event = stream.encoder.end()
        except ClientLeft:
            raise
        except Exception as exception:
            if not writer.has_begun:
                raise
            last_event = self._end_with_error(stream, to_api_error(exception, request.id), request)
        finally:
            if last_event is None:
                writer.abandon()
        await writer.close(last_event)

    def _end_with_error(self, stream: EventStream, error: AntiphonError, request: Request) -> bytes:
        """Logs the error of a stream, and returns the event that reports the error to the caller."""
        if request.span is not None:
            request.span.fail(error.code)
        path = self.routes.get_label(request.path)
        record_failure("stream_failed", error, request, self._app_state, {"path": path})
        return stream.encoder.encode_error(error)

    async def _refuse(self, error: AntiphonError, request: Request, exchange: Exchange) -> None:
        """Logs an error, and sends it unless the response has begun. A response that has begun is cut off.

        The error must not be stored in a variable of a frame in its traceback. Such a reference cycle would
        keep the whole request in memory.
        """
        dialect = self._app_state.get_dialect(request.path)
        if request.span is not None:
            add_refusal(request.span, error, dialect.get_status(error))
        is_unknown = isinstance(error, RouteNotFound)
        path = sanitize_path(exchange.raw_path) if is_unknown else self.routes.get_label(request.path)
        record_refusal(error, dialect.get_status(error), request, path, self._app_state)
        if not exchange.status:
            headers = self._build_limit_headers(request)
            headers += dialect.build_error_headers(error, request, self._app_state.clock.wall())
            await send_error(exchange, dialect, error, request, headers)

    def _build_limit_headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Returns the headers of the limits that apply to a request, with those of its dialect."""
        statuses = request.progress.limit_statuses
        if not statuses:
            return []
        dialect, now = self._app_state.get_dialect(request.path), self._app_state.clock.wall()
        return build_limit_headers(
            statuses, lambda measure, status: dialect.build_limit_headers(measure, status, now)
        )

    def _cancel_on_leave(self, request: Request, exchange: Exchange) -> InFlight:
        """Returns a context that cancels its block if the caller leaves, at the request timeout, or if the
        caller's key is no longer accepted."""
        app_state = self._app_state
        seconds = app_state.settings.request_timeout
        return InFlight(exchange, app_state.in_flight, seconds, request.actor, request.progress)

    def _build_not_found(self, method: str, path: str) -> AntiphonError:
        """Returns the error for an unknown path, or for a method that the path does not accept."""
        if allowed_methods := self.routes.list_methods(path):
            error = MethodNotAllowed(f"this path does not accept {method}")
            error.allowed = tuple(sorted(allowed_methods))
            return error
        nearest_path = find_nearest_path(path, method, self.routes, self._prefixes)
        hint = "" if nearest_path is None else f"did you mean {nearest_path}? "
        return RouteNotFound(f"no such path; {hint}GET /openapi.json lists all")


def open_span(tracer: Tracer, request: Request, route: str) -> Span:
    """Begins the span of a request, by OpenTelemetry's conventions for HTTP servers. `route`: the endpoint's
    path, which contains no text of the caller."""
    attributes: dict[str, AttributeValue] = {
        "http.request.method": request.method,
        "http.route": route,
        "antiphon.request_id": request.id,
    }
    parents = request.headers.get(b"traceparent", [])
    return tracer.open_request(f"{request.method} {route}", parents, attributes)


def add_refusal(span: Span, error: AntiphonError, status: int) -> None:
    """Adds an error to the span of its request. The span counts as failed only if the server caused the error
    (status 500 or above)."""
    if status >= SERVER_ERROR:
        span.fail(error.code)
    else:
        span.add({"error.type": error.code})


def close_span(span: Span, request: Request, status: str) -> None:
    """Ends the span of a request. `status`: the HTTP status, or CLIENT_LEFT."""
    if status.isdigit():
        span.add({"http.response.status_code": int(status)})
    else:
        span.fail(status)
    if request.actor.project:
        span.add({"antiphon.project": request.actor.project})
    span.close()


def create_app(app_state: AppState) -> Application:
    """Creates the application. Starts nothing."""
    return Application(app_state, list_endpoints(app_state))


def list_endpoints(app_state: AppState) -> list[Endpoint]:
    """Returns the endpoints of the dialects, of the admin API and of the server itself."""
    server_endpoints = declare_server_endpoints(app_state)
    return [
        *(endpoint for dialect in app_state.dialects for endpoint in dialect.endpoints),
        *app_state.admin_endpoints,
        *list_knowledge_endpoints(app_state),
        *server_endpoints,
        declare_document(app_state, server_endpoints),
        *declare_console(app_state.oidc),
        declare_front_page(app_state),
    ]


def declare_server_endpoints(app_state: AppState) -> tuple[Endpoint, ...]:
    """Returns the endpoints that describe the server: metrics, information and health."""
    return (declare_metrics(app_state), *declare_info(app_state), *declare_health(app_state))
