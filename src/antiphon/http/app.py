"""The application: the table of routes, and the middleware every request passes, outermost first."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from antiphon.errors import AntiphonError, MethodNotAllowed, RouteNotFound
from antiphon.http import adapters, health, metrics, routes
from antiphon.http.authenticate import Authenticator
from antiphon.http.edge import Edge
from antiphon.http.embed import Embed
from antiphon.http.generate import Generate
from antiphon.http.middleware import Border, Gate, Guard, Stamp

EXPOSED = ("x-request-id", "retry-after", "x-antiphon-ignored", "x-antiphon-relaxed")
"""Response headers that a web page of an allowed origin may read."""


def create_app(edge: Edge) -> Starlette:
    """The ASGI application over an edge. Starts nothing."""
    table = route_table(edge)
    app = Starlette(
        routes=table, middleware=middleware(edge, table), exception_handlers={HTTPException: _unrouted}
    )
    app.router.redirect_slashes = False  # a redirect is built from the Host header
    app.state.edge = edge
    return app


def route_table(edge: Edge) -> list[BaseRoute]:
    """Every path there is."""
    dialect, gate = edge.dialect, Middleware(Gate, edge)
    return [
        *(
            Route(operation.path, Generate(edge, operation), methods=["POST"], middleware=[gate])
            for operation in dialect.operations
        ),
        Route(dialect.embeddings.path, Embed(edge, dialect.embeddings), methods=["POST"], middleware=[gate]),
        Route(dialect.models.path, routes.list_models),
        Route(f"{dialect.models.path}/{{model:path}}", routes.show_model),
        Route(dialect.tokens.tokenize_path, routes.tokenize, methods=["POST"], middleware=[gate]),
        Route(dialect.tokens.detokenize_path, routes.detokenize, methods=["POST"], middleware=[gate]),
        Route(dialect.adapters.load_path, adapters.load, methods=["POST"], middleware=[gate]),
        Route(dialect.adapters.unload_path, adapters.unload, methods=["POST"], middleware=[gate]),
        Route("/metrics", metrics.show),
        Route("/openapi.json", routes.openapi),
        Route("/docs", routes.docs),
        Route("/docs/page.css", routes.docs_style),
        Route("/docs/page.js", routes.docs_script),
        Route("/health", health.health),
        Route("/health/ready", health.ready),
    ]


def middleware(edge: Edge, table: Sequence[BaseRoute]) -> list[Middleware]:
    """What stands before every route of the table."""
    origins = edge.settings.cors_origins
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
    )
    return [
        Middleware(Stamp, edge),
        Middleware(metrics.Count, edge, table),
        *([cors] if origins else []),
        Middleware(Border, edge),
        Middleware(Guard, edge),
        Middleware(Authenticator, edge),
    ]


async def _unrouted(request: Request, problem: Exception) -> Response:
    """What the router says of a path it does not have, in the dialect's shape."""
    if not isinstance(problem, HTTPException):
        raise problem
    error: AntiphonError = RouteNotFound("no such path; GET /openapi.json lists them")
    if problem.status_code == MethodNotAllowed.status:
        error = MethodNotAllowed(f"{request.method} is not taken here")
    body = routes.edge_of(request).dialect.error(error)
    return Response(body, error.status, problem.headers, "application/json")
