"""The log record of a request that ends with an error: one of each, and in it no word of its caller.

A field is named as far as the dialects know it, a model by its own name. Only a path for which there is no
route is logged as it came, bounded and escaped, with the client's address: it tells which base URL is wrong,
and whose.
"""

from functools import cache

from antiphon.dialects.base import Dialect, Endpoint, Request
from antiphon.dialects.common.openapi_schemas import list_body_shapes, list_field_names, list_parameters
from antiphon.errors import AntiphonError, InternalError, RouteNotFound
from antiphon.http.authenticate import CHOICES
from antiphon.http.errors import cause_of, level_of
from antiphon.http.state import AppState
from antiphon.telemetry.logs import cut_unknown_path, record

HEADERS = frozenset({"authorization", *(name.decode() for name in CHOICES)})
"""Names of headers that errors blame."""

LONGEST_PATH = 200
"""Characters of a path in the log."""


def record_refusal(
    error: AntiphonError, status: int, request: Request, raw_path: bytes, edge: AppState
) -> None:
    """Records an error that is answered with a status. A defect has its own record already."""
    if isinstance(error, InternalError):
        return
    more: dict[str, object] = {"status": status, "method": request.method}
    if isinstance(error, RouteNotFound):
        more |= {"path": shown_path(raw_path), "client": request.client}
    record_failure("refused", error, request, edge, more)


def record_failure(
    event: str,
    error: AntiphonError,
    request: Request,
    edge: AppState,
    more: dict[str, object] | None = None,
) -> None:
    """Records an error with what its work took."""
    record(
        event,
        level_of(error),
        request_id=request.id,
        code=error.code,
        cause=cause_of(error),
        param=cut_unknown_path(error.param, _known_fields(edge.dialects, edge.admin)),
        model=request.progress.model or None,
        **(more or {}),
        **request.progress.account,
    )


@cache
def _known_fields(dialects: tuple[Dialect, ...], admin: tuple[Endpoint, ...]) -> tuple[frozenset[str], ...]:
    """Names of all fields, parameters and headers of requests."""
    bodies = list_field_names(list_body_shapes(admin))
    parameters = {str(each["name"]) for endpoint in admin for each in list_parameters(endpoint)}
    return (*(dialect.fields() for dialect in dialects), bodies | parameters | {"id"}, HEADERS)


def shown_path(path: bytes) -> str:
    """A path as it was sent, in printable ASCII and not too long."""
    text = path[: LONGEST_PATH + 1].decode("ascii", "backslashreplace")
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= LONGEST_PATH else plain[:LONGEST_PATH] + "..."
