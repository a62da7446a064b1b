"""The names of headers in requests to vendors: those that operators can set, and those that callers can
add."""

import re

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110. The HTTP client raises an error at each request for a name that is not one."""

RESERVED_HEADERS = frozenset(
    "authorization host content-length content-type transfer-encoding connection proxy-authorization cookie "
    "accept-encoding expect upgrade te trailer".split()
)
"""Headers that the client sets itself, or that would carry a credential around `key`."""

OWN_HEADERS = RESERVED_HEADERS | frozenset("user-agent keep-alive forwarded via origin referer".split())
"""Headers that this server's own request sets: about its connection, or about this server."""

OWN_PREFIXES = ("content-", "proxy-", "x-forwarded-", "sec-")

CREDENTIAL = re.compile(
    r"auth(?![a-z])|authori[sz]ation|authenticat|api-?key|cookie|secret|password|credential"
    r"|(?:^|-)(?:access|auth|bearer|id|security|session)-token"
)
"""Matches in the names of headers that contain a credential: `x-api-key`, `x-auth-token`, `helicone-auth`."""


def is_header_name(name: str) -> bool:
    """Whether a text can be the name of a header."""
    return HEADER_NAME.fullmatch(name) is not None


def is_protected(name: str) -> bool:
    """Whether callers can never add this header, even if the operator allows it. Such a header belongs to the
    connection, or can carry a credential."""
    lower = name.lower()
    return lower in OWN_HEADERS or lower.startswith(OWN_PREFIXES) or CREDENTIAL.search(lower) is not None
