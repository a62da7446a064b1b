"""Turns a vendor's failure into one of our errors. The message names the provider, without addresses and
keys."""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isnan, nan

from antiphon.engines.vendors.base import VendorError
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

LONGEST_RETRY = 86_400.0
"""The most seconds of a Retry-After that is believed."""

ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>,;]+", re.IGNORECASE)
IP_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\])(?::\d+)?(?!\.?\w)"
)

KEY = re.compile(
    r"\b(?:(?:sk|pk|gsk|xai|key|api)[-_](?=[\w\-.]*[\d*])|AIza|Bearer\s+)[A-Za-z0-9_\-*.]{12,}", re.IGNORECASE
)
"""Keys of the usual forms. A field's name, such as api_parameters, has no digit."""

FIELD = re.compile(r"[\w.\[\]-]{1,100}", re.ASCII)
"""The name of a field in a request."""

TOO_LONG = frozenset(
    {"context_length_exceeded", "exceed_context_size_error", "model_context_window_exceeded"}
)

OUT_OF_CREDIT = frozenset({"insufficient_quota", "insufficient_balance", "billing_hard_limit_reached"})
"""Codes of an account that cannot pay. OpenAI sends them with 429, but waiting does not help."""

BY_STATUS: Mapping[int, type[ProviderError]] = {
    401: ProviderKeyRefused,
    403: ProviderKeyRefused,
    404: ProviderModelMissing,
    408: ProviderTimeout,
    429: ProviderRateLimited,
    503: ProviderUnavailable,
    529: ProviderUnavailable,
}
"""The error of each status that has one of its own."""

KEY_REFUSED = frozenset({"API_KEY_INVALID"})
"""Kinds of errors that mean 401, whatever the status. Gemini sends 400 for a wrong key."""

SAYINGS: Mapping[type[ProviderError], str] = {
    ProviderKeyRefused: "refused this server's key; the operator must mend that",
    ProviderModelMissing: "does not have this model",
    ProviderRateLimited: "has no room for this request now",
    ProviderTimeout: "did not answer in time",
    ProviderUnavailable: "is not available now",
    ProviderRefused: "refused the request",
    ProviderFailed: "failed",
}


def build_error(
    provider: str, status: int, said: VendorError, headers: Mapping[str, str], secrets: Iterable[str]
) -> AntiphonError:
    """Returns the error for a vendor's answer with this status. `secrets`: what no message shows."""
    found = ProviderKeyRefused if said.kind in KEY_REFUSED else BY_STATUS.get(status)
    if found is None:
        found = ProviderRefused if 400 <= status < 500 else ProviderFailed
    retry_after = read_retry_after(headers)
    retry_after = said.retry_after if retry_after is None else retry_after
    cause = f"{provider} answered {status} {said.kind}".rstrip()
    if status == 402 or said.kind in OUT_OF_CREDIT:
        return ProviderUnavailable(
            f"the provider {provider} has no credit left for this server's key; the operator must mend that",
            retry_after=retry_after,
            cause=cause,
        )
    param = read_param(said) if found in (ProviderRefused, ProviderModelMissing) else None
    told = "" if found is ProviderKeyRefused else scrub(said.message, secrets)
    message = f"the provider {provider} {SAYINGS[found]}" + (f": {told}" if told else "")
    if found is ProviderRefused and said.kind in TOO_LONG:
        return ContextLengthExceeded(message, param=param, cause=cause)
    return found(message, param=param, retry_after=retry_after, cause=cause)


def read_param(said: VendorError) -> str | None:
    """Returns the field at fault; None if the vendor names none."""
    return said.param if said.param is not None and FIELD.fullmatch(said.param) else None


def scrub(message: str, secrets: Iterable[str]) -> str:
    """Returns a vendor's message without the secrets, addresses, keys and control characters, and not too
    long."""
    text = ADDRESS.sub("(address)", message)
    for secret in secrets:
        text = text.replace(secret, "***")
    text = KEY.sub("***", IP_ADDRESS.sub("(address)", text))
    text = "".join(character if character.isprintable() else " " for character in text)
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + "..."


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Returns the seconds of Retry-After, which may be a number or a date; None if there is none."""
    given = headers.get("retry-after-ms")
    scale = 1000.0
    if given is None:
        given, scale = headers.get("retry-after"), 1.0
    if given is None:
        return None
    try:
        seconds = float(given) / scale
    except ValueError:
        seconds = _seconds_until(given)
    return min(max(seconds, 0.0), LONGEST_RETRY) if not isnan(seconds) else None


def _seconds_until(date: str) -> float:
    """Returns the seconds until an HTTP date; NaN if it is none."""
    try:
        moment = parsedate_to_datetime(date)
    except (TypeError, ValueError, OverflowError):
        return nan
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime.now(UTC)).total_seconds()
