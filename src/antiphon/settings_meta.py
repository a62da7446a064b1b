"""What every setting is declared with: its name in the environment, its line in the documentation, bounds."""

from msgspec import Meta

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

LONGEST = 31_536_000
"""Seconds of a year: more is a slip, and far more is no time that a timer can hold."""

POSITIVE = Meta(gt=0, le=LONGEST)
AT_LEAST_ZERO = Meta(ge=0, le=LONGEST)


def describe(env: str, doc: str, example: str = "") -> Meta:
    """What a setting is called in the environment, its line in the documentation, and a value of its form."""
    return Meta(description=doc, extra={"env": env}, examples=[example] if example else None)
