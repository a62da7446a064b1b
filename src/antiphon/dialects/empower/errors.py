"""The error tree in Empower's flat shape."""

import msgspec

from antiphon.dialects.common.errors import error_type
from antiphon.dialects.empower.answers import FlatError, StreamedError
from antiphon.errors import AntiphonError

_encode = msgspec.json.Encoder().encode


def encode_error(error: AntiphonError) -> bytes:
    """`{"object": "error", "message", "type", "param", "code"}`."""
    return _encode(_flat(error))


def encode_streamed(error: AntiphonError) -> bytes:
    """The same under the key `error`."""
    return _encode(StreamedError(_flat(error)))


def _flat(error: AntiphonError) -> FlatError:
    return FlatError(message=error.message, type=error_type(error), param=error.param, code=error.code)
