"""What a caller may say of the whitespace in JSON. Nothing is compiled here, so that it can be refused under
its own name where the request is read."""

import re

from antiphon.errors import InvalidValue

WHITESPACE = re.compile(
    r"(?:\[(?:[ \t\n\r]|\\[tnr ]|\\s|\\x(?:20|09|0[aAdD]))+\]|[ \t\n\r]|\\[tnrs])(?:[*+?]|\{\d+(?:,\d*)?\})?"
)
"""A whitespace pattern: characters that JSON takes as whitespace, perhaps repeated."""

LONGEST = 256
"""Characters of one."""


def require_whitespace(pattern: str, field: str) -> None:
    """Raises InvalidValue, which names `field`, for a pattern of anything else."""
    if len(pattern) > LONGEST or not WHITESPACE.fullmatch(pattern):
        raise InvalidValue(
            f"{field}: the whitespace pattern must be one class of spaces, tabs and line ends, perhaps "
            f"repeated, in at most {LONGEST} characters: [ \\n]{{0,2}}",
            param=field,
        )
