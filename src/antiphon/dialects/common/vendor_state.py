"""Reads data of an earlier answer that a vendor needs again: blocks of reasoning and signatures of calls.

Clients send both in the assistant's messages. Their content is not changed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.dialects.common.request_types import ChatMessage
from antiphon.dialects.common.tools import require_shallow
from antiphon.errors import InvalidValue

LARGEST_BLOCKS = 1 << 22
"""The most characters of JSON in one message's blocks. The longest reasoning of current models has 128,000
tokens, which are about a megabyte with the signature."""

LONGEST_SIGNATURE = 1 << 20
"""The most characters of a call's signature. Vendors send some thousands."""

NOTHING: tuple[Mapping[str, object], ...] = ()


def read_thinking_blocks(message: ChatMessage, path: str) -> tuple[Mapping[str, object], ...]:
    """Returns the blocks of reasoning of a message. Raises InvalidValue if they are too large, nested too
    deeply, or not in an assistant's message."""
    blocks: Sequence[Mapping[str, Any]] | None = message.thinking_blocks
    if not blocks:
        return NOTHING
    field = f"{path}.thinking_blocks"
    if message.role != "assistant":
        raise InvalidValue(f"{field} is taken only in messages of the role assistant", param=field)
    require_shallow(blocks, field)
    try:
        size = len(json.dumps(blocks, allow_nan=False, ensure_ascii=False))
    except ValueError:
        raise InvalidValue(f"{field} must hold finite numbers", param=field) from None
    if size > LARGEST_BLOCKS:
        raise InvalidValue(
            f"{field} has {size:,} characters as JSON; the limit is {LARGEST_BLOCKS:,}", param=field
        )
    return tuple(blocks)


def read_signature(extra_content: Mapping[str, Any] | None, field: str) -> str | None:
    """Returns the signature of a call, in Google's form. `field`: the caller's name of `extra_content`.
    Raises InvalidValue if the signature is not a text or too long."""
    google = extra_content.get("google") if extra_content else None
    signature = google.get("thought_signature") if isinstance(google, Mapping) else None
    if signature is None:
        return None
    path = f"{field}.google.thought_signature"
    if not isinstance(signature, str) or not 0 < len(signature) <= LONGEST_SIGNATURE:
        raise InvalidValue(f"{path} must be a text of 1 to {LONGEST_SIGNATURE:,} characters", param=path)
    return signature


def is_only_signature(extra_content: object) -> bool:
    """Whether the object contains only a signature."""
    if not isinstance(extra_content, dict) or extra_content.keys() != {"google"}:
        return False
    google = extra_content["google"]
    return isinstance(google, dict) and google.keys() == {"thought_signature"}
