"""The table of routes, and the application over it."""

from collections.abc import Awaitable, Callable, Iterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from antiphon.dialects.base import Dialect, LoraDialect, LoraOperations, OwnDialect
from antiphon.errors import RouteNotFound
from antiphon.http import adapters, health, metrics, routes, server_info
from antiphon.http.admin.limits import AdminLimits
from antiphon.http.admin.naming import Naming
from antiphon.http.admin.pricing import PriceRoutes
from antiphon.http.admin.recording import RecordingRoutes
from antiphon.http.admin.routes import Admin
from antiphon.http.admin.usage import UsageRoutes
from antiphon.http.application import Application, Endpoint
from antiphon.http.body import BodyReader
from antiphon.http.connection import connection_of
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.embed import Embed
from antiphon.http.generate import Generate
from antiphon.http.loras import LoraRoutes

WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

Handler = Callable[[Request], Awaitable[Response]]


def create_app(edge: Edge) -> Application:
    """The ASGI application over an edge. Starts nothing."""
    others = Starlette(routes=other_routes(edge))
    others.router.redirect_slashes = False  # a redirect is built from the Host header
    others.state.edge = edge
    return Application(edge, generating(edge), others, route_table(edge))


def generating(edge: Edge) -> dict[str, Endpoint]:
    """What generates text or vectors, by path."""
    found: dict[str, Endpoint] = {
        operation.path: Generate(edge, operation, dialect.name).answer
        for dialect in edge.dialects
        for operation in dialect.operations
    }
    embeddings = edge.dialect.embeddings
    return found | {embeddings.path: Embed(edge, embeddings, edge.dialect.name).answer}


def route_table(edge: Edge) -> list[Route]:
    """Every path there is, as the router would have it."""
    posted = [Route(path, _unreached, methods=["POST"]) for path in generating(edge)]
    return [*posted, *other_routes(edge)]


async def _unreached(_: Request) -> Response:
    """The application answers what generates before it asks the router."""
    raise RouteNotFound("no such path")


def other_routes(edge: Edge) -> list[Route]:
    """What does not generate: each dialect's, then the server's own."""
    return [
        *(route for dialect in edge.dialects for route in _spoken(edge, dialect)),
        *_own(edge, edge.dialect),
        *_managed(edge),
        Route("/metrics", metrics.show),
        Route("/version", server_info.version),
        Route("/load", server_info.load),
        Route("/openapi.json", routes.openapi),
        Route("/docs", routes.docs),
        Route("/docs/page.css", routes.docs_style),
        Route("/docs/page.js", routes.docs_script),
        Route("/health", health.health),
        Route("/health/ready", health.ready),
    ]


def _spoken(edge: Edge, dialect: Dialect) -> Iterator[Route]:
    """The paths of what every dialect has."""
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
    tokens = dialect.tokens
    yield from (_posted(edge, path, routes.tokenize) for path in tokens.tokenize_paths)
    yield from (_posted(edge, path, routes.detokenize) for path in tokens.detokenize_paths)
    yield from (_posted(edge, path, routes.apply_template) for path in tokens.apply_paths)
    yield Route(tokens.tokenizer_path, routes.tokenizer_info)
    yield _posted(edge, dialect.adapters.load_path, adapters.load)
    yield _posted(edge, dialect.adapters.unload_path, adapters.unload)


def _managed(edge: Edge) -> Iterator[Route]:
    """The paths of projects, users, keys, limits, prices and usage, where keys are on."""
    naming = Naming(edge.models, edge.pricing)
    tables = [
        *([] if edge.tenants is None else Admin(edge.tenants, naming).table()),
        *([] if edge.limiting is None else AdminLimits(edge.limiting, edge.models, naming).table()),
        *([] if edge.pricing is None else PriceRoutes(edge.pricing, naming).table()),
        *([] if edge.recordings is None else RecordingRoutes(edge.recordings).table()),
        *([] if edge.reading is None else UsageRoutes(edge.reading, edge.clock).table()),
    ]
    for method, path, handler in tables:
        yield Route(path, with_body(edge, handler) if method in WITH_BODY else handler, methods=[method])


def _posted(edge: Edge, path: str, handler: Handler) -> Route:
    """A path that takes a JSON body."""
    return Route(path, with_body(edge, handler), methods=["POST"])


def with_body(edge: Edge, handler: Handler) -> Handler:
    """The handler, after the body of its request was read."""
    reader = BodyReader(edge)

    async def read_and_handle(request: Request) -> Response:
        scope = request.scope
        account = await reader.read(exchange_of(scope), request.receive, connection_of(scope))
        try:
            return await handler(request)
        finally:
            account.release()

    return read_and_handle
