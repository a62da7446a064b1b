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
    """Sends a buffered response with its own headers and the extra ones. A response of status 204 has neither
    type nor length (RFC 9110 section 8.6)."""
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
    f"x-ratelimit-{what}-{kind}"
    for kind in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
"""The names of all rate-limit headers."""

_REQUESTS, _TOKENS = (tuple(name.encode() for name in RATE_LIMIT_HEADERS[at : at + 3]) for at in (0, 3))

SIXTY, THOUSAND = 60, 1000
MINUTE, REQUESTS, CONCURRENT, COST = Window.MINUTE, Measure.REQUESTS, Measure.CONCURRENT, Measure.COST


def build_limit_headers(statuses: Iterable[LimitStatus]) -> HeaderList:
    """Returns the rate-limit headers of the tightest limit of requests per minute, and of the tightest limit
    of tokens per minute. The list is empty if there is no such limit."""
    requests: LimitStatus | None = None
    tokens: LimitStatus | None = None
    for status in statuses:
        limit = status.limit
        if limit.window is not MINUTE or limit.measure is COST or limit.measure is CONCURRENT:
            continue
        if limit.measure is REQUESTS:
            requests = (
                status if requests is None or _get_tightness(status) < _get_tightness(requests) else requests
            )
        else:
            tokens = status if tokens is None or _get_tightness(status) < _get_tightness(tokens) else tokens
    headers: HeaderList = []
    if requests is not None:
        headers += _build_headers(_REQUESTS, requests)
    if tokens is not None:
        headers += _build_headers(_TOKENS, tokens)
    return headers


def _build_headers(names: tuple[bytes, ...], status: LimitStatus) -> HeaderList:
    """Returns the headers of one limit: its amount, what remains, and when it resets."""
    amount, remaining, reset = names
    return [
        (amount, b"%d" % status.limit.amount),
        (remaining, b"%d" % status.remaining),
        (reset, format_duration(status.reset)),
    ]


def _get_tightness(status: LimitStatus) -> tuple[int, int]:
    """Returns a sort key. The tightest limit has the smallest key."""
    return status.remaining, status.limit.amount


def format_duration(seconds: float) -> bytes:
    """Formats a duration as OpenAI does, rounded up: `120ms`, `1s`, `8.64s`, `6m0s`, `1h0m0s`."""
    thousandths = math.ceil(seconds * THOUSAND)
    if thousandths < SIXTY * THOUSAND:
        if thousandths < THOUSAND and thousandths:
            return b"%dms" % thousandths
        return b"%gs" % (thousandths / THOUSAND)
    total_seconds, milliseconds = divmod(thousandths, THOUSAND)
    minutes, seconds_left = divmod(total_seconds, SIXTY)
    hours, minutes = divmod(minutes, SIXTY)
    fraction = b".%03d" % milliseconds if milliseconds else b""
    return (b"%dh" % hours if hours else b"") + b"%dm%d%bs" % (minutes, seconds_left, fraction.rstrip(b"0"))
