"""The error tree in Empower's flat shape."""

import msgspec

from antiphon.dialects.common.encode import error_type
from antiphon.dialects.empower.answers import FlatError, StreamedError
from antiphon.errors import AntiphonError

_encode = msgspec.json.Encoder().encode


def encode_flat_error(error: AntiphonError) -> bytes:
    """`{"object": "error", "message", "type", "param", "code"}`."""
    return _encode(_build_error(error))


def encode_streamed_error(error: AntiphonError) -> bytes:
    """The same under the key `error`."""
    return _encode(StreamedError(_build_error(error)))


def _build_error(error: AntiphonError) -> FlatError:
    return FlatError(message=error.message, type=error_type(error), param=error.param, code=error.code)
