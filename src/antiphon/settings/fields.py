"""What settings are declared with: names of environment variables, lines of documentation, bounds."""

from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

LONGEST = 31_536_000
"""Seconds of a year. More is a mistake, and much more is too long for a timer."""

POSITIVE = Meta(gt=0, le=LONGEST)
AT_LEAST_ZERO = Meta(ge=0, le=LONGEST)


def describe(env: str, doc: str, example: str = "") -> Meta:
    """Declares a setting: its environment variable, its line of documentation and an example of a value."""
    return Meta(description=doc, extra={"env": env}, examples=[example] if example else None)
