"""The first span of each request, by OpenTelemetry's conventions for HTTP servers. GET requests have none."""

from antiphon.dialects.base import Request
from antiphon.domain.tracing import AttributeValue, Span, Tracer
from antiphon.errors import AntiphonError

SERVER_ERROR = 500
"""The lowest status that is the server's fault. A refused request is no failure of the span."""


def open_request(tracer: Tracer, request: Request, route: str) -> Span:
    """Begins the span of a request. `route`: the endpoint's path, which contains no text of the caller."""
    attributes: dict[str, AttributeValue] = {
        "http.request.method": request.method,
        "http.route": route,
        "antiphon.request_id": request.id,
    }
    parents = request.headers.get(b"traceparent", [])
    return tracer.open_request(f"{request.method} {route}", parents, attributes)


def refuse_request(span: Span, error: AntiphonError, status: int) -> None:
    """Notes the error that a request is answered with."""
    if status >= SERVER_ERROR:
        span.fail(error.code)
    else:
        span.add({"error.type": error.code})


def close_request(span: Span, request: Request, status: str) -> None:
    """Ends the span of a request. `status`: of the answer, or a word where there was none."""
    if status.isdigit():
        span.add({"http.response.status_code": int(status)})
    else:
        span.fail(status)
    if request.actor.project:
        span.add({"antiphon.project": request.actor.project})
    span.close()
