"""Turns whatever carries a credential into an actor, or refuses. Every path is protected but those of public
endpoints.

The path comes from the request line alone, and never from a URL built from the Host header.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from antiphon.auth.base import NO_SCOPE, REFUSAL, RequestedScope, TokenVerifier
from antiphon.dialects.base import Request
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor, Right
from antiphon.errors import AuthenticationFailed, InvalidValue, PermissionDenied, RequestError
from antiphon.http.state import AppState

MAX_CREDENTIAL = 8192
"""Bytes of a credential, as an issuer's tokens may have; a longer one is refused before it is hashed."""

KEY_HEADERS = (b"x-api-key", b"api-key")
PROJECT_HEADERS = (b"x-project-id", b"x-selected-account-id")
USER_HEADERS = (b"x-user-id",)
CHOICES = (*PROJECT_HEADERS, *USER_HEADERS)

ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")

MEANS = MappingProxyType(
    {
        Right.READ: "read anything",
        Right.GENERATE: "generate",
        Right.ADAPT: "load or unload adapters",
        Right.OBSERVE: "see the numbers of the whole server",
        Right.MANAGE: "manage keys or members",
    }
)
"""What a right is called in a refusal."""


class Authenticator:
    """Asks the verifiers in order. Without any, the caller is the local anonymous actor, whatever it
    sends."""

    def __init__(self, edge: AppState) -> None:
        self._verifiers = edge.verifiers
        self._managed = edge.keys_on
        """Whether there are keys that may less than others; without them there is nothing to ask."""

    async def authenticate(self, request: Request, right: Right | None) -> Actor:
        """Who calls. `right`: what the caller needs; None lets everybody pass. Raises AuthenticationFailed,
        PermissionDenied or a RequestError."""
        if right is None:
            return LOCAL_ANONYMOUS
        actor = await self._actor(request.headers)
        if self._managed:
            require_right(actor, right, request.path)
        return actor

    async def _actor(self, headers: Mapping[bytes, list[bytes]]) -> Actor:
        if not self._verifiers:
            return LOCAL_ANONYMOUS
        token = read_credential(headers)
        actor = await find_actor(self._verifiers, token, read_scope(headers)) if token else None
        if actor is None:
            raise AuthenticationFailed(REFUSAL)
        return actor


async def find_actor(
    verifiers: tuple[TokenVerifier, ...], token: str, requested: RequestedScope
) -> Actor | None:
    """The actor that the first verifier which knows the token names."""
    for verifier in verifiers:
        if (actor := await verifier.verify(token, requested)) is not None:
            return actor
    return None


def read_scope(headers: Mapping[bytes, list[bytes]]) -> RequestedScope:
    """For whom the headers say that the request speaks. Raises InvalidValue for two different ones."""
    if headers.keys().isdisjoint(CHOICES):
        return NO_SCOPE
    return RequestedScope(_read_one(headers, PROJECT_HEADERS), _read_one(headers, USER_HEADERS))


def _read_one(headers: Mapping[bytes, list[bytes]], names: tuple[bytes, ...]) -> str | None:
    """The one value of headers that mean the same; an empty one is none."""
    requested = {value.strip() for name in names for value in headers.get(name, ()) if value.strip()}
    param = names[0].decode()
    if len(requested) > 1:
        raise InvalidValue(f"the request says two different things in {param}; send one", param=param)
    if not requested:
        return None
    value = requested.pop()
    if ID.fullmatch(value) is None:
        raise InvalidValue(
            f"{param} must be an id of letters, digits, dots, dashes or underscores", param=param
        )
    return value.decode("ascii")


def require_right(actor: Actor, right: Right, path: str) -> None:
    """Raises PermissionDenied, which names what is missing."""
    if right not in actor.rights:
        raise PermissionDenied(f"this key may not {MEANS[right]}")
    if not actor.may_call(path):
        raise PermissionDenied("this key is not for this path")


def read_credential(headers: Mapping[bytes, list[bytes]]) -> str | None:
    """The one credential that the headers carry; an empty header carries none. Raises RequestError when they
    carry different ones."""
    carried = {_read_bearer(value) for value in headers.get(b"authorization", ()) if value.strip()}
    carried |= {value.strip() for name in KEY_HEADERS for value in headers.get(name, ()) if value.strip()}
    if len(carried) > 1:
        raise RequestError("the request carries two different keys; send one", param="authorization")
    token = carried.pop() if carried else b""
    if not 0 < len(token) <= MAX_CREDENTIAL:
        return None
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None


def _read_bearer(value: bytes) -> bytes:
    """The token of a bearer header; of any other scheme something that no key can be."""
    scheme, _, token = value.strip().partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b"\0" + value
