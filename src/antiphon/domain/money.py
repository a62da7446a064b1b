"""Money as people write it, exactly: decimal texts of a currency's unit, and integers of its billionth."""

import re

DIGITS = 9
NANO = 1_000_000_000
"""Nano-units of one unit."""
DECIMAL = rf"^[0-9]{{1,7}}(\.[0-9]{{1,{DIGITS}}})?(?![\s\S])"
"""What an amount of a price is written like: `0.15`, `3`, `0.000000001`."""
_AMOUNT = re.compile(rf"[0-9]{{1,300}}(\.[0-9]{{1,{DIGITS}}})?")
"""The same of any size that is worth a sentence about its size."""


def parse_decimal(text: str) -> int | None:
    """The nano-units of a decimal; None for what is none, or has more than nine digits behind the point."""
    if _AMOUNT.fullmatch(text) is None:
        return None
    whole, _, part = text.partition(".")
    return int(whole) * NANO + int(part.ljust(DIGITS, "0"))


def format_decimal(amount: int) -> str:
    """Nano-units as the shortest decimal that is exactly as much."""
    whole, part = divmod(amount, NANO)
    return f"{whole}.{part:0{DIGITS}}".rstrip("0").rstrip(".")
