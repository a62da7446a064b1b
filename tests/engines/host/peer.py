"""A peer that speaks frames by hand, so that tests can break the protocol."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import antiphon
from antiphon.engines.host.frames import TO_HOST, GenerateCall
from antiphon.processes.ipc import PROTOCOL, Frame, FrameReader, FrameWriter, Hello

M = TypeVar("M")

HELLO = Hello(PROTOCOL, antiphon.__version__)


@runtime_checkable
class Pausable(Protocol):
    """What every event loop's transport of a stream can do."""

    def pause_reading(self) -> None: ...


class Peer:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames = FrameWriter()

    def send(self, *messages: Frame) -> None:
        self.writer.write(self.frame(*messages))

    def frame(self, *messages: Frame) -> bytes:
        return self.frames.encode_frame([self.frames.encode_message(message) for message in messages])

    def stop_reading(self) -> None:
        assert isinstance(self.writer.transport, Pausable)
        self.writer.transport.pause_reading()

    async def asked(self) -> None:
        """Reads, as a host, until a sequence is asked for."""
        async for group in messages(self, FrameReader(TO_HOST)):
            if any(isinstance(message, GenerateCall) for message in group):
                return

    async def ended(self) -> bool:
        """Reads until the other side has closed."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        return True


async def connect(path: str) -> Peer:
    return Peer(*await asyncio.open_unix_connection(path))


@asynccontextmanager
async def pretending(path: Path, behave: Callable[[Peer], Awaitable[None]]) -> AsyncIterator[None]:
    """A host that behaves like this on each connection."""

    peers: list[Peer] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        peers.append(peer)
        await behave(peer)

    server = await asyncio.start_unix_server(accept, path)
    try:
        yield
    finally:
        server.close()
        for peer in peers:
            peer.writer.transport.abort()
        await asyncio.sleep(0)


async def messages(peer: Peer, reader: FrameReader[M]) -> AsyncIterator[list[M]]:
    """The messages of each frame, one list for each read."""
    while data := await peer.reader.read(65536):
        yield list(reader.feed(data))
