"""What the Messages API is on both sides: as a dialect in front of this server, and as a vendor behind it.

Shapes that differ stay apart. A dialect writes every field, and refuses what it does not know. A vendor's
answer may leave fields out, and unknown ones are skipped.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

SMALLEST_BUDGET = 1024
"""The smallest budget of reasoning."""

OWN_TOOLS = ("bash_", "text_editor_", "memory_", "computer_", "browser_")
"""How the types of tools begin that the caller runs, and whose schemas only Anthropic knows."""

Effort = Literal["low", "medium", "high", "xhigh", "max"]

ERROR_STATUSES: Mapping[str, int] = MappingProxyType(
    {
        "invalid_request_error": 400,
        "authentication_error": 401,
        "billing_error": 402,
        "permission_error": 403,
        "not_found_error": 404,
        "conflict_error": 409,
        "request_too_large": 413,
        "rate_limit_error": 429,
        "api_error": 500,
        "overloaded_error": 503,
        "timeout_error": 504,
    }
)
"""The types of errors with their HTTP statuses."""


class TextPiece(Struct, frozen=True, gc=False, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingPiece(Struct, frozen=True, gc=False, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignaturePiece(Struct, frozen=True, gc=False, tag_field="type", tag="signature_delta"):
    """The end of reasoning."""

    signature: str


class InputPiece(Struct, frozen=True, gc=False, tag_field="type", tag="input_json_delta"):
    """More of a call's arguments, as JSON text."""

    partial_json: str


Piece = TextPiece | ThinkingPiece | SignaturePiece | InputPiece
"""More of a block."""
