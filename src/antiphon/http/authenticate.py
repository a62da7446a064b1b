"""Turns whatever carries a credential into an actor, or refuses. Every path is protected but a constant list.

It reads the scope's path, which comes from the request line alone, and never a URL built from the Host
header.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.auth.base import TokenVerifier
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.errors import AuthenticationFailed, RequestError
from antiphon.http.edge import Edge, exchange_of

PUBLIC = frozenset({"/health", "/health/ready", "/docs", "/docs/page.css", "/docs/page.js"})
"""Paths that anybody may read: they hold no data."""

MAX_CREDENTIAL = 4096
"""Bytes of a credential; a longer one is refused before it is hashed."""

KEY_HEADERS = (b"x-api-key", b"api-key")

REFUSAL = "no valid API key; send the key in the header Authorization: Bearer KEY"


class Authenticator:
    """Asks the verifiers in order. Without any, the caller is the local anonymous actor, whatever it
    sends."""

    def __init__(self, app: ASGIApp, edge: Edge) -> None:
        self._app = app
        self._verifiers = edge.verifiers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in PUBLIC:
            exchange_of(scope).actor = await self._actor(scope)
        await self._app(scope, receive, send)

    async def _actor(self, scope: Scope) -> Actor:
        if not self._verifiers:
            return LOCAL_ANONYMOUS
        token = credential(exchange_of(scope).headers)
        actor = await first_known(self._verifiers, token) if token else None
        if actor is None:
            raise AuthenticationFailed(REFUSAL)
        return actor


async def first_known(verifiers: tuple[TokenVerifier, ...], token: str) -> Actor | None:
    """The actor that the first verifier which knows the token names."""
    for verifier in verifiers:
        if (actor := await verifier.verify(token)) is not None:
            return actor
    return None


def credential(headers: dict[bytes, list[bytes]]) -> str | None:
    """The one credential that the headers carry. Raises RequestError when they carry different ones."""
    carried = {_bearer(value) for value in headers.get(b"authorization", ())}
    carried |= {value.strip() for name in KEY_HEADERS for value in headers.get(name, ())}
    if len(carried) > 1:
        raise RequestError("the request carries two different keys; send one", param="authorization")
    token = carried.pop() if carried else b""
    if not 0 < len(token) <= MAX_CREDENTIAL:
        return None
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def _bearer(value: bytes) -> bytes:
    """The token of a bearer header; of any other scheme something that no key can be."""
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b"\0" + value
