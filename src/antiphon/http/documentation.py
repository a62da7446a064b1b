"""The OpenAPI document, and the page that shows it: a shell without data, which asks for the key."""

from collections.abc import Sequence
from importlib.resources import files

from antiphon.dialects.base import Endpoint, Request, Response, Services
from antiphon.domain.identity import Right
from antiphon.http.openapi import document
from antiphon.http.state import AppState

PAGE_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)

PAGES = (
    ("/docs", "page.html", "text/html"),
    ("/docs/page.css", "page.css", "text/css"),
    ("/docs/page.js", "page.js", "text/javascript"),
)


def document_endpoint(edge: AppState, own: Sequence[Endpoint]) -> Endpoint:
    """The OpenAPI document. `own`: the server's endpoints of no product."""

    async def show(_request: Request, _services: Services) -> Response:
        return Response(document(edge.dialects, own, edge.admin, keyed=bool(edge.verifiers)))

    return Endpoint(method="GET", path="/openapi.json", handler=show, right=Right.READ)


def page_endpoints() -> tuple[Endpoint, ...]:
    """The page, its style sheet and its script."""
    return tuple(_page(*page) for page in PAGES)


def _page(path: str, name: str, media_type: str) -> Endpoint:
    async def show(_request: Request, _services: Services) -> Response:
        body = files("antiphon.http").joinpath("docs", name).read_bytes()
        return Response(body, media_type=media_type, headers=PAGE_HEADERS)

    return Endpoint(method="GET", path=path, handler=show, right=None, ends_with_caller=False)
