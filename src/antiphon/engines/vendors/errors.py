"""Converts a vendor's failure to one of this server's errors. The message names the provider, but no address
and no key."""

import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isnan, nan
from string import ascii_lowercase, ascii_uppercase
from urllib.parse import quote

from antiphon.engines.route_state import MAX_RETRY_AFTER_S
from antiphon.engines.vendors.base import CONTENT_FLAGGED, VendorError
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    ProviderError,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderModelMissing,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
)

LONGEST_MESSAGE = 500
"""The most characters of a vendor's message that a caller sees."""

ADDRESS = re.compile(r"(?<![a-z0-9+.-])[a-z0-9+.-]+://[^\s\"'<>,;]+", re.IGNORECASE)
"""Addresses with a scheme. The search begins once in each word: a search at each of its characters would take
quadratic time. So does that of HIDDEN."""

IP_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\])(?::\d+)?(?!\.?\w)"
)

KEY = re.compile(r"\b(?:sk|pk|gsk|xai|key|api)[-_][A-Za-z0-9_\-*.]{12,}", re.IGNORECASE)
"""Keys of the usual forms, if there is a digit or a star in them. A field's name, such as api_parameters, has
none."""

DIGIT = re.compile(r"[\d*]")

TOKEN = re.compile(r"\b(?:AIza|Bearer\s+)[A-Za-z0-9_\-*.]{12,}", re.IGNORECASE)
"""Keys of Google, and those of a header."""

ADDRESS_USER = re.compile(r"(?<=://)[^\s/@]+@")
"""The user and the password in an address."""

PART_LENGTH = 12
"""The fewest characters of a key that are removed without the others."""

START_LENGTH = 4
"""The characters of a removed text that are searched first."""

LONGEST_TEXT = 8192
"""The most characters of a vendor's text that are searched for secrets. The rest is cut off."""

HIDDEN = re.compile(r"(?<![\w+/=%\\-])[\w+/=%\\-]*\0[\w+/=%\\\0-]*", re.ASCII)
"""Hidden characters, and those beside them that can belong to the same key or encoding."""

TO_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
"""Lower case that keeps the length of a text."""

FIELD = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
"""The name of a field in a request."""

TOO_LONG_CODES: frozenset[str] = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"}
)

OUT_OF_CREDIT = frozenset({"insufficient_quota", "insufficient_balance", "billing_hard_limit_reached"})
"""Codes of an account without credit. OpenAI sends them with 429, but waiting does not help."""

ERROR_BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: ProviderKeyRefused,
    403: ProviderKeyRefused,
    404: ProviderModelMissing,
    408: ProviderTimeout,
    429: ProviderRateLimited,
    503: ProviderUnavailable,
    529: ProviderUnavailable,
}
"""The error of each status that has its own. Others give ProviderRefused below 500, and ProviderFailed
above."""

KEY_REFUSED = frozenset({"API_KEY_INVALID"})
"""Kinds of errors that mean 401, whatever the status. Gemini sends 400 for a wrong key."""

ABOUT_CONTENT = frozenset({CONTENT_FLAGGED, "content_filter", "content_policy_violation"})
"""Kinds of errors about the prompt. With 403 they do not mean that the key is refused."""

MESSAGES: Mapping[type[ProviderError], str] = {
    ProviderKeyRefused: "refused this server's key; the operator must correct it",
    ProviderModelMissing: "does not have this model",
    ProviderRateLimited: "has no room for this request now",
    ProviderTimeout: "did not answer in time",
    ProviderUnavailable: "is not available now",
    ProviderRefused: "refused the request",
    ProviderFailed: "failed",
}


class SecretFilter:
    """Removes secrets from texts, also encoded ones and parts of them. It is made when the secrets change."""

    def __init__(self, keys: Iterable[str], names: Iterable[str] = ()) -> None:
        """`keys`: removed in every encoding, with each part of PART_LENGTH characters. `names`: removed only
        as a whole, such as a host."""
        self._parts: dict[int, set[str]] = {}
        """All texts of a length that are removed, in lower case."""
        for name in names:
            self._parts.setdefault(len(name), set()).add(name.translate(TO_LOWER))
        for key in keys:
            for form, ratio in list_encodings(key):
                length = min(len(form), round(PART_LENGTH * ratio))
                parts = self._parts.setdefault(length, set())
                lower = form.translate(TO_LOWER)
                parts.update(lower[begin : begin + length] for begin in range(len(lower) - length + 1))
        self._parts.pop(0, None)
        self._start_length = min((START_LENGTH, *self._parts))
        self._starts = {part[: self._start_length] for parts in self._parts.values() for part in parts}
        """How the removed texts begin: almost no other text needs a search for each length."""

    def remove(self, text: str) -> str:
        """Returns a text without the secrets in any case, without passwords in addresses, and without keys of
        the usual forms. Cuts it to LONGEST_TEXT."""
        text = text[:LONGEST_TEXT]
        lower = text.translate(TO_LOWER)
        characters = list(text)
        size = self._start_length
        for begin in range(len(lower)):
            if lower[begin : begin + size] in self._starts:
                for length, parts in self._parts.items():
                    if lower[begin : begin + length] in parts:
                        characters[begin : begin + length] = "\0" * length
        text = ADDRESS_USER.sub("***@", HIDDEN.sub("***", "".join(characters)))
        text = TOKEN.sub("***", text)
        return KEY.sub(lambda key: "***" if DIGIT.search(key[0]) else key[0], text)


def list_encodings(key: str) -> Iterator[tuple[str, float]]:
    """Yields the forms in which a key is found, each with its characters for one of the key."""
    raw = key.encode()
    yield key, 1.0
    if len(key) < PART_LENGTH:
        return
    yield quote(key, safe=""), 1.0
    yield json.dumps(key)[1:-1].replace("/", "\\/"), 1.0
    yield raw.hex(), 2.0
    yield "".join([f"%{byte:02x}" for byte in raw]), 3.0
    yield "".join([f"\\x{byte:02x}" for byte in raw]), 4.0
    yield "".join([f"\\u{byte:04x}" for byte in raw]), 6.0
    for encode in (b64encode, urlsafe_b64encode):
        for skipped in range(3):  # what stands before the key moves its bytes
            whole = encode(raw[skipped : len(raw) - (len(raw) - skipped) % 3])
            yield whole.decode(), 4 / 3


def build_error(
    provider: str, status: int, error: VendorError, headers: Mapping[str, str], secrets: SecretFilter
) -> AntiphonError:
    """Returns the error for a vendor's response with this status. `secrets`: removes what must not be in its
    message, its parameter and its cause."""
    error_type = ProviderKeyRefused if error.kind in KEY_REFUSED else ERROR_BY_STATUS.get(status)
    if error_type is None or (error_type is ProviderKeyRefused and error.kind in ABOUT_CONTENT):
        error_type = ProviderRefused if 400 <= status < 500 else ProviderFailed
    retry_after = read_retry_after(headers)
    retry_after = error.retry_after if retry_after is None else retry_after
    if retry_after is not None:
        retry_after = min(retry_after, MAX_RETRY_AFTER_S)
    cause = f"{provider} answered {status} {scrub(error.kind, secrets)}".rstrip()
    if status == 402 or error.kind in OUT_OF_CREDIT:
        return ProviderUnavailable(
            f"the provider {provider} has no credit left for this server's key; the operator must add some",
            retry_after=retry_after,
            cause=cause,
        )
    param = read_param(error, secrets) if error_type in (ProviderRefused, ProviderModelMissing) else None
    message_text = "" if error_type is ProviderKeyRefused else scrub(error.message, secrets)
    message = f"the provider {provider} {MESSAGES[error_type]}" + (
        f": {message_text}" if message_text else ""
    )
    if error_type is ProviderRefused and error.kind in TOO_LONG_CODES:
        return ContextLengthExceeded(message, param=param, cause=cause)
    return error_type(message, param=param, retry_after=retry_after, cause=cause)


def read_param(error: VendorError, secrets: SecretFilter) -> str | None:
    """Returns the field at fault. Returns None if the vendor names none, or if the name has a secret."""
    param = error.param
    return param if param is not None and FIELD.fullmatch(param) and scrub(param, secrets) == param else None


def scrub(message: str, secrets: SecretFilter) -> str:
    """Returns a vendor's message without secrets, addresses, keys and control characters, cut to
    LONGEST_MESSAGE."""
    text = secrets.remove(ADDRESS.sub("(address)", message[:LONGEST_TEXT]))
    text = IP_ADDRESS.sub("(address)", text)
    text, end = text[:LONGEST_MESSAGE], text[LONGEST_MESSAGE:] and "..."
    return "".join([character if character.isprintable() else " " for character in text]) + end


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds that a vendor wants no request: from the header retry-after-ms, or from
    Retry-After, which is a number or a date. None if both are missing."""
    value = headers.get("retry-after-ms")
    scale = 1000.0
    if value is None:
        value, scale = headers.get("retry-after"), 1.0
    if value is None:
        return None
    try:
        seconds = float(value) / scale
    except ValueError:
        seconds = _count_seconds_until(value)
    return max(seconds, 0.0) if not isnan(seconds) else None


def _count_seconds_until(date: str) -> float:
    """Returns the seconds until an HTTP date; NaN if the text is no date."""
    try:
        moment = parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError):
        return nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime.now(UTC)).total_seconds()
