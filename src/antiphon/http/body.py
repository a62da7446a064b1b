"""Reads a JSON body, whole, within its limits of size and time."""

import asyncio

from starlette.types import Receive

from antiphon.errors import BodyTooLarge, RequestTimedOut, UnsupportedMediaType
from antiphon.http.bodies import Account
from antiphon.http.connection import Connection
from antiphon.http.edge import Edge, Exchange
from antiphon.http.work import ClientLeft

JSON_TYPE = b"application/json"

Headers = dict[bytes, list[bytes]]


class BodyReader:
    """Reads the bodies of one server's requests."""

    def __init__(self, edge: Edge) -> None:
        self._limit = edge.settings.max_body_bytes
        self._bodies = edge.bodies
        self._most = max(edge.settings.max_bodies_bytes, self._limit)
        self._seconds = edge.settings.receive_timeout
        self._told_apart = edge.tenants is not None

    async def read(self, exchange: Exchange, receive: Receive, connection: Connection) -> Account:
        """Puts the body into the exchange. Gives the account of its bytes, which whoever asked releases when
        the request is over. Raises a RequestError or ClientLeft."""
        _require_json(exchange.headers)
        declared = int(exchange.headers.get(b"content-length", (b"0",))[0])
        if declared > self._limit:
            raise self._too_large()
        account = Account(self._bodies, self._most, exchange.actor.caller if self._told_apart else None)
        account.expect(declared)
        try:
            if connection.is_whole:
                exchange.body = await self._read(receive, account)
            else:
                exchange.body = await self._read_in_time(receive, account, connection.arrived_at)
        except BaseException:
            account.release()
            raise
        connection.resume_reading()
        return account

    async def _read_in_time(self, receive: Receive, account: Account, arrived_at: float) -> bytes:
        try:
            async with asyncio.timeout_at(arrived_at + self._seconds):
                return await self._read(receive, account)
        except TimeoutError:
            raise RequestTimedOut(f"the request did not arrive within {self._seconds:g} seconds") from None

    async def _read(self, receive: Receive, account: Account) -> bytes:
        parts: list[bytes] = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            if account.held + len(parts[-1]) > self._limit:
                raise self._too_large()
            account.charge(len(parts[-1]))
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than {self._limit:,} bytes (ANTIPHON_MAX_BODY_BYTES)")


def _require_json(headers: Headers) -> None:
    types, codings = headers.get(b"content-type"), headers.get(b"content-encoding", ())
    if types != [JSON_TYPE] and not _is_json(types or []):
        raise UnsupportedMediaType("the body must be JSON; send it with Content-Type: application/json")
    if any(coding.strip().lower() != b"identity" for coding in codings):
        raise UnsupportedMediaType("compressed bodies are not taken; send it without Content-Encoding")
    if any(coding.strip().lower() != b"chunked" for coding in headers.get(b"transfer-encoding", ())):
        raise UnsupportedMediaType("of transfer codings only chunked is taken: Transfer-Encoding: chunked")


def _is_json(types: list[bytes]) -> bool:
    media, _, options = (types[0] if len(types) == 1 else b"").lower().partition(b";")
    return media.strip() == JSON_TYPE and options.strip() in (b"", b"charset=utf-8", b'charset="utf-8"')
