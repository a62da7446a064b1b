"""Reads errors in OpenAI's format: bodies of errors, and errors that come instead of an answer."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from antiphon.engines.vendors.base import StreamFailure, VendorError
from antiphon.engines.vendors.openai.wire_types import ErrorAnswer, ErrorWire

read_error = msgspec.json.Decoder(ErrorAnswer).decode

STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "rate_limit_exceeded": 429,
        "rate_limit_error": 429,
        "insufficient_quota": 429,
        "invalid_request_error": 400,
        "context_length_exceeded": 400,
        "authentication_error": 401,
        "overloaded_error": 503,
        "server_overloaded": 503,
        "engine_unavailable": 503,
    }
)
"""The HTTP status that belongs to a code or type of an error inside a stream."""


def decode_error(body: bytes) -> VendorError:
    """Reads the body of an error. A body that cannot be read gives an empty message."""
    try:
        answer = read_error(body.strip().removeprefix(b"[").removesuffix(b"]"))
    except msgspec.MsgspecError:
        return VendorError("")
    if answer.error is not None:
        return build_error(answer.error)
    message = answer.message if answer.message is not None else answer.detail
    return build_error(ErrorWire(message, answer.type, answer.code))


def build_error(error: ErrorWire | str) -> VendorError:
    """Converts an error in an answer."""
    if isinstance(error, str):
        return VendorError(error)
    code, name = error.code, error.type if isinstance(error.type, str) else ""
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    kind = code if isinstance(code, str) else name
    status = code if isinstance(code, int) else STATUSES.get(kind, STATUSES.get(name))
    return VendorError(
        _find_text(error.message),
        kind,
        status if status is None or 400 <= status < 600 else None,
        param=error.param if isinstance(error.param, str) else None,
    )


def _find_text(message: object) -> str:
    """Returns the text of an error. FastAPI sends a list of problems, and some servers nest the message."""
    match message:
        case str():
            return message
        case {"msg": str(text), "loc": list(place)}:
            return f"{'.'.join(map(str, place))}: {text}"
        case {"message": inner} | {"detail": inner}:
            return _find_text(inner)
        case list():
            return "; ".join(filter(None, map(_find_text, message)))
    return ""


def require_no_error(data: bytes) -> None:
    """Raises StreamFailure for a chunk that is an error without the field `error`."""
    error = decode_error(data)
    if error.message:
        raise StreamFailure(error)
