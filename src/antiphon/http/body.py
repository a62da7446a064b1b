"""Reads a whole request body within its limits of size and time."""

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from antiphon.dialects.base import RequestBody
from antiphon.dialects.http_types import JSON, Request
from antiphon.errors import BodyTooLarge, RequestTimedOut, UnsupportedMediaType
from antiphon.http.body_budget import BodyCounter
from antiphon.http.in_flight import ClientLeft
from antiphon.http.protocol import Exchange
from antiphon.http.state import AppState

JSON_TYPE = JSON.encode()

Headers = Mapping[bytes, list[bytes]]


class BodyLimit(NamedTuple):
    """The largest size of a body in bytes."""

    size: int
    setting: str = ""
    """The end of the error message: the setting that determines the limit, in brackets. Empty if no setting
    determines it."""

    def build_error(self) -> BodyTooLarge:
        """Returns the error for a larger body."""
        return BodyTooLarge(f"the body is larger than {self.size:,} bytes{self.setting}")


class BodyReader:
    """Reads the bodies of one server's requests."""

    def __init__(self, app_state: AppState) -> None:
        self._limit = BodyLimit(app_state.settings.max_body_bytes, " (ANTIPHON_MAX_BODY_BYTES)")
        self._budget = app_state.body_budget
        self._max_total = max(app_state.settings.max_bodies_bytes, self._limit.size)
        self._timeout = app_state.settings.receive_timeout
        self._counts_per_actor = app_state.keys_on

    async def read(self, body: RequestBody, request: Request, exchange: Exchange) -> BodyCounter:
        """Reads the body into the request. Returns the counter of the body's bytes, which the caller must
        release when the request has ended. Raises a RequestError or ClientLeft."""
        headers = request.headers
        require_type(body.media_type, headers)
        limit = self._limit if body.limit is None else BodyLimit(body.limit)
        declared_size = int(headers[b"content-length"][0]) if b"content-length" in headers else 0
        if declared_size > limit.size:
            raise limit.build_error()
        counter = BodyCounter(
            self._budget, self._max_total, request.actor.caller if self._counts_per_actor else None
        )
        try:
            if exchange.has_arrived:
                request.body = _take_part(exchange, counter, limit)
            else:
                counter.require_free(declared_size)
                parts = [_take_part(exchange, counter, limit)]
                async with asyncio.timeout_at(exchange.arrived_at + self._timeout):
                    while not exchange.has_arrived:
                        await exchange.wait_for_body()
                        parts.append(_take_part(exchange, counter, limit))
                request.body = b"".join(parts)
        except TimeoutError:
            counter.release()
            raise RequestTimedOut(f"the request did not arrive within {self._timeout:g} seconds") from None
        except BaseException:
            counter.release()
            raise
        if exchange.connection.is_reading_paused:
            exchange.connection.resume_reading()
        return counter


def _take_part(exchange: Exchange, counter: BodyCounter, limit: BodyLimit) -> bytes:
    """Takes the part of a body that has arrived since the last call, and counts its bytes."""
    if exchange.has_left:
        raise ClientLeft
    part = bytes(exchange.unread)
    exchange.unread.clear()
    if counter.byte_count + len(part) > limit.size:
        raise limit.build_error()
    counter.charge(len(part))
    return part


def require_type(media_type: str, headers: Headers) -> None:
    """Raises UnsupportedMediaType if the body has another type, or an encoding that the server does not
    support."""
    content_types, codings = headers.get(b"content-type", ()), headers.get(b"content-encoding", ())
    if not (content_types == [JSON_TYPE] and media_type == JSON):
        value = content_types[0] if len(content_types) == 1 else b""
        sent_type, _, parameters = value.lower().partition(b";")
        has_other_charset = parameters.strip() not in (b"", b"charset=utf-8", b'charset="utf-8"')
        if sent_type.strip() != media_type.encode() or (media_type == JSON and has_other_charset):
            name = "JSON" if media_type == JSON else f"of the type {media_type}"
            raise UnsupportedMediaType(f"the body must be {name}; send it with Content-Type: {media_type}")
    if codings and any(coding.strip().lower() != b"identity" for coding in codings):
        raise UnsupportedMediaType("compressed bodies are not accepted; send it without Content-Encoding")
    transfer_codings = headers.get(b"transfer-encoding")
    if transfer_codings and any(coding.strip().lower() != b"chunked" for coding in transfer_codings):
        raise UnsupportedMediaType("the only accepted transfer coding is Transfer-Encoding: chunked")
