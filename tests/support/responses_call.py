"""Decodes requests of the Responses API without a server."""

import json
from typing import Any

from antiphon.dialects.responses.conversation import Unseal
from antiphon.dialects.responses.decode import BodyDecoders, build_call
from antiphon.dialects.responses.items import LoadedInput
from antiphon.dialects.responses.wire_types import MessageItem, StoredItem
from antiphon.domain.stored_responses import SealedReasoning


def call(
    earlier: tuple[StoredItem, ...] = (), unseal: Unseal | None = None, *, stores: bool = False, **fields: Any
) -> Any:
    """The `ResponsesCall` of a request whose input has no references."""
    wire, report = BodyDecoders().decode_responses(
        json.dumps({"model": "m", "input": "Hi"} | fields).encode()
    )
    own: Any = wire.input or ()
    if isinstance(own, str):
        own = (MessageItem(role="user", content=own),)
    return build_call(wire, report, LoadedInput(earlier, tuple(own)), unseal or open_seal, stores=stores)


def open_seal(text: str) -> SealedReasoning | None:
    """Opens what begins with `sealed `."""
    return SealedReasoning(text.removeprefix("sealed ")) if text.startswith("sealed ") else None
