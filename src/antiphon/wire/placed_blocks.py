"""The places of a vendor's blocks of reasoning in a message of the assistant.

A message has its text and its calls apart, and a vendor needs its blocks back where they were among both. So
this server adds a place to each block that does not come first. Clients send the block back as it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from msgspec import Meta, Struct

C = TypeVar("C")
B = TypeVar("B")

AFTER = "after"
"""The field of a block that has its place."""


class BlockPlace(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the message comes before a block."""

    text: Annotated[int, Meta(ge=0)] = 0
    """Characters of text."""
    calls: Annotated[int, Meta(ge=0)] = 0
    """The number of calls."""


class KeptReasoning(Struct, frozen=True):
    """An item of reasoning of OpenAI's Responses API, as `domain.events.ThinkingBlock` has it. The vendor
    stores nothing, so it gets the item back in the next request."""

    type: Literal["reasoning"]
    id: str
    encrypted_content: str
    provider: str
    """The operator's name of the provider that can open it."""
    summary: tuple[str, ...] = ()
    after: BlockPlace = BlockPlace()


def place_block(block: Mapping[str, object], text_length: int, calls: int) -> dict[str, object]:
    """Returns the block with its place. A block without one comes first."""
    if not text_length and not calls:
        return {**block}
    return {**block, AFTER: {"text": text_length, "calls": calls}}


def interleave(
    text: str, calls: Sequence[C], blocks: Iterable[tuple[BlockPlace, B]]
) -> Iterator[str | C | B]:
    """Yields the parts of a message in their order: texts that are not empty, calls and blocks."""
    text_at = calls_at = 0
    for place, block in blocks:
        text_end, calls_end = max(text_at, place.text), max(calls_at, place.calls)
        if piece := text[text_at:text_end]:
            yield piece
        yield from calls[calls_at:calls_end]
        yield block
        text_at, calls_at = text_end, calls_end
    if piece := text[text_at:]:
        yield piece
    yield from calls[calls_at:]
