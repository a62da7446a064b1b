"""Encodes errors and the ends of streams in Scale's form. Answers have OpenAI's form.

A stream has no `[DONE]`, because Scale's client parses every event without a name as a chunk.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from antiphon.dialects.common.chunks import OpenAIStreamEncoder, Part
from antiphon.dialects.common.list_query import QUERY
from antiphon.dialects.sgp.wire_types import SgpError, SgpProblem, SgpStreamError
from antiphon.errors import AntiphonError, MalformedBody, RequestError
from antiphon.validation_messages import STEP

_encode = msgspec.json.Encoder().encode

BAD_REQUEST, UNPROCESSABLE = 400, 422

ERROR_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "invalid_json": "json_invalid",
        "invalid_value": "value_error",
        "missing_required_parameter": "missing",
        "unknown_parameter": "extra_forbidden",
    }
)
"""FastAPI's type of a problem, by the error's code. Other errors keep their code."""

PROJECT, ACCOUNT = "x-project-id", "x-selected-account-id"
"""The header that selects a project, and Scale's name of it."""

HEADER_NAMES: Mapping[str, str] = MappingProxyType(
    {"authorization": "x-api-key", PROJECT: ACCOUNT, "x-user-id": "x-user-id"}
)
"""Scale's name of each header in an error."""


class SgpStreamEncoder(OpenAIStreamEncoder[Part]):
    """Encodes one stream. It ends without a mark, or with an event `error`."""

    def end(self) -> bytes:
        return b""

    def encode_error(self, error: AntiphonError) -> bytes:
        return encode_stream_error(error)


def encode_stream_error(error: AntiphonError) -> bytes:
    """Encodes the event `error`, which ends a broken stream."""
    data = _encode(SgpStreamError(_build_detail(error), map_status(error)))
    return b"event: error\ndata: %b\n\n" % data


def map_status(error: AntiphonError) -> int:
    """Returns the error's status: 422 for a wrong body or field, otherwise the error's own."""
    is_wrong_field = (
        isinstance(error, RequestError) and error.status == BAD_REQUEST and error.param is not None
    )
    return UNPROCESSABLE if is_wrong_field or isinstance(error, MalformedBody) else error.status


def encode_sgp_error(error: AntiphonError) -> bytes:
    """Encodes an error in FastAPI's form."""
    return _encode(SgpError(_build_detail(error)))


def _build_detail(error: AntiphonError) -> list[SgpProblem] | str:
    """Builds the list of problems for status 422, otherwise a text."""
    header, message = HEADER_NAMES.get(error.param or ""), error.message
    if header == ACCOUNT:
        message = re.sub(PROJECT, ACCOUNT, message, flags=re.IGNORECASE)
    if map_status(error) != UNPROCESSABLE:
        return message if header is None else f"{header}: {message}"
    path: list[str | int] = ["header", header] if header else _split_path(error.param or "")
    full_path = path if header or path[:1] == [QUERY] else ["body", *path]
    return [SgpProblem(full_path, message, ERROR_TYPES.get(error.code, error.code))]


def _split_path(path: str) -> list[str | int]:
    """Splits the path of a field: `messages[0].role` becomes `messages`, 0 and `role`."""
    return [int(index) if index else name for name, index in STEP.findall(path)]
