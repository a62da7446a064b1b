"""Sends whole answers and files."""

from starlette.types import Message, Send

from antiphon.dialects.base import FileStream, Response
from antiphon.http.connection import Connection
from antiphon.http.in_flight import ClientLeft

NO_CONTENT = 204

HeaderList = list[tuple[bytes, bytes]]


async def send_response(send: Send, response: Response, more: HeaderList) -> None:
    """A whole answer with its own headers, and with `more`. One of status 204 has neither type nor length
    (RFC 9110 section 8.6)."""
    headers: HeaderList = []
    if response.status != NO_CONTENT:
        headers.append((b"content-length", b"%d" % len(response.body)))
        headers.append((b"content-type", _content_type(response.media_type)))
    headers += response.headers
    headers += more
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def send_file(send: Send, stream: FileStream, connection: Connection) -> None:
    """Part by part, each when the one before has gone. Raises ClientLeft, and reads no further part then."""
    headers = [(b"content-type", _content_type(stream.media_type)), *stream.headers]
    start: Message = {"type": "http.response.start", "status": 200, "headers": headers}
    is_open = False
    async for part in stream.parts:
        if connection.has_left:
            raise ClientLeft
        if not is_open:
            await send(start)
            is_open = True
        await send({"type": "http.response.body", "body": part, "more_body": True})
    if not is_open:
        await send(start)
    await send({"type": "http.response.body", "body": b""})


def _content_type(media_type: str) -> bytes:
    is_text = media_type.startswith("text/") and "charset" not in media_type
    return (f"{media_type}; charset=utf-8" if is_text else media_type).encode()
