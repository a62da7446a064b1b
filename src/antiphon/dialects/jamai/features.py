"""The parts of JamAI Base that this server does not have. Each answers 501 and names itself."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from antiphon.dialects.base import Endpoint, Handler
from antiphon.dialects.http_types import Answer, Request
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.errors import FeatureNotServed

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

FEATURES: Mapping[str, str] = MappingProxyType(
    {
        "v1/gen_tables": "generative tables at /v1; knowledge tables are at /v2",
        "v2/gen_tables": "generative tables besides knowledge tables, and their columns, generated cells, "
        "imports and exports",
        "v2/auth": "accounts with passwords",
        "v2/conversations": "stored conversations",
        "v2/files": "files",
        "v2/meters": "meters; `antiphon usage` and the admin API show the usage",
        "v2/models": "the catalogue of models; the operator's settings name them",
        "v2/organizations": "organizations; the admin API has projects",
        "v2/prices": "price plans; the admin API has prices",
        "v2/progress": "progress of tasks",
        "v2/templates": "templates",
        "v2/users": "accounts of users; the admin API has users",
    }
)
"""Maps paths below the base to the parts that are missing there."""

NO_KEYS = "access tokens, since keys are off; set ANTIPHON_KEYS=true and restart the server"
"""The message about access tokens if keys are off."""

PROJECT_CHANGES = "changes of projects; the admin API has them"
"""The message about methods other than GET for a project."""


@cache
def declare_features(has_keys: bool = True) -> tuple[Endpoint, ...]:
    """Declares the endpoints of the missing parts. They are not in the OpenAPI document. `has_keys`: whether
    there are access tokens."""
    return tuple(_declare_missing(FEATURES if has_keys else {**FEATURES, "v2/pats": NO_KEYS}))


def _declare_missing(features: Mapping[str, str]) -> Iterator[Endpoint]:
    """Yields an endpoint for each method of each missing part."""
    for path, missing_part in features.items():
        yield from (_declare_refusal(method, f"{BASE}/{path}", missing_part) for method in METHODS)
    for path in ("v2/projects/members", "v2/projects/invites", "v2/projects/import", "v2/projects/export"):
        yield from (_declare_refusal(method, f"{BASE}/{path}", PROJECT_CHANGES) for method in METHODS)
    for method in ("POST", "PATCH", "DELETE"):
        yield Endpoint(
            method=method,
            path=f"{BASE}/v2/projects",
            handler=_build_handler(PROJECT_CHANGES),
            right=Right.READ,
            is_suggested=False,
        )


def _declare_refusal(method: str, path: str, missing_part: str) -> Endpoint:
    """Declares an endpoint for a path and all paths below it."""
    return Endpoint(
        method=method,
        path=path,
        aliases=(f"{path}/{{rest:path}}",),
        handler=_build_handler(missing_part),
        right=Right.READ,
        is_suggested=False,
    )


def _build_handler(missing_part: str) -> Handler:
    """Returns a handler that refuses every request."""

    async def refuse(_request: Request, _services: Services) -> Answer:
        raise build_refusal(missing_part)

    return refuse


def build_refusal(missing_part: str) -> FeatureNotServed:
    """Returns the error for a part that this server does not have."""
    return FeatureNotServed(f"not part of this server's JamAI Base: {missing_part}")
