"""The error tree in OpenAI's envelope."""

import msgspec

from antiphon.dialects.common.answers import ErrorBody, ErrorEnvelope
from antiphon.errors import AntiphonError, BudgetExceeded

SERVER = 500
"""Status from which the fault is the server's."""

TOO_MANY = 429

_ENCODER = msgspec.json.Encoder()


def encode_error(error: AntiphonError) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`; the type is one of OpenAI's, the code is ours."""
    return _ENCODER.encode(
        ErrorEnvelope(ErrorBody(error.message, error_type(error), error.param, error.code))
    )


def error_type(error: AntiphonError) -> str:
    """OpenAI's word for whose fault it is."""
    if isinstance(error, BudgetExceeded):
        return error.code
    if error.status >= SERVER:
        return "server_error"
    return "rate_limit_error" if error.status == TOO_MANY else "invalid_request_error"
