"""Adapters on the event loop: each file is checked and read there, one after another, before the decode
thread loads the adapter."""

import asyncio
import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from antiphon.engines.llama.decode import DecodeLoop
from antiphon.errors import InvalidValue


class AdapterLoader:
    """Adds and removes the adapters of one engine. It checks and reads one file after another, while the
    decode thread goes on decoding."""

    def __init__(self, get_decoder: Callable[[], DecodeLoop]) -> None:
        self._get_decoder = get_decoder
        self._loading: dict[str, asyncio.Event] = {}
        self._load_lock = asyncio.Lock()

    async def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue if `digest` is not the digest of its file, or if the
        library refuses the adapter."""
        await self.wait_until_settled(digest)
        loaded = self._loading[digest] = asyncio.Event()
        try:
            async with self._load_lock:
                await asyncio.to_thread(require_digest, path, digest)
                decoder = self._get_decoder()
                await asyncio.wrap_future(
                    decoder.inbox.run_on_thread(partial(decoder.adapter_refs.add, digest, path))
                )
        finally:
            del self._loading[digest]
            loaded.set()

    async def remove(self, digest: str) -> None:
        """Refuses an adapter to new sequences, and forgets the adapter when its last sequence ends."""
        await self.wait_until_settled(digest)
        decoder = self._get_decoder()
        await asyncio.wrap_future(decoder.inbox.run_on_thread(partial(decoder.adapter_refs.remove, digest)))

    async def wait_until_settled(self, digest: str) -> None:
        """Waits while this adapter is being added."""
        while (loaded := self._loading.get(digest)) is not None:
            await loaded.wait()

    async def prepare(self, digest: str) -> None:
        """Waits while this adapter is being added. If the adapter is not in memory, reads its file once on
        another thread, so that the decode thread finds the file in the system's cache."""
        await self.wait_until_settled(digest)
        path = self._get_decoder().adapters.find_unloaded(digest)
        if path is not None:
            await asyncio.to_thread(_read_into_cache, path)


def require_digest(path: Path, digest: str) -> None:
    """Raises InvalidValue unless `digest` is the file's SHA-256 in hexadecimal."""
    try:
        with path.open("rb") as file:
            digest_found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as problem:
        raise InvalidValue(
            f"the adapter {path.name} cannot be read: {problem.strerror}", param="adapter"
        ) from None
    if digest_found != digest:
        raise InvalidValue(
            f"the adapter {path.name} is not the one with the digest {digest[:64]}; its file was changed",
            param="adapter",
        )


def _read_into_cache(path: Path) -> None:
    """Reads a whole file, so that the system's cache contains it. Ignores a file that cannot be read."""
    try:
        with path.open("rb") as file:
            hashlib.file_digest(file, "blake2s")
    except OSError:
        pass  # the decode thread reports the error
