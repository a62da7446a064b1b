"""Lets web pages of other origins read answers, by the CORS protocol of the Fetch standard.

It only adds headers, which browsers obey. `OriginCheck` refuses requests of pages that are not allowed.
"""

from collections.abc import Iterable, Mapping

from antiphon.dialects.http_types import Response
from antiphon.http.limit_headers import RATE_LIMIT_HEADERS
from antiphon.http.protocol import HeaderList

EXPOSED_HEADERS = (
    "request-id",
    "x-request-id",
    "retry-after",
    "x-should-retry",
    "x-antiphon-ignored",
    "x-antiphon-relaxed",
    *RATE_LIMIT_HEADERS,
)
"""Response headers that a web page of an allowed origin may read."""

ANY_ORIGIN = "*"

VARIES = b"Origin"

PREFLIGHT_VARIES = (
    b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "
    b"Access-Control-Request-Private-Network"
)

PREFLIGHT_SECONDS = 600
"""Seconds for which a browser can keep the answer to a preflight."""

BAD_REQUEST = 400

Headers = Mapping[bytes, list[bytes]]


class Cors:
    """The headers for web pages of some origins."""

    def __init__(self, origins: Iterable[str], methods: Iterable[str]) -> None:
        """`origins`: those that may read answers; "*" allows all. `methods`: the methods of all endpoints."""
        self._origins = frozenset(origin.encode() for origin in origins)
        self._allows_all = ANY_ORIGIN.encode() in self._origins
        self._methods = frozenset(method.encode() for method in methods)
        self._exposed = (b"access-control-expose-headers", ", ".join(EXPOSED_HEADERS).encode())

    def build_headers(self, origin: bytes) -> HeaderList:
        """Returns the headers of any answer to a page of an origin."""
        headers: HeaderList = [self._exposed, (b"vary", VARIES)]
        if self._allows_all or origin in self._origins:
            headers.append((b"access-control-allow-origin", b"*" if self._allows_all else origin))
        return headers

    def answer_preflight(self, headers: Headers) -> Response:
        """Answers the request by which a browser asks what a page may send."""
        origin, method = headers[b"origin"][0], headers[b"access-control-request-method"][0]
        is_allowed = self._allows_all or origin in self._origins
        answer_headers: HeaderList = [
            (b"access-control-allow-methods", b", ".join(sorted(self._methods))),
            (b"access-control-max-age", b"%d" % PREFLIGHT_SECONDS),
            (b"vary", PREFLIGHT_VARIES),
        ]
        if is_allowed:
            answer_headers.append((b"access-control-allow-origin", b"*" if self._allows_all else origin))
        if requested_headers := headers.get(b"access-control-request-headers"):
            answer_headers.append((b"access-control-allow-headers", requested_headers[0]))
        problems = [
            *(() if is_allowed else ("origin",)),
            *(() if method in self._methods else ("method",)),
            *(("private-network",) if b"access-control-request-private-network" in headers else ()),
        ]
        if problems:
            text = f"Disallowed CORS {', '.join(problems)}"
            return Response(text.encode(), BAD_REQUEST, "text/plain", tuple(answer_headers))
        return Response(b"OK", media_type="text/plain", headers=tuple(answer_headers))
