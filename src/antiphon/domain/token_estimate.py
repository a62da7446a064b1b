"""Estimates the number of tokens in texts and speech that nobody tokenized."""

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in one token. English prose has four to five bytes per token with current models; code and
other languages have fewer. So this is a rough estimate."""


def measure_text(text: str) -> int:
    """Returns the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


SPEECH_PER_TOKEN = 3200
"""Characters of base64 in one token of speech. OpenAI counts 20 tokens for a second, which has 24,000 samples
of two bytes. Compressed recordings have fewer characters, so their estimates are too low."""


def measure_speech(data: str) -> int:
    """Converts the length of a recording in base64 to the bytes of a text with as many tokens."""
    return len(data) * BYTES_PER_TOKEN // SPEECH_PER_TOKEN


def estimate_tokens(size: int) -> int:
    """Estimates the tokens of a text of `size` bytes: one for every four bytes, and at least one for any
    text."""
    return -(-size // BYTES_PER_TOKEN)
