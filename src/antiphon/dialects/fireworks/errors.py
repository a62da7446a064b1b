"""The error tree in Fireworks' envelope, with its words and statuses."""

from collections.abc import Mapping

import msgspec

from antiphon.dialects.fireworks.answers import FireworksErrorBody, FireworksErrorEnvelope
from antiphon.errors import AntiphonError, BudgetExceeded

STATUSES: Mapping[int, int] = {415: 400, 431: 400, 504: 408}
"""Statuses that Fireworks' table does not have, and what it says instead."""

OVER_LIMIT = 402
"""What Fireworks says where an account is over its budget; 429 is that of a rate."""

CODES: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHORIZED",
    402: "PAYMENT_REQUIRED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "PAYLOAD_TOO_LARGE",
    429: "RATE_LIMIT_EXCEEDED",
    503: "SERVICE_UNAVAILABLE",
}
INTERNAL = "INTERNAL_SERVER_ERROR"

SENTENCES: Mapping[str, str] = {
    "model_not_found": "Model not found, inaccessible, and/or not deployed",
    "invalid_api_key": "The API key you provided is invalid",
    "context_length_exceeded": "The prompt is too long",
}
"""How Fireworks begins to tell of an error; ours says the rest."""

_encode = msgspec.json.Encoder().encode


def map_status(error: AntiphonError) -> int:
    """The status of Fireworks' table."""
    if isinstance(error, BudgetExceeded):
        return OVER_LIMIT
    return STATUSES.get(error.status, error.status)


def encode_fireworks_error(error: AntiphonError) -> bytes:
    """`{"error": {"message", "param", "code"}}`; the code is one of Fireworks' words."""
    sentence = SENTENCES.get(error.code)
    message = f"{sentence}: {error.message}" if sentence else error.message
    return _encode(
        FireworksErrorEnvelope(
            FireworksErrorBody(message, error.param, CODES.get(map_status(error), INTERNAL))
        )
    )
