"""The event loop's side of adapters: files are checked and read through beside decoding, one after another,
before the decode thread takes them."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from antiphon.engines.llama.decode import DecodeLoop
from antiphon.errors import InvalidValue


class Adapters:
    """Adapters of one engine, on their way in and out."""

    def __init__(self, decoder: Callable[[], DecodeLoop]) -> None:
        self._decoder = decoder
        self._coming: dict[str, asyncio.Event] = {}
        self._turn = asyncio.Lock()

    async def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue when its file is not the one of that digest, or the
        library refuses it."""
        await self.wait_until_settled(digest)
        here = self._coming[digest] = asyncio.Event()
        try:
            async with self._turn:
                await asyncio.to_thread(require_digest, path, digest)
                decoder = self._decoder()
                await asyncio.wrap_future(decoder.inbox.ask(partial(decoder.lending.add, digest, path)))
        finally:
            del self._coming[digest]
            here.set()

    async def remove(self, digest: str) -> None:
        """Refuses an adapter from here on; it is forgotten when the last that runs with it has ended."""
        await self.wait_until_settled(digest)
        decoder = self._decoder()
        await asyncio.wrap_future(decoder.inbox.ask(partial(decoder.lending.remove, digest)))

    async def wait_until_settled(self, digest: str) -> None:
        """Waits for an adapter that is coming in: whoever asks for it after it was added is to find it."""
        while (coming := self._coming.get(digest)) is not None:
            await coming.wait()

    async def ready(self, digest: str) -> None:
        """The same; and one that is only on disk is read once beside decoding, so that the decode thread
        finds it in the system's cache."""
        await self.wait_until_settled(digest)
        path = self._decoder().shelf.resting(digest)
        if path is not None:
            await asyncio.to_thread(_read_through, path)


def require_digest(path: Path, digest: str) -> None:
    """Raises InvalidValue unless the file's SHA-256 is this one, in hexadecimal."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise InvalidValue(
            f"the adapter {path.name} cannot be read: {problem.strerror}", param="adapter"
        ) from None
    if found != digest:
        raise InvalidValue(
            f"the adapter {path.name} is not the one with the digest {digest[:64]}; its file was changed",
            param="adapter",
        )


def _read_through(path: Path) -> None:
    try:
        with path.open("rb") as file:
            hashlib.file_digest(file, "blake2s")
    except OSError:
        pass  # the decode thread says so
