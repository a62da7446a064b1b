"""What a stream does in time: when headers go out, what fills silence, how it breaks, who is cut."""

import asyncio
import json
import socket

import pytest

from antiphon.domain.events import Started, TextDelta
from antiphon.errors import BudgetExceeded, EngineDied
from antiphon.http.protocol import Exchange, HttpProtocol
from antiphon.http.responses import HIGH_WATER, EventWriter, StreamTimeouts
from antiphon_testing import ScriptedAnswer, ScriptedEngine
from antiphon_testing.scripted_engine import StreamEnding
from tests.support.bare_connection import RecordedTransport, connect
from tests.support.http_server import CHAT, HELLO, TEXT, LooseEngine, at_most, gone, request_bytes, serving
from tests.support.waiting import await_until

STREAM = HELLO | {"stream": True}
ENDLESS = ScriptedAnswer(endless=True, pace=0.005)


async def first_event(line):
    head = await line.until(b"\r\n\r\n")
    return head, await line.until(b"\n\n")


async def test_headers_wait_for_the_first_event():
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate)) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await line.reader.read(1)
        gate.set()
        head, event = await first_event(line)
        assert head.startswith(b"HTTP/1.1 200") and b'"role":"assistant"' in event


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_the_first_event_opens_the_response_even_without_text(path):
    body = STREAM if path == CHAT else {"model": "m", "prompt": "a", "stream": True}
    async with serving(ScriptedAnswer(pace=3600)) as server, server.line() as line:
        await line.send(request_bytes(path, body))
        assert (await line.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_silence_opens_the_response_and_is_filled_with_comments():
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate), keep_alive_interval=0.05) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        head, comment = await first_event(line)
        assert head.startswith(b"HTTP/1.1 200") and comment.endswith(b": keep-alive\n\n")
        for _ in range(2):
            assert (await line.until(b"\n\n")).endswith(b": keep-alive\n\n")
        gate.set()
        rest = await line.until(b"[DONE]\n\n")
        assert b"Hello" in rest


async def test_an_error_after_silence_is_an_error_event():
    gate = asyncio.Event()
    answer = ScriptedAnswer(gate=gate, error=EngineDied("gone"))
    async with serving(answer, keep_alive_interval=0.05) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        head, _ = await first_event(line)
        gate.set()
        rest = await line.until(b"0\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"[DONE]" not in rest
    last = next(part for part in rest.split(b"\n") if part.startswith(b"data: "))
    assert json.loads(last[6:])["error"]["code"] == "engine_died"


async def test_an_error_inside_a_stream_is_an_event_and_no_clean_end():
    async with serving(
        ScriptedAnswer(error=EngineDied("the engine's process ended"), error_after=2, pace=0.01)
    ) as server:
        reply = await server.ask(CHAT, STREAM)
    *chunks, last = reply.events()
    assert [c["delta"].get("content") for chunk in chunks for c in chunk["choices"]] == [
        "",
        "Hello",
        " world",
    ]
    assert last == {
        "error": {
            "message": "the engine's process ended",
            "type": "server_error",
            "param": None,
            "code": "engine_died",
        }
    }
    assert "[DONE]" not in reply.events()


async def test_an_error_in_the_turn_of_the_events_comes_after_them():
    """A process that is busy reads the events and the error at once."""

    async def quick():
        yield Started(1)
        yield TextDelta(0, "Hello")
        raise BudgetExceeded("the budget is spent")

    async with serving(LooseEngine(quick)) as server:
        reply = await server.ask(CHAT, STREAM)
    *chunks, last = reply.events()
    texts = [choice["delta"].get("content") for chunk in chunks for choice in chunk["choices"]]
    assert reply.status == 200 and "".join(filter(None, texts)) == "Hello"
    assert last["error"]["code"] == "insufficient_quota"


async def test_a_defect_in_a_stream_shows_only_the_request_id():
    async def broken():
        yield Started(1)
        await asyncio.sleep(0.01)
        raise ZeroDivisionError("canary-prompt at /srv/secret.py")

    async with serving(LooseEngine(broken)) as server:
        reply = await server.ask(CHAT, STREAM, headers={"x-request-id": "trace-8"})
    error = reply.events()[-1]["error"]
    assert error["code"] == "internal_error" and "trace-8" in error["message"]
    assert b"canary" not in reply.body and b"secret" not in reply.body


async def test_what_is_ready_at_once_is_written_at_once():
    texts = tuple(f"{number} " for number in range(50))
    async with serving(ScriptedAnswer(texts, pace=None)) as server:
        reply = await server.ask(CHAT, STREAM)
        async with server.line() as line:
            await line.send(request_bytes(CHAT, STREAM))
            await line.until(b"\r\n\r\n")
            size = int(await line.until(b"\r\n"), 16)
    assert size == len(reply.body), "one write for the whole answer"


# --- clients that leave ---


async def test_a_client_that_leaves_a_buffered_answer_ends_the_work():
    async with serving(ENDLESS) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO))
        await until_streaming(server)
        line.drop()
        await left(server)


async def test_a_disconnect_before_the_first_token_ends_the_work():
    for body in (HELLO, STREAM):
        async with serving(ScriptedAnswer(gate=asyncio.Event())) as server, server.line() as line:
            await line.send(request_bytes(CHAT, body))
            await until_streaming(server)
            line.drop()
            await left(server)


async def test_a_client_that_leaves_mid_stream_ends_the_work():
    async with serving(ENDLESS) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        await line.until(b"Hello")
        line.drop()
        await left(server)


async def test_a_client_that_only_closes_its_side_has_left_too():
    async with serving(ENDLESS) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        await line.until(b"Hello")
        line.writer.write_eof()
        await left(server)


async def test_a_disconnect_with_pipelined_requests_ends_the_work():
    async with serving(ENDLESS) as server, server.line() as line:
        await line.send(request_bytes(CHAT, HELLO) + request_bytes(CHAT, STREAM) + request_bytes("/health"))
        await until_streaming(server)
        line.drop()
        await left(server)


async def test_a_client_that_leaves_during_silence_ends_the_work():
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate), keep_alive_interval=0.05) as server, server.line() as line:
        await line.send(request_bytes(CHAT, STREAM))
        await line.until(b": keep-alive\n\n")
        line.drop()
        await left(server)


async def until_streaming(server):
    await await_until(lambda: server.engine.streams)


async def left(server):
    """The work ended because its reader left, within ten times the promised second, and nothing is kept of
    it.
    """
    (record,) = server.engine.streams
    async with at_most(10):
        await record.over.wait()
    assert record.ending is StreamEnding.LEFT
    await gone(server.edge.in_flight)
    await gone(server.connections)


# --- clients that do not read ---


async def test_a_client_that_does_not_read_stops_the_engine_and_is_cut():
    big = ScriptedAnswer(("x" * 60_000,), endless=True, pace=None)
    async with serving(big, send_timeout=0.5) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with sock:
            await loop.sock_connect(sock, ("127.0.0.1", server.port))
            await loop.sock_sendall(sock, request_bytes(CHAT, STREAM | {"max_tokens": 2_000}))
            await until_streaming(server)
            (record,) = server.engine.streams
            held = -1
            async with at_most(10):  # the engine is not read while the client does not read
                while held != record.events:
                    held = record.events
                    await asyncio.sleep(0.1)
            assert held * 60_000 < 40 * HIGH_WATER + 8_000_000, "what waits is bounded"
            await gone(server.connections)
            async with at_most(10):
                await record.over.wait()
        assert record.ending is StreamEnding.LEFT


async def test_a_slow_reader_does_not_disturb_a_fast_one():
    big = ScriptedEngine(
        lambda request: (
            ScriptedAnswer(("x" * 60_000,), endless=True, pace=None)
            if request.output.max_tokens
            else ScriptedAnswer()
        )
    )
    async with serving(big, send_timeout=30) as server, server.line() as slow:
        await slow.send(request_bytes(CHAT, STREAM | {"max_tokens": 1000}))
        await until_streaming(server)
        for _ in range(5):
            assert (await server.ask(CHAT, STREAM)).status == 200


async def writing(disconnect_after: float = 30.0) -> tuple[EventWriter, HttpProtocol, RecordedTransport]:
    """A writer of the answer to a request."""
    asked: list[Exchange] = []

    async def handle(exchange: Exchange) -> None:
        asked.append(exchange)
        await asyncio.Event().wait()

    connection, transport = connect(handle)
    connection.data_received(request_bytes("/"))
    await asyncio.sleep(0)
    return EventWriter(asked[0], StreamTimeouts(30.0, disconnect_after), list, bytes), connection, transport


async def test_what_is_put_in_one_turn_is_written_at_once_with_the_head():
    writer, connection, transport = await writing()
    assert not writer.has_begun
    await writer.put(b"a")
    await writer.put(b"b")
    assert transport.writes == [] and writer.has_begun
    await asyncio.sleep(0)
    (first,) = transport.writes
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"\r\n\r\n2\r\nab\r\n")
    await writer.close(b"c")
    assert transport.writes[1:] == [b"1\r\nc\r\n0\r\n\r\n"]
    await ended(connection)


async def test_a_maker_waits_while_its_client_does_not_read():
    writer, connection, transport = await writing()
    connection.pause_writing()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(writer.put(b"a"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done() and transport.writes == []
        connection.resume_writing()
    await writer.close(b"b")
    assert b"".join(transport.writes).endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")
    await ended(connection)


async def test_a_client_that_never_reads_is_dropped_and_its_maker_goes_on():
    writer, connection, transport = await writing(disconnect_after=0.01)
    connection.pause_writing()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(writer.put(b"a"))
        await await_until(lambda: transport.is_aborted)
        assert not waiting.done()
        await ended(connection)
    await writer.close(b"b")
    assert transport.writes == []


async def test_a_maker_that_never_waits_is_written_in_pieces():
    writer, connection, transport = await writing()
    for _ in range(4):
        await writer.put(b"x" * HIGH_WATER)
    size = b"%x\r\n" % (2 * HIGH_WATER)
    assert [part.partition(size)[2] for part in transport.writes] == [b"x" * 2 * HIGH_WATER + b"\r\n"] * 2
    writer.abandon()
    await ended(connection)


async def ended(connection: HttpProtocol) -> None:
    connection.connection_lost(None)
    for task in connection.server.tasks:
        task.cancel()
    await gone(connection.server.tasks)
