"""Events that the engine's own thread writes: their order, a reader that stops, a reply that is too large."""

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from antiphon.engines.base import EventSink, PromptScores, SequenceStarted, Steps, TokenEvent, TokenRequest
from antiphon.engines.host.frames import TO_CLIENT, GenerateCall, ToClient, TokensReply
from antiphon.errors import EngineError
from antiphon.processes.ipc import MAX_MESSAGE, Channel, FrameReader
from antiphon.task_group import task_group
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info
from tests.engines.host.peer import HELLO, connect
from tests.support.host_engines import build_request
from tests.support.host_link import open_link
from tests.support.host_loads import PATIENCE, load_when


class Pushing(ScriptedTokenEngine):
    """Passes its events to the sinks from a thread, one sequence at a time."""

    def __init__(self, script: Script) -> None:
        super().__init__(script, info=scripted_info(context_length=10**9, sequences=16))
        self._turn = asyncio.Lock()

    async def push(self, request: TokenRequest, sink: EventSink) -> None:
        async with aclosing(self.generate(request)) as events:
            async for event in events:
                async with self._turn:
                    await asyncio.to_thread(self._send, sink, event)

    @staticmethod
    def _send(sink: EventSink, event: TokenEvent) -> None:
        sink.put(event)
        sink.flush()


class Verbose(Pushing):
    """The first sequence has scores that no message can contain, and never ends by itself."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        if request.prompt_logprobs is None:
            async for event in super().generate(request):
                yield event
            return
        yield SequenceStarted(3)
        yield PromptScores(1, b"x" * MAX_MESSAGE, b"", b"", b"")
        await asyncio.Event().wait()


class Receiver:
    """The other end of a channel, read by hand."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader(TO_CLIENT)
        self.tokens: list[int] = []

    async def read(self, until: int) -> None:
        """Reads until so many replies have come, and keeps their call numbers."""
        while len(self.tokens) < until:
            data = await asyncio.get_running_loop().sock_recv(self._sock, 2**16)
            self.tokens += [each.call for each in self._reader.feed(data) if isinstance(each, TokensReply)]


@asynccontextmanager
async def open_channel() -> AsyncIterator[tuple[Channel[ToClient], Receiver]]:
    """A channel whose socket holds little, and its other end."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**13)
    transport, channel = await asyncio.get_running_loop().create_connection(
        lambda: Channel[ToClient](FrameReader(TO_CLIENT), lambda _: None, lambda _: None), sock=ours
    )
    try:
        yield channel, Receiver(theirs)
    finally:
        transport.abort()
        theirs.close()


def reply(number: int, size: int = 1) -> TokensReply:
    return TokensReply(number, tuple(range(size)))


async def test_a_reader_that_stops_in_the_middle_of_a_frame_misses_nothing() -> None:
    async with open_channel() as (channel, receiver), asyncio.timeout(PATIENCE):
        sizes = [20_000, 1, 3, 20_000, 1]
        unsent = [
            await asyncio.to_thread(channel.write_now, [channel.encode(reply(number, size))])
            for number, size in enumerate(sizes)
        ]
        assert 0 < unsent[0] < 20_000 * 3, "the beginning of the first frame is written"
        assert all(unsent), "no later message overtakes its rest"
        channel.put(reply(len(sizes)))
        await receiver.read(len(sizes) + 1)
        assert receiver.tokens == list(range(len(sizes) + 1))
        while channel.unsent:
            await asyncio.sleep(0)
        await asyncio.to_thread(channel.write_now, [channel.encode(reply(6))])  # the loop notices the end
        await receiver.read(7)
        assert await asyncio.to_thread(channel.write_now, [channel.encode(reply(7))]) == 0
        await receiver.read(8)
        assert receiver.tokens == list(range(8))


async def test_a_thread_does_not_overtake_what_the_event_loop_sends() -> None:
    async with open_channel() as (channel, receiver), asyncio.timeout(PATIENCE), task_group() as tasks:
        tasks.create_task(receiver.read(600))
        for number in range(0, 600, 3):
            channel.put(reply(number, 50))
            channel.write_now([channel.encode(reply(number + 1))])
            await asyncio.to_thread(channel.write_now, [channel.encode(reply(number + 2, 3000))])
    assert receiver.tokens == list(range(600))


class HalfWriting(asyncio.Transport):
    """A transport that writes the first half of what it gets, and the rest when it is told. As asyncio's
    since Python 3.12, it takes the rest out of its buffer before it writes it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self._sock = sock
        self._buffer = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += bytes(data)
        half = len(self._buffer) // 2
        assert self._sock.send(self._buffer[:half]) == half
        self._buffer = self._buffer[half:]

    def write_rest(self, *meanwhile: threading.Thread) -> None:
        rest, self._buffer = self._buffer, b""
        for thread in meanwhile:
            thread.start()
            thread.join(PATIENCE)
        assert self._sock.send(rest) == len(rest)

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def is_closing(self) -> bool:
        return False


async def test_a_thread_does_not_write_into_a_frame_that_the_transport_writes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        channel = Channel[ToClient](FrameReader(TO_CLIENT), lambda _: None, lambda _: None)
        transport = HalfWriting(ours)
        channel.connection_made(transport)
        channel.put(reply(0, 50))
        await asyncio.sleep(0)
        encoded = [channel.encode(reply(1))]
        transport.write_rest(threading.Thread(target=channel.write_now, args=(encoded,)))
        await asyncio.sleep(0)
        transport.write_rest()
        receiver = Receiver(theirs)
        async with asyncio.timeout(PATIENCE):
            await receiver.read(2)
        assert receiver.tokens == [0, 1]


async def test_messages_of_several_frames_are_left_to_the_event_loop() -> None:
    async with open_channel() as (channel, receiver), asyncio.timeout(PATIENCE):
        encoded = [channel.encode(reply(number, 200_000)) for number in range(4)]
        assert channel.write_now(encoded) == sum(map(len, encoded))
        await receiver.read(4)
        assert receiver.tokens == [0, 1, 2, 3]


async def test_a_lost_connection_takes_nothing_more() -> None:
    async with open_channel() as (channel, _):
        channel.cut("gone")
        assert channel.write_now([channel.encode(reply(1))]) == 0


async def test_pushed_events_reach_the_client() -> None:
    async with open_link(Pushing(Script(text="Hello there."))) as link, asyncio.timeout(PATIENCE):
        events = [event async for event in link.client.generate(build_request())]
        pulled = [
            event
            async for event in ScriptedTokenEngine(Script(text="Hello there.")).generate(build_request())
        ]
        assert [type(event) for event in events] == [type(event) for event in pulled]
        assert [event for event in events if isinstance(event, Steps)] == [
            event for event in pulled if isinstance(event, Steps)
        ]


async def test_a_reply_that_is_too_large_ends_its_call_only() -> None:
    engine = Verbose(Script(text="on and on ", endless=True, pace=0.01))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        kept = link.client.generate(build_request())
        await anext(kept)
        scored = link.client.generate(TokenRequest(build_request().prompt, 1, prompt_logprobs=0))
        assert isinstance(await anext(scored), SequenceStarted)
        with pytest.raises(EngineError, match="too large"):
            await anext(scored)
        assert isinstance(await anext(kept), Steps)
        await kept.aclose()
        await load_when(engine, running=0)


async def test_a_gateway_that_stops_reading_pushed_events_is_disconnected() -> None:
    engine = Pushing(Script(text="on and on ", endless=True, burst=20))
    async with open_link(engine, max_unsent=2**16) as link:
        peer = await connect(link.path)
        peer.stop_reading()
        peer.send(HELLO, *(GenerateCall(number, build_request(logprobs=20)) for number in range(1, 5)))
        async with asyncio.timeout(PATIENCE):
            while len(link.host.sessions) == 2:
                await asyncio.sleep(0.001)
        await load_when(engine, running=0)
        peer.writer.close()


async def test_a_cancelled_call_ends_while_others_are_pushed() -> None:
    engine = Pushing(Script(text="on and on ", endless=True, pace=0.01))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        peer = await connect(link.path)
        peer.send(HELLO, GenerateCall(1, build_request()))
        kept = link.client.generate(build_request())
        await anext(kept)
        peer.writer.close()
        await load_when(engine, running=1)
        for _ in range(3):
            assert isinstance(await anext(kept), Steps)
        await kept.aclose()
