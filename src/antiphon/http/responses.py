"""Sends buffered responses and files, and builds the rate-limit headers of OpenAI's responses."""

import math
from collections.abc import Iterable

from starlette.types import Message, Send

from antiphon.dialects.base import FileStream, Response
from antiphon.domain.limits import LimitStatus, Measure, Window
from antiphon.http.connection import Connection
from antiphon.http.in_flight import ClientLeft

NO_CONTENT = 204

HeaderList = list[tuple[bytes, bytes]]


async def send_response(send: Send, response: Response, extra_headers: HeaderList) -> None:
    """Sends a buffered response with its own headers and `extra_headers`. A response of status 204 has
    neither type nor length (RFC 9110 section 8.6)."""
    headers: HeaderList = []
    if response.status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(response.body)))
        headers.append((b"content-type", _content_type(response.media_type)))
    headers += response.headers
    headers += extra_headers
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def send_file(send: Send, stream: FileStream, connection: Connection) -> None:
    """Sends a file in parts, each after the previous one is written. Raises ClientLeft, without reading
    another part, if the client has left."""
    headers = [(b"content-type", _content_type(stream.media_type)), *stream.headers]
    start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
    has_begun = False
    async for part in stream.parts:
        if connection.has_left:
            raise ClientLeft
        if not has_begun:
            await send(start)
            has_begun = True
        await send({"type": "http.response.body", "body": part, "more_body": True})
    if not has_begun:
        await send(start)
    await send({"type": "http.response.body", "body": b""})


def _content_type(media_type: str) -> bytes:
    """Returns the value of Content-Type. UTF-8 is added to a text without a charset."""
    is_text = media_type.startswith("text/") and "charset" not in media_type
    return (f"{media_type}; charset=utf-8" if is_text else media_type).encode()


RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{value}-{measure}"
    for measure in ("requests", "tokens")
    for value in ("limit", "remaining", "reset")
)
"""The names of all rate-limit headers."""

_REQUESTS, _TOKENS = (
    tuple(name.encode() for name in RATE_LIMIT_HEADERS[start : start + 3]) for start in (0, 3)
)

MINUTE_SECONDS, HOUR_MINUTES, SECOND_MILLISECONDS = 60, 60, 1000
MINUTE, REQUESTS, CONCURRENT, COST = Window.MINUTE, Measure.REQUESTS, Measure.CONCURRENT, Measure.COST


def build_limit_headers(statuses: Iterable[LimitStatus]) -> HeaderList:
    """Returns the rate-limit headers of the tightest limit of requests per minute, and of the tightest limit
    of tokens per minute. The list is empty if there is no such limit."""
    tightest_requests: LimitStatus | None = None
    tightest_tokens: LimitStatus | None = None
    for status in statuses:
        limit = status.limit
        if limit.window is not MINUTE or limit.measure is COST or limit.measure is CONCURRENT:
            continue
        if limit.measure is REQUESTS:
            tightest_requests = _choose_tighter(tightest_requests, status)
        else:
            tightest_tokens = _choose_tighter(tightest_tokens, status)
    headers: HeaderList = []
    if tightest_requests is not None:
        headers += _build_headers(_REQUESTS, tightest_requests)
    if tightest_tokens is not None:
        headers += _build_headers(_TOKENS, tightest_tokens)
    return headers


def _build_headers(names: tuple[bytes, ...], status: LimitStatus) -> HeaderList:
    """Returns the headers of one limit: its amount, what remains, and when it resets."""
    amount, remaining, reset = names
    return [
        (amount, b"%d" % status.limit.amount),
        (remaining, b"%d" % status.remaining),
        (reset, format_duration(status.reset)),
    ]


def _choose_tighter(tightest: LimitStatus | None, status: LimitStatus) -> LimitStatus:
    """Returns the limit with less remaining, or with the smaller amount if both have the same remaining."""
    if tightest is None:
        return status
    tightest_key = tightest.remaining, tightest.limit.amount
    return status if (status.remaining, status.limit.amount) < tightest_key else tightest


def format_duration(seconds: float) -> bytes:
    """Formats a duration as OpenAI does, rounded up: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`."""
    total_milliseconds = math.ceil(seconds * SECOND_MILLISECONDS)
    if total_milliseconds < MINUTE_SECONDS * SECOND_MILLISECONDS:
        if total_milliseconds < SECOND_MILLISECONDS and total_milliseconds:
            return b"%dms" % total_milliseconds
        return b"%gs" % (total_milliseconds / SECOND_MILLISECONDS)
    total_seconds, milliseconds = divmod(total_milliseconds, SECOND_MILLISECONDS)
    minutes, seconds_left = divmod(total_seconds, MINUTE_SECONDS)
    hours, minutes = divmod(minutes, HOUR_MINUTES)
    fraction = b".%03d" % milliseconds if milliseconds else b""
    return (b"%dh" % hours if hours else b"") + b"%dm%d%bs" % (minutes, seconds_left, fraction.rstrip(b"0"))
