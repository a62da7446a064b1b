"""What the Responses API is on both sides: as a dialect in front of this server, and as a vendor behind it.

The shapes of items and events stay apart. A dialect writes every field, and refuses what it does not know. A
vendor's answer may leave fields out, and unknown ones are skipped.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from antiphon.domain.events import FinishReason

LOGPROBS, SEALED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""Names in `include`."""

IncompleteReason = Literal["max_output_tokens", "content_filter"]

INCOMPLETE_REASONS: Mapping[FinishReason, IncompleteReason] = MappingProxyType(
    {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
)
"""Why an answer is incomplete. An answer with another finish reason is complete."""

LIFETIMES: Mapping[str, Literal["30m", "12h"]] = MappingProxyType({"5m": "30m", "1h": "12h"})
"""Lifetimes of cached prompts of other vendors, and the nearest ones of OpenAI."""
