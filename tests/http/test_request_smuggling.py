"""Requests that two parsers could read differently: nothing inside one request becomes another request."""

import asyncio

import pytest

from tests.support.http_server import CHAT, KEY, serving

BODY = b'{"model":"m","messages":[{"role":"user","content":"h"}]}'
FIELDS = (b"host: localhost", b"authorization: Bearer " + KEY.encode(), b"content-type: application/json")
LENGTH = b"content-length: %d" % len(BODY)
CHUNKED = b"transfer-encoding: chunked"
POST = f"POST {CHAT} HTTP/1.1".encode()


def head(*fields: bytes, first: bytes = POST) -> bytes:
    return b"\r\n".join([first, *FIELDS, *fields]) + b"\r\n\r\n"


def chunked(before: bytes, after: bytes = b"0\r\n\r\n") -> bytes:
    """A request whose chunk has this line of its size, and this end."""
    return head(CHUNKED) + before % len(BODY) + BODY + b"\r\n" + after


INNER = head(LENGTH) + BODY
"""A valid request, with the key. It is what a confused reader would find behind or inside another one."""

REFUSED = {
    "a length beside chunks": head(CHUNKED, LENGTH) + INNER,
    "chunks beside a length": head(b"content-length: 5", CHUNKED) + b"0\r\n\r\n",
    "two lengths": head(LENGTH, b"content-length: 3") + BODY,
    "two equal lengths": head(LENGTH, LENGTH) + BODY,
    "a list of lengths": head(LENGTH + b", %d" % len(BODY)) + BODY,
    "a length with a plus": head(b"content-length: +%d" % len(BODY)) + BODY,
    "a negative length": head(b"content-length: -1") + BODY,
    "a hexadecimal length": head(b"content-length: 0x38") + BODY,
    "a huge length": head(b"content-length: 99999999999999999999999") + BODY,
    "a length of two words": head(b"content-length: 5 6") + BODY,
    "an empty length": head(b"content-length:") + BODY,
    "a space before the colon": head(b"content-length : %d" % len(BODY)) + BODY,
    "a vertical tab": head(b"content-length:\x0b%d" % len(BODY)) + BODY,
    "a folded length": head(b"x: a\r\n " + LENGTH) + BODY,
    "a folded coding": head(b"transfer-encoding:\r\n chunked") + b"0\r\n\r\n",
    "another coding": head(b"transfer-encoding: xchunked") + b"0\r\n\r\n",
    "a coding after chunks": head(b"transfer-encoding: chunked, x") + b"0\r\n\r\n",
    "chunks twice": head(CHUNKED, CHUNKED) + b"0\r\n\r\n",
    "identity and a length": head(b"transfer-encoding: identity", LENGTH) + BODY,
    "chunks and identity": head(CHUNKED, b"transfer-encoding: identity") + b"0\r\n\r\n",
    "a coding with a parameter": head(b"transfer-encoding: chunked;q=1") + b"0\r\n\r\n",
    "a quoted coding": head(b'transfer-encoding: "chunked"') + b"0\r\n\r\n",
    "a coding behind a vertical tab": head(b"transfer-encoding: \x0bchunked") + b"0\r\n\r\n",
    "a carriage return alone": head(b"x: a\rb", LENGTH) + BODY,
    "a carriage return in a name": head(b"x\r: a", LENGTH) + BODY,
    "a NUL": head(b"x: a\0b", LENGTH) + BODY,
    "line feeds alone": head(LENGTH).replace(b"\r\n", b"\n") + BODY,
    "a line feed in a value": head(b"x: a\ncontent-length: 3", LENGTH) + BODY,
    "a field that begins with a space": head(b" x: a", LENGTH) + BODY,
    "a field without a colon": head(b"nothing", LENGTH) + BODY,
    "a field without a name": head(b": a", LENGTH) + BODY,
    "an extension that ends with a line feed": chunked(b"%x;a\n"),
    "a chunk's size with a plus": chunked(b"+%x\r\n"),
    "a chunk's size with 0x": chunked(b"0x%x\r\n"),
    "a chunk's size with a space": chunked(b"%x \r\n"),
    "a chunk's size with a minus": head(CHUNKED) + b"-1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk's size that overflows": head(CHUNKED) + b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n",
    "a chunk that ends with a line feed": chunked(b"%x\n"),
    "a chunk that is too long": head(CHUNKED) + b"%x\r\n" % len(BODY) + BODY + b"XX\r\n0\r\n\r\n",
    "a chunk without an end": head(CHUNKED) + b"%x\r\n" % len(BODY) + BODY + b"0\r\n\r\n",
    "a length in the trailers": chunked(b"%x\r\n", b"0\r\ncontent-length: 9\r\n\r\n"),
    "another protocol": head(b"connection: upgrade", b"upgrade: websocket", LENGTH) + BODY,
    "a tunnel": head(LENGTH, first=b"CONNECT localhost:80 HTTP/1.1") + BODY,
    "a method in small letters": head(LENGTH, first=POST.lower()) + BODY,
    "another version": head(LENGTH, first=POST.replace(b"1.1", b"1.2")) + BODY,
    "no version": b"GET /v1/models\r\n\r\n",
    "a space behind the version": head(LENGTH, first=POST + b" ") + BODY,
    "tabs in the first line": head(LENGTH, first=POST.replace(b" ", b"\t")) + BODY,
    "a carriage return in the target": head(LENGTH, first=POST.replace(b" HTTP", b"\r HTTP")) + BODY,
}
"""Each is answered once, and what follows on its connection is never read."""

TAKEN = {
    "a tab before the length": head(b"content-length:\t%d" % len(BODY)) + BODY,
    "extensions of chunks": chunked(b"%x;a=b\r\n", b"0;x\r\n\r\n"),
    "an absolute target": head(LENGTH, first=POST.replace(b" /", b" http://localhost/", 1)) + BODY,
    "a wish that nobody has": head(b"expect: 200-ok", LENGTH) + BODY,
}
"""Each ends where it says, and the next request on its connection is one of its own."""


@pytest.fixture(scope="module")
async def server():
    async with serving(key=KEY) as running:
        yield running


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_a_request_with_two_readings_is_refused_and_ends_its_connection(server, sent):
    before = len(server.engine.streams)
    async with server.line() as line:
        await line.send(sent + INNER)
        assert (await line.reply()).status == 400
        assert await line.rest() == b""
    assert len(server.engine.streams) == before


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN)
async def test_an_odd_request_ends_where_it_says(server, sent):
    before = len(server.engine.streams)
    async with server.line() as line:
        await line.send(sent + INNER)
        assert [(await line.reply()).status, (await line.reply()).status] == [200, 200]
    assert len(server.engine.streams) == before + 2


async def test_nothing_follows_chunks_of_an_old_client(server):
    before = len(server.engine.streams)
    async with server.line() as line:
        await line.send(chunked(b"%x\r\n").replace(b"HTTP/1.1", b"HTTP/1.0", 1) + INNER)
        assert (await line.reply()).status == 200
        assert await line.rest() == b""
    assert len(server.engine.streams) == before + 1


async def test_nothing_follows_a_body_that_was_announced_and_refused(server):
    """A client that gets the answer may send its next request in the place of the body."""
    refused = head(b"expect: 100-continue", b"content-length: 5").replace(KEY.encode(), b"no-key")
    before = len(server.engine.streams)
    async with server.line() as line:
        await line.send(refused)
        reply = await line.reply()
        assert (reply.status, reply.headers["connection"]) == (401, "close")
        await line.send(b"12345" + INNER)
        assert await line.rest() == b""
    assert len(server.engine.streams) == before


async def test_an_old_client_gets_no_interim_answer(server):
    """It would take that for the answer."""
    sent = head(b"expect: 100-continue", LENGTH).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    async with server.line() as line:
        await line.send(sent)
        await asyncio.sleep(0.05)  # the server awaits the body
        await line.send(BODY)
        assert (await line.reply()).status == 200


NUMBERS = (
    "0 -0 -1 1 0.5 1.5 1e0 1e1 1e-400 1e400 -1e400 1E+5 2147483648 -2147483649 9007199254740993 "
    "9223372036854775808 18446744073709551616 1e19 1e308 0.1e1 3.0000000000000001 NaN Infinity -Infinity"
).split()
NUMBER_FIELDS = "temperature top_p top_k n max_tokens seed presence_penalty top_logprobs timeout".split()


async def test_any_number_in_any_field_is_taken_or_refused_by_its_name(server):
    outcomes = set()
    async with server.line() as line:
        for field in NUMBER_FIELDS:
            for number in NUMBERS:
                body = BODY[:-1] + f',"{field}":{number}}}'.encode()
                await line.send(head(b"content-length: %d" % len(body)) + body)
                reply = await line.reply()
                outcomes.add(reply.status)
                assert reply.status == 200 or reply.error["param"] == field, (field, number, reply)
    assert outcomes == {200, 400}
