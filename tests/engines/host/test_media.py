"""Media on their way to a host: whole ones of any allowed size, and the end of a host before one has come."""

import asyncio

import pytest

from antiphon.domain.media import Medium, build_recording
from antiphon.engines.base import EngineState
from antiphon.engines.host.client import PART_BYTES, open_host_engine
from antiphon.engines.host.frames import TO_HOST, HeldReply, HoldCall, MediumPart
from antiphon.errors import EngineLost
from antiphon.media.facts import MAX_SECONDS
from antiphon.processes.ipc import MAX_MESSAGE, FrameReader
from tests.engines.host.peer import HELLO, Peer, messages, pretending
from tests.support.host_engines import Seeing
from tests.support.host_link import open_link, short_directory
from tests.support.waiting import await_until

PATIENCE = 60.0


def record(seconds: int) -> Medium:
    return build_recording(bytes(range(256)) * (seconds * 16_000 * 4 // 256))


async def test_the_longest_recording_comes_whole_while_others_are_served() -> None:
    engine = Seeing()
    longest, short = record(MAX_SECONDS), record(1)
    assert len(longest.data) > MAX_MESSAGE
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        for medium in (longest, short):
            async with link.client.hold(medium):
                assert engine.held == [medium]
                await link.client.info()
            await await_until(lambda: not engine.held)
        await await_until(lambda: not link.host.is_busy())


async def test_what_the_host_has_encoded_for_the_same_salt_is_not_sent_again() -> None:
    engine, medium = Seeing(), record(1)
    engine.encoded.add((medium.digest, "salt"))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        for salt, expected in (("salt", b""), ("other", medium.data), ("", medium.data)):
            async with link.client.hold(medium, salt):
                assert [each.data for each in engine.held] == [expected], salt
            await await_until(lambda: not engine.held)


async def test_a_caller_who_leaves_while_a_recording_is_sent_leaves_nothing() -> None:
    engine = Seeing()
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):

        async def hold() -> None:
            async with link.client.hold(record(MAX_SECONDS)):
                await asyncio.Event().wait()

        leaving = asyncio.create_task(hold())  # noqa: TID251 - it is cancelled before it ends
        await await_until(link.host.is_busy)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await await_until(lambda: not link.host.is_busy())
        assert not engine.held


async def test_a_host_that_ends_before_a_medium_has_come_is_an_error_that_is_tried_again() -> None:
    medium = record(200)

    async def behave(peer: Peer) -> None:
        peer.send(HELLO)
        async for group in messages(peer, FrameReader(TO_HOST)):
            for message in group:
                if isinstance(message, HoldCall):
                    assert message.medium.data == b"" and message.byte_count == len(medium.data)
                    peer.send(HeldReply(message.call, 0))
                if isinstance(message, MediumPart):
                    assert message.data == medium.data[:PART_BYTES]
                    peer.writer.transport.abort()

    with short_directory() as place:
        path = place / "0.sock"
        async with pretending(path, behave), open_host_engine(str(path), "owl") as client:
            await await_until(lambda: client.state() is EngineState.READY)
            with pytest.raises(EngineLost):
                async with asyncio.timeout(PATIENCE), client.hold(medium):
                    raise AssertionError("it is not held")
