"""The host's side: what ends with a connection, and what does not."""

import asyncio
import os
import stat

import pytest

from antiphon.domain.values import replace
from antiphon.engines.base import PromptTokens, SequenceStarted, Steps, TextPiece
from antiphon.engines.host.client import open_host_engine
from antiphon.engines.host.frames import TO_CLIENT, AbsenceNotice, CancelCall, GenerateCall, StepsReply
from antiphon.engines.host.server import serve_engine
from antiphon.errors import EngineError, EngineUnavailable, InvalidValue
from antiphon.processes.ipc import HEADER_BYTES, MAX_FRAME, FrameReader, Hello
from antiphon.telemetry.logs import FIELDS
from antiphon_testing import Failure, Script, ScriptedTokenEngine
from tests.engines.host.peer import HELLO, connect, messages
from tests.support.host_engines import (
    SPEC,
    Careless,
    Lockstep,
    Torrent,
    build_request,
    create_brief_engine,
    create_endless_engine,
)
from tests.support.host_link import open_link, short_directory
from tests.support.host_loads import PATIENCE, load_when


async def test_the_socket_is_this_users_alone_and_goes_with_the_host() -> None:
    async with open_link(create_brief_engine()) as link:
        mode = os.stat(link.path).st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not os.path.lexists(link.path)  # noqa: ASYNC240 - a look at one name


async def test_a_stale_socket_is_replaced() -> None:
    with short_directory() as place:
        (place / "0.sock").write_bytes(b"")
        async with (
            serve_engine(create_brief_engine(), str(place / "0.sock")),
            open_host_engine(str(place / "0.sock"), "x") as client,
        ):
            await client.load(SPEC)


@pytest.mark.parametrize("way", ["close", "half", "abort"])
async def test_a_closed_connection_ends_its_own_sequences_only(way: str) -> None:
    engine = create_endless_engine()
    async with open_link(engine) as link:
        kept = link.client.generate(build_request())
        await anext(kept)
        leaving = await connect(link.path)
        leaving.send(HELLO, GenerateCall(1, build_request()), GenerateCall(2, build_request()))
        await load_when(engine, running=3)
        if way == "half":
            leaving.writer.write_eof()
        elif way == "abort":
            leaving.writer.transport.abort()
        else:
            leaving.writer.close()
        load = await load_when(engine, running=1)
        assert load.free_sequences == 3
        assert isinstance(await anext(kept), Steps)
        if way == "half":
            async with asyncio.timeout(PATIENCE):
                assert await leaving.ended()
            leaving.writer.close()


async def test_cancel_ends_one_sequence_and_nothing_more_is_said_of_it() -> None:
    engine = create_endless_engine()
    async with open_link(engine) as link:
        peer = await connect(link.path)
        peer.send(HELLO, GenerateCall(1, build_request()), GenerateCall(2, build_request()))
        await load_when(engine, running=2)
        peer.send(CancelCall(1), CancelCall(77))
        await load_when(engine, running=1)
        heard = FrameReader(TO_CLIENT)
        calls = []
        async with asyncio.timeout(PATIENCE):
            async for group in messages(peer, heard):
                calls += [message.call for message in group if not isinstance(message, Hello | AbsenceNotice)]
                if calls[-20:] == [2] * 20:
                    break
        peer.writer.close()


async def test_all_events_of_one_decode_step_travel_in_one_frame() -> None:
    engine = Lockstep()
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        peer = await connect(link.path)
        peer.send(HELLO, *(GenerateCall(number, build_request()) for number in range(1, 17)))
        reader = FrameReader(TO_CLIENT)
        for _ in range(5):
            while engine.waiting < 16:
                await asyncio.sleep(0)
            engine.step()
            steps: list[int] = []
            while not steps:
                header = await peer.reader.readexactly(HEADER_BYTES)
                body = await peer.reader.readexactly(int.from_bytes(header, "big"))
                steps = [item.call for item in reader.feed(header + body) if isinstance(item, StepsReply)]
            assert sorted(steps) == list(range(1, 17))
        peer.writer.close()


async def test_an_engines_error_keeps_its_class_and_field() -> None:
    error = EngineUnavailable("come back later", param="prompt", retry_after=2.5)
    async with open_link(ScriptedTokenEngine(Script(failure=Failure(error, after=1)))) as link:
        events = link.client.generate(build_request())
        assert isinstance(await anext(events), SequenceStarted)
        await anext(events)
        with pytest.raises(EngineUnavailable, match="come back later") as raised:
            await anext(events)
        assert (raised.value.param, raised.value.retry_after) == ("prompt", 2.5)
        with pytest.raises(InvalidValue, match="outside the vocabulary"):
            await anext(link.client.generate(replace(build_request(), prompt=PromptTokens((10**6,)))))


async def test_a_defect_of_the_engine_ends_one_call_and_shows_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_link(Careless()) as link:
        for _ in range(2):
            with pytest.raises(EngineError) as raised:
                await link.client.tokenize([TextPiece("a")], False)
            assert "0x7f" not in raised.value.message
            events = link.client.generate(build_request())
            await anext(events)
            with pytest.raises(EngineError, match="log says why") as raised:
                await anext(events)
            assert "ZeroDivisionError at" in (raised.value.cause or ""), "the gateway's log says it too"
        with pytest.raises(EngineError, match="too large"):
            await link.client.vocabulary()
        await link.client.info()
    logged = [str(getattr(each, FIELDS)) for each in caplog.records if each.message == "engine_call_failed"]
    assert "ZeroDivisionError at" in str(logged) and "0x7f" not in caplog.text + str(logged)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        (MAX_FRAME + 1).to_bytes(HEADER_BYTES, "big"),
        b"\x00\x00\x00\x01\xc1",
    ],
)
async def test_bytes_that_are_no_frames_end_that_connection_only(data: bytes) -> None:
    async with open_link(create_brief_engine()) as link, asyncio.timeout(PATIENCE):
        peer = await connect(link.path)
        peer.writer.write(data)
        assert await peer.ended()
        peer.writer.close()
        assert [event async for event in link.client.generate(build_request())]


async def test_a_gateway_that_does_not_begin_with_hello_is_not_heard() -> None:
    engine = create_brief_engine()
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        for first in (GenerateCall(1, build_request()), Hello(HELLO.protocol + 1, HELLO.release)):
            peer = await connect(link.path)
            peer.send(first)
            assert await peer.ended()
            peer.writer.close()
        assert engine.requests == []


@pytest.mark.parametrize("again", [HELLO, GenerateCall(1, build_request())])
async def test_a_second_hello_or_reused_number_ends_the_connection(again: Hello | GenerateCall) -> None:
    engine = create_endless_engine()
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        peer = await connect(link.path)
        peer.send(HELLO, GenerateCall(1, build_request()))
        peer.send(again)
        assert await peer.ended()
        peer.writer.close()
        await load_when(engine, running=0)


async def test_a_gateway_that_stops_reading_is_disconnected() -> None:
    engine = Torrent()
    async with open_link(engine, max_unsent=2**20) as link:
        peer = await connect(link.path)
        peer.stop_reading()
        peer.send(HELLO, *(GenerateCall(number, build_request(logprobs=20)) for number in range(1, 17)))
        await load_when(engine, running=16)
        most = 0
        async with asyncio.timeout(PATIENCE):
            while len(link.host.sessions) == 2:
                most = max(session.channel.unsent for session in link.host.sessions)
                await asyncio.sleep(0)
        assert most < 1.1 * 2**20
        await load_when(engine, running=0)
        await link.client.info()
        peer.writer.close()


async def test_draining_waits_for_what_runs_and_not_for_ever() -> None:
    engine = ScriptedTokenEngine(Script(text="Hello there.", pace=0.02))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        events = link.client.generate(build_request())
        await anext(events)
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(link.host.drain(PATIENCE))
            heard = [event async for event in events]
            await draining
        assert len(heard) > 5
    async with open_link(create_endless_engine()) as link, asyncio.timeout(PATIENCE):
        events = link.client.generate(build_request())
        await anext(events)
        await link.host.drain(0.1)
