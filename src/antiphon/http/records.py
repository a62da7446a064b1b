"""The log record of a request that ends with an error: one of each, and in it no word of its caller.

A field is named as far as the dialects know it, a model by its own name. Only a path for which there is no
route is logged as it came, bounded and escaped, with the client's address: it tells which base URL is wrong,
and whose.
"""

from starlette.types import Scope

from antiphon.domain.context import Progress
from antiphon.errors import AntiphonError, InternalError, RouteNotFound
from antiphon.http.admin import describe as admin
from antiphon.http.authenticate import CHOICES
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.errors import cause_of, level_of
from antiphon.telemetry.fields import known_path
from antiphon.telemetry.logs import record

HEADERS = frozenset({"authorization", *(name.decode() for name in CHOICES)})
"""Names of headers that errors blame."""

LONGEST_PATH = 200
"""Characters of a path in the log."""


def record_refusal(error: AntiphonError, status: int, scope: Scope, edge: Edge) -> None:
    """Records an error that is answered with a status. A defect has its own record already."""
    if isinstance(error, InternalError):
        return
    exchange = exchange_of(scope)
    more: dict[str, object] = {"status": status, "method": scope["method"]}
    if isinstance(error, RouteNotFound):
        client = scope.get("client")
        more |= {"path": shown_path(scope["raw_path"]), "client": client[0] if client else None}
    record_failure("refused", error, exchange.request_id, exchange.progress, edge, more)


def record_failure(
    event: str,
    error: AntiphonError,
    request_id: str,
    progress: Progress,
    edge: Edge,
    more: dict[str, object] | None = None,
) -> None:
    """Records an error with what its work took."""
    names = (*(dialect.fields() for dialect in edge.dialects), admin.fields(), HEADERS)
    record(
        event,
        level_of(error),
        request_id=request_id,
        code=error.code,
        cause=cause_of(error),
        param=known_path(error.param, names),
        model=progress.model or None,
        **(more or {}),
        **progress.account,
    )


def shown_path(path: bytes) -> str:
    """A path as it was sent, in printable ASCII and not too long."""
    text = path[: LONGEST_PATH + 1].decode("ascii", "backslashreplace")
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= LONGEST_PATH else plain[:LONGEST_PATH] + "..."
