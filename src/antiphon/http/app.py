"""Every endpoint of a server, and the application over them."""

from antiphon.dialects.base import Endpoint
from antiphon.http.application import Application
from antiphon.http.documentation import document_endpoint, page_endpoints
from antiphon.http.health import health_endpoints
from antiphon.http.metrics import metrics_endpoint
from antiphon.http.server_info import info_endpoints
from antiphon.http.state import AppState


def create_app(edge: AppState) -> Application:
    """The ASGI application over an edge. Starts nothing."""
    return Application(edge, all_endpoints(edge))


def all_endpoints(edge: AppState) -> list[Endpoint]:
    """Those of the dialects, of the admin API, and the server's own."""
    own = own_endpoints(edge)
    return [
        *(endpoint for dialect in edge.dialects for endpoint in dialect.endpoints),
        *edge.admin,
        *own,
        document_endpoint(edge, own),
        *page_endpoints(),
    ]


def own_endpoints(edge: AppState) -> tuple[Endpoint, ...]:
    """What the server says of itself."""
    return (metrics_endpoint(edge), *info_endpoints(edge), *health_endpoints(edge))
