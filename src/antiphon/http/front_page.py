"""The page at `/`: names the server and links to its documentation.

The page is public. So it names models only if keys are off, because every caller can then list them.
"""

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from antiphon.dialects.base import Endpoint, Request, Response, Services
from antiphon.http.state import AppState

PATH = "/"

MAX_MODELS = 50
"""The most models that the page names."""

HTML = "text/html"

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
    (b"vary", b"accept"),
)

LINKS = {"docs": "/docs", "openapi": "/openapi.json", "health": "/health"}


def declare_front_page(app_state: AppState) -> Endpoint:
    """Declares the public endpoint of the page."""
    lists_models = not app_state.verifiers

    async def show(request: Request, _services: Services) -> Response:
        names = [model.name for model in app_state.models] if lists_models else []
        if prefers_html(request):
            return Response(build_page(names, lists_models), media_type=HTML, headers=HEADERS)
        content: dict[str, object] = {"name": "Antiphon", **LINKS}
        content |= {"models": names[:MAX_MODELS]} if lists_models else {}
        return Response(json.dumps(content).encode() + b"\n", headers=HEADERS)

    return Endpoint(method="GET", path=PATH, handler=show, right=None, ends_with_caller=False)


def prefers_html(request: Request) -> bool:
    """Whether the caller is a browser: it names HTML among the types that it accepts."""
    media_types = b",".join(request.headers.get(b"accept", [])).decode("latin-1").lower().split(",")
    return any(media_type.partition(";")[0].strip() == HTML for media_type in media_types)


def build_page(names: Sequence[str], lists_models: bool) -> bytes:
    """Builds the page. `lists_models`: whether the page names the models, because every caller can list
    them."""
    page = files("antiphon.http").joinpath("docs", "front.html").read_text("utf-8")
    items = "".join(f"<li><code>{escape(name)}</code></li>" for name in names[:MAX_MODELS])
    remainder = f"<p>and {len(names) - MAX_MODELS} more</p>" if len(names) > MAX_MODELS else ""
    key_hint = "<p>This server asks for a key. With one, <code>GET /v1/models</code> lists the models.</p>"
    return page.replace(
        "<!-- models -->", f"<ul>{items}</ul>{remainder}" if lists_models else key_hint
    ).encode()
