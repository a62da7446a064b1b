"""The rule by which tokens are estimated where nobody counted them."""

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in one token. English prose has four to five in the vocabularies of current models, code and
other languages fewer, so the number is of the right size and no more."""


def measure_text(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def estimate_tokens(size: int) -> int:
    """Estimates the tokens of a text of `size` bytes: one for every four bytes, and at least one for any
    text."""
    return -(-size // BYTES_PER_TOKEN)
