"""Converts Gemini's signed texts to thinking blocks for the caller, and inserts them again at their position
when the caller sends the blocks back.

The signature of a call is not stored here, but in `ToolCall.signature`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from antiphon.engines.vendors.gemini.wire_types import GeminiBlock, SignedPart


def build_block(offset: int, text: str, thought: bool, signature: str) -> Mapping[str, object]:
    """Returns the block of a signed text. `offset`: the characters before it."""
    block: dict[str, object] = msgspec.to_builtins(GeminiBlock(offset, SignedPart(signature, text, thought)))
    return block


def read_blocks(blocks: Iterable[Mapping[str, object]]) -> Iterator[GeminiBlock | None]:
    """Yields each block. Yields None for a block of another vendor."""
    for block in blocks:
        try:
            yield msgspec.convert(block, GeminiBlock)
        except msgspec.ValidationError:
            yield None


def split_text(text: str, blocks: Iterable[GeminiBlock]) -> list[dict[str, Any]] | None:
    """Splits the text into parts, and adds the signatures to the signed parts. Returns None if the text does
    not contain a signed text at its position, because the caller has changed it."""
    parts: list[dict[str, Any]] = []
    end = 0
    for block in sorted(blocks, key=lambda block: block.at):
        signed = block.part.text
        if block.at < end or text[block.at : block.at + len(signed)] != signed or block.at > len(text):
            return None
        if block.at > end:
            parts.append({"text": text[end : block.at]})
        parts.append(encode_part(block.part))
        end = block.at + len(signed)
    if end < len(text):
        parts.append({"text": text[end:]})
    return parts


def encode_part(part: SignedPart) -> dict[str, Any]:
    """Returns a signed part as Gemini sent it, even with an empty text."""
    encoded: dict[str, Any] = {"text": part.text, "thoughtSignature": part.thought_signature}
    return encoded | ({"thought": True} if part.thought else {})
