"""The event loop's side of adapters: files are checked and read through beside decoding, one after another,
before the decode thread takes them."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from antiphon.engines.llama.decode import DecodeLoop
from antiphon.errors import InvalidValue


class AdapterLoader:
    """Adapters of one engine while they are added and removed: files are checked and read beside decoding,
    one after another, before the decode thread takes them."""

    def __init__(self, decoder: Callable[[], DecodeLoop]) -> None:
        self._decoder = decoder
        self._loading: dict[str, asyncio.Event] = {}
        self._turn = asyncio.Lock()

    async def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue when its file is not the one of that digest, or the
        library refuses it."""
        await self.wait_until_settled(digest)
        here = self._loading[digest] = asyncio.Event()
        try:
            async with self._turn:
                await asyncio.to_thread(require_digest, path, digest)
                decoder = self._decoder()
                await asyncio.wrap_future(decoder.inbox.ask(partial(decoder.adapter_refs.add, digest, path)))
        finally:
            del self._loading[digest]
            here.set()

    async def remove(self, digest: str) -> None:
        """Refuses an adapter from here on; it is forgotten when the last sequence with it ends."""
        await self.wait_until_settled(digest)
        decoder = self._decoder()
        await asyncio.wrap_future(decoder.inbox.ask(partial(decoder.adapter_refs.remove, digest)))

    async def wait_until_settled(self, digest: str) -> None:
        """Waits for an adapter that is being added, so that a request after it finds it."""
        while (coming := self._loading.get(digest)) is not None:
            await coming.wait()

    async def prepare(self, digest: str) -> None:
        """Waits for an adapter that is being added. One that is only on disk is read once beside decoding, so
        that the decode thread finds it in the system's cache."""
        await self.wait_until_settled(digest)
        path = self._decoder().adapters.find_unloaded(digest)
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
