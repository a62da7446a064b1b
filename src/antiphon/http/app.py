"""The application: the table of routes, and the middleware every request passes, outermost first."""

from collections.abc import Callable, Iterator, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route

from antiphon.dialects.base import Dialect, LoraDialect, LoraOperations, OwnDialect
from antiphon.errors import AntiphonError, MethodNotAllowed, RouteNotFound
from antiphon.http import adapters, health, metrics, routes
from antiphon.http.admin.limits import AdminLimits
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pricing import PriceRoutes
from antiphon.http.admin.recording import RecordingRoutes
from antiphon.http.admin.routes import Admin
from antiphon.http.admin.usage import UsageRoutes
from antiphon.http.authenticate import Authenticator
from antiphon.http.edge import Edge
from antiphon.http.embed import Embed
from antiphon.http.generate import Generate
from antiphon.http.loras import LoraRoutes
from antiphon.http.middleware import Border, Gate, Guard, Stamp
from antiphon.http.standings import NAMES as STANDINGS

EXPOSED = (
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "x-antiphon-ignored",
    "x-antiphon-relaxed",
    *STANDINGS,
)
"""Response headers that a web page of an allowed origin may read."""


WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


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
    """Every path there is: each dialect's, then the server's own."""
    return [
        *(route for dialect in edge.dialects for route in _spoken(edge, dialect)),
        *_own(edge, edge.dialect),
        *_managed(edge),
        Route("/metrics", metrics.show),
        Route("/openapi.json", routes.openapi),
        Route("/docs", routes.docs),
        Route("/docs/page.css", routes.docs_style),
        Route("/docs/page.js", routes.docs_script),
        Route("/health", health.health),
        Route("/health/ready", health.ready),
    ]


def _spoken(edge: Edge, dialect: Dialect) -> Iterator[Route]:
    """The paths of what every dialect has."""
    for operation in dialect.operations:
        yield _posted(edge, operation.path, Generate(edge, operation, dialect.name))
    if dialect.models is not None:
        models = routes.ModelRoutes(dialect.models)
        yield Route(dialect.models.path, models.listed)
        yield Route(f"{dialect.models.path}/{{model:path}}", models.shown)
    if isinstance(dialect, LoraDialect):
        yield from _deploying(edge, dialect.loras)


def _deploying(edge: Edge, operations: LoraOperations) -> Iterator[Route]:
    """The paths of a dialect in which callers deploy adapters, whose names hold slashes."""
    loras, bases = operations.loras_path, operations.bases_path
    handlers = LoraRoutes(operations)
    yield _posted(edge, loras, handlers.deploy)
    yield Route(loras, handlers.listed)
    yield Route(f"{loras}/{{name:path}}", handlers.shown)
    yield Route(f"{loras}/{{name:path}}", handlers.remove, methods=["DELETE"])
    yield Route(bases, handlers.bases)
    yield Route(f"{bases}/{{name:path}}", handlers.base)


def _own(edge: Edge, dialect: OwnDialect) -> Iterator[Route]:
    """The paths of what only the server's own dialect has."""
    yield _posted(edge, dialect.embeddings.path, Embed(edge, dialect.embeddings, dialect.name))
    tokens = dialect.tokens
    yield from (_posted(edge, path, routes.tokenize) for path in tokens.tokenize_paths)
    yield from (_posted(edge, path, routes.detokenize) for path in tokens.detokenize_paths)
    yield from (_posted(edge, path, routes.apply_template) for path in tokens.apply_paths)
    yield _posted(edge, dialect.adapters.load_path, adapters.load)
    yield _posted(edge, dialect.adapters.unload_path, adapters.unload)


def _managed(edge: Edge) -> Iterator[Route]:
    """The paths of projects, users, keys, limits, prices and usage, where keys are on."""
    gate, naming = [Middleware(Gate, edge)], Naming(edge.models, edge.pricing)
    tables = [
        *([] if edge.tenants is None else Admin(edge.tenants, naming).table()),
        *([] if edge.limiting is None else AdminLimits(edge.limiting, edge.models, naming).table()),
        *([] if edge.pricing is None else PriceRoutes(edge.pricing, naming).table()),
        *([] if edge.recordings is None else RecordingRoutes(edge.recordings).table()),
        *([] if edge.reading is None else UsageRoutes(edge.reading, edge.clock).table()),
    ]
    for method, path, handler in tables:
        yield Route(path, handler, methods=[method], middleware=gate if method in WITH_BODY else None)


def _posted(edge: Edge, path: str, endpoint: Callable[..., object]) -> Route:
    """A path that takes a JSON body."""
    return Route(path, endpoint, methods=["POST"], middleware=[Middleware(Gate, edge)])


def middleware(edge: Edge, table: Sequence[BaseRoute]) -> list[Middleware]:
    """What stands before every route of the table."""
    origins = edge.settings.cors_origins
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=sorted(methods(table)),
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


def methods(table: Sequence[BaseRoute]) -> set[str]:
    """All that any route takes."""
    return {method for route in table if isinstance(route, Route) for method in route.methods or ()} - {
        "HEAD"
    }


async def _unrouted(request: Request, problem: Exception) -> Response:
    """What the router says of a path it does not have, in the dialect's shape."""
    if not isinstance(problem, HTTPException):
        raise problem
    error: AntiphonError = RouteNotFound("no such path; GET /openapi.json lists them")
    headers = dict(problem.headers or {})
    if problem.status_code == MethodNotAllowed.status:
        error = MethodNotAllowed(f"{request.method} is not taken here")
        headers["allow"] = ", ".join(sorted(_taken(request)))
    dialect = routes.edge_of(request).dialect_of(request.scope["path"])
    return Response(dialect.error(error), dialect.status(error), headers, "application/json")


def _taken(request: Request) -> set[str]:
    """Every method of the routes that lie at a path; the router tells those of the first."""
    table = (route for route in request.app.routes if isinstance(route, Route))
    at = (route for route in table if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in at for method in route.methods or ()}
