"""Personal access tokens in JamAI Base's form. They are this server's access tokens of the calling user.

JamAI's id of a token is the token itself. This server shows a token only once, when it is created. Later its
id is the id of the key. `pat_id` accepts both.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.common.list_query import ListQuery
from antiphon.dialects.http_types import JSON, Answer, Request, Response
from antiphon.dialects.jamai.features import NO_KEYS, build_refusal
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.jamai.lists import PAGING, JamaiPage, build_page, declare_paging, declare_parameter
from antiphon.dialects.jamai.wire_types import Done
from antiphon.dialects.services import Services, TokenService
from antiphon.domain.identity import Actor, Right
from antiphon.domain.tenancy import NAME_PATTERN, Key
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter, PermissionDenied

_encode = msgspec.json.Encoder().encode

TOKENS_PATH = f"{BASE}/v2/pats"

TOKEN_SORT_KEYS = ("id", "name", "created_at", "updated_at", "expiry")

LONGEST_NAME = 255
"""The most characters of a token's name. JamAI has the same limit."""

NO_STORE = ((b"cache-control", b"no-store"),)

TokenName = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]

Expiry = Annotated[datetime, Meta(tz=True)]


class NewPat(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A token to create. Without `expiry` it never ends."""

    name: TokenName
    expiry: Expiry | None = None
    project_id: str | None = None
    """The only project of the token; null means every project of its user."""
    meta: dict[str, Any] | None = None
    """An empty object, which JamAI's client sends."""


class PatChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The values to change. Others stay. A null `expiry` means that the token never ends."""

    name: TokenName | None = None
    expiry: Expiry | UnsetType | None = UNSET
    meta: dict[str, Any] | None = None


class Pat(Struct, frozen=True, kw_only=True):
    """One token."""

    meta: dict[str, Any] = field(default_factory=dict)
    id: str
    """The token itself when it is created, later the id of its key."""
    user_id: str
    name: str
    expiry: Expiry | None
    project_id: str | None
    created_at: Expiry
    updated_at: Expiry
    """The same as `created_at`: the time of a change is not stored."""


class PatPage(JamaiPage, frozen=True, kw_only=True):
    """A part of the list of tokens."""

    items: list[Pat]


def declare_tokens() -> tuple[Endpoint, ...]:
    """Declares the endpoints of personal access tokens."""
    parameters = (declare_parameter("pat_id", {"type": "string"}, required=True),)
    body, change = RequestBody(shape=NewPat), RequestBody(shape=PatChange)
    return (
        replace(
            _declare_token_endpoint("POST", TOKENS_PATH, create_token, Pat, "Create an access token"),
            body=body,
        ),
        replace(
            _declare_token_endpoint(
                "GET", f"{TOKENS_PATH}/list", list_tokens, PatPage, "List the caller's access tokens"
            ),
            parameters=declare_paging(TOKEN_SORT_KEYS),
        ),
        replace(
            _declare_token_endpoint("PATCH", TOKENS_PATH, change_token, Pat, "Change an access token"),
            body=change,
            parameters=parameters,
        ),
        replace(
            _declare_token_endpoint("DELETE", TOKENS_PATH, revoke_token, Done, "End an access token now"),
            parameters=parameters,
        ),
    )


def _declare_token_endpoint(
    method: str, path: str, handler: Handler, answer: object, summary: str
) -> Endpoint:
    """Declares an endpoint that needs the right to manage keys."""
    return Endpoint(
        method=method,
        path=path,
        handler=handler,
        right=Right.MANAGE,
        summary=summary,
        tag="pats",
        answers={JSON: answer},
        ends_with_caller=False,
    )


async def create_token(request: Request, services: Services) -> Answer:
    """Creates a token of the calling user. Only this answer contains it."""
    tokens, actor = _require_service(services), request.actor
    body = decode_json(request.body, NewPat)
    _require_no_meta(body.meta)
    _require_name(body.name)
    if actor.user is None:
        raise MissingParameter("X-USER-ID is missing: name the user whose token it is", param="x-user-id")
    expires, project = _read_expiry(body.expiry, actor), body.project_id or None
    if actor.is_bound and project not in (None, actor.project):
        raise PermissionDenied(
            f"project_id must be {actor.project}, the only project of your own key", param="project_id"
        )
    key, secret = await tokens.add_token(actor, body.name, project, expires)
    return _build_token_response(replace_id(build_token(key), secret))


async def list_tokens(request: Request, services: Services) -> Answer:
    query = ListQuery(request.query(), *PAGING)
    tokens = [build_token(key) for key in _require_service(services).list_tokens(request.actor)]
    return Response(_encode(build_page(PatPage, tokens, query, TOKEN_SORT_KEYS)), headers=NO_STORE)


async def change_token(request: Request, services: Services) -> Answer:
    tokens, actor = _require_service(services), request.actor
    pat_id = ListQuery(request.query(), "pat_id").require("pat_id")
    change = decode_json(request.body, PatChange)
    _require_no_meta(change.meta)
    changed_values: dict[str, Any] = {}
    if change.name is not None:
        _require_name(change.name)
        changed_values["note"] = change.name
    if change.expiry is not UNSET:
        changed_values["expires"] = _read_expiry(change.expiry, actor)
    key = await tokens.change_token(actor, pat_id, partial(replace, **changed_values))
    return _build_token_response(build_token(key))


async def revoke_token(request: Request, services: Services) -> Answer:
    pat_id = ListQuery(request.query(), "pat_id").require("pat_id")
    await _require_service(services).revoke_token(request.actor, pat_id)
    return Response(_encode(Done()), headers=NO_STORE)


def _build_token_response(token: Pat) -> Response:
    """Returns the response with one token. No cache must store this response."""
    return Response(_encode(token), headers=NO_STORE)


def _require_service(services: Services) -> TokenService:
    """Returns the token service. Raises FeatureNotServed if keys are off."""
    if services.tokens is None:
        raise build_refusal(NO_KEYS)
    return services.tokens


def _require_no_meta(meta: Mapping[str, Any] | None) -> None:
    """Raises InvalidValue if the caller sends metadata for a token."""
    if meta:
        raise InvalidValue("meta must be empty: no metadata of tokens are stored", param="meta")


def _require_name(name: str) -> None:
    """Raises InvalidValue for a name that lists cannot show."""
    if re.match(NAME_PATTERN, name) is None:
        raise InvalidValue(
            "name must be a text without control characters, and not only blanks", param="name"
        )


def _read_expiry(expiry: datetime | None, actor: Actor) -> int | None:
    """Returns the expiry in Unix seconds. Raises PermissionDenied if the caller's own key ends earlier."""
    expires = None if expiry is None else int(expiry.timestamp())
    if actor.expires is not None and (expires is None or expires > actor.expires):
        key_end = datetime.fromtimestamp(actor.expires, UTC).isoformat()
        raise PermissionDenied(f"expiry must be at most {key_end}, when your own key ends", param="expiry")
    return expires


def build_token(key: Key) -> Pat:
    """Builds the entry of one token. The name of a key without a note is its prefix."""
    created = datetime.fromtimestamp(key.created, UTC)
    shown_note = "".join(character if character.isprintable() else " " for character in key.note).strip()
    return Pat(
        id=key.id,
        user_id=key.user or "",
        name=shown_note[:LONGEST_NAME] or key.prefix,
        expiry=None if key.expires is None else datetime.fromtimestamp(key.expires, UTC),
        project_id=key.project,
        created_at=created,
        updated_at=created,
    )


def replace_id(token: Pat, secret: str) -> Pat:
    return msgspec.structs.replace(token, id=secret)
