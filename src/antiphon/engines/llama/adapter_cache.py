"""The adapters that the engine knows: which are in memory, which one is active, and which sequences use each.

An adapter is known by the digest of its content. Hundreds may be known. The last used adapters are in memory,
up to a bound in bytes. The adapters that are not in memory are read again when they are needed. Only the
decode thread may call these functions, except where a docstring allows any thread.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from antiphon.domain.values import Struct
from antiphon.errors import EngineError, InvalidValue, LoadError

FileStamp = tuple[int, int, int]
"""Size, modification time and inode of a file. While these are the same, so is its content."""


class LoadedAdapter(Protocol):
    """An adapter in the library's memory."""

    def close(self) -> None: ...


class _KnownAdapter(Struct):
    """One adapter. Its `native` is None while the adapter is only on disk."""

    path: Path
    stamp: FileStamp
    native: LoadedAdapter | None = None
    fault: str = ""
    """The reason why the adapter is refused although its file was read; empty if the adapter is usable."""

    @property
    def size(self) -> int:
        return self.stamp[0]


class AdapterCache:
    """The adapters of one model."""

    def __init__(
        self,
        read: Callable[[Path], LoadedAdapter],
        set_active: Callable[[LoadedAdapter | None], None],
        max_bytes: int,
    ) -> None:
        """`read`: loads an adapter into the library. `set_active`: makes the library compute with an adapter,
        or with none. `max_bytes`: the most bytes of adapters in memory; the active adapter stays even if it
        is larger."""
        self._read = read
        self._set_active = set_active
        self._max_bytes = max_bytes
        self._adapters: dict[str, _KnownAdapter] = {}
        """The known adapters in the order of last use, the latest last."""
        self._active_digest: str | None = None

    def __len__(self) -> int:
        return len(self._adapters)

    def __contains__(self, digest: str) -> bool:
        return digest in self._adapters

    @property
    def loaded_count(self) -> int:
        """The number of adapters in memory."""
        return sum(adapter.native is not None for adapter in self._adapters.values())

    def add(self, digest: str, path: Path) -> None:
        """Adds an adapter and reads it once to prove that it can be loaded. Raises LoadError."""
        stamp = read_stamp(path)
        adapter = self._adapters.get(digest)
        if adapter is not None:
            adapter.path, adapter.stamp = path, stamp
            return
        self._adapters[digest] = _KnownAdapter(path, stamp, self._read(path))
        self._make_room(kept_digest=digest)

    def remove(self, digest: str) -> None:
        """Forgets an adapter that no sequence uses any more."""
        adapter = self._adapters.pop(digest, None)
        if adapter is None:
            return
        if self._active_digest == digest:
            self.use(None)
        if adapter.native is not None:
            adapter.native.close()

    def use(self, digest: str | None) -> None:
        """Makes the next decode compute with this adapter, or with none. Raises EngineError if the adapter
        cannot be read any more, or is banned."""
        if digest == self._active_digest:
            return
        native = None if digest is None else self._get_native(digest)
        try:
            self._set_active(native)
        except EngineError:
            self._active_digest = None
            self._set_active(None)
            raise
        self._active_digest = digest
        if digest is not None:
            self._make_room(kept_digest=digest)

    def ban(self, digest: str, fault: str) -> None:
        """Makes `use` refuse an adapter with this reason, until the adapter is removed and added again."""
        adapter = self._adapters.get(digest)
        if adapter is None:
            return
        adapter.fault = fault
        if self._active_digest == digest:
            self.use(None)

    def find_unloaded(self, digest: str) -> Path | None:
        """The file of an adapter that is known and not in memory. Any thread may call it."""
        adapter = self._adapters.get(digest)
        return None if adapter is None or adapter.native is not None else adapter.path

    def close(self) -> None:
        """Frees all adapters."""
        for digest in tuple(self._adapters):
            self.remove(digest)

    def _get_native(self, digest: str) -> LoadedAdapter:
        """Returns the loaded adapter and marks it as the last used one. Reads its file if the adapter is only
        on disk. Raises EngineError if the adapter is unknown, banned or unreadable."""
        adapter = self._adapters.pop(digest, None)
        if adapter is None:
            raise EngineError("the adapter was unloaded")
        self._adapters[digest] = adapter
        if adapter.fault:
            raise EngineError(adapter.fault)
        if adapter.native is None:
            try:
                if read_stamp(adapter.path) != adapter.stamp:
                    raise EngineError(
                        f"the file of the adapter {adapter.path.name} was changed; load it again"
                    )
                adapter.native = self._read(adapter.path)
            except LoadError as problem:
                raise EngineError(problem.message) from None
        return adapter.native

    def _make_room(self, kept_digest: str) -> None:
        """Closes the least recently used adapters until those in memory have at most `max_bytes`. Keeps the
        adapter `kept_digest` and the active one."""
        loaded_bytes = sum(adapter.size for adapter in self._adapters.values() if adapter.native is not None)
        for digest, adapter in self._adapters.items():
            if loaded_bytes <= self._max_bytes:
                return
            if adapter.native is not None and digest not in (kept_digest, self._active_digest):
                adapter.native.close()
                adapter.native = None
                loaded_bytes -= adapter.size


def read_stamp(path: Path) -> FileStamp:
    """Reads a file's stamp. Raises LoadError when the file cannot be read."""
    try:
        file_status = path.stat()
    except OSError as problem:
        raise LoadError(f"the adapter {path.name} cannot be read: {problem.strerror}") from None
    return file_status.st_size, file_status.st_mtime_ns, file_status.st_ino


NO_NUMBERS = "the adapter's weights give no numbers with this model; unload it, and train or convert it again"


class AdapterRefs:
    """Counts the queued and running sequences of each adapter. It refuses removed adapters to new sequences,
    and forgets a removed adapter after its last sequence."""

    def __init__(self, cache: AdapterCache, forget: Callable[[str], None]) -> None:
        """`forget`: drops the prefixes that were computed with an adapter."""
        self._cache = cache
        self._forget = forget
        self._users: Counter[str] = Counter()
        self._removed_digests: set[str] = set()
        self._tested_digests: set[str] = set()

    def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue if it cannot be read; then nothing has changed."""
        try:
            self._cache.add(digest, path)
        except LoadError as problem:
            raise InvalidValue(problem.message, param="adapter") from None
        self._removed_digests.discard(digest)

    def remove(self, digest: str) -> None:
        """Refuses an adapter to new sequences. Forgets the adapter at once if no sequence uses it, or when
        its last sequence ends."""
        if digest in self._cache:
            self._removed_digests.add(digest)
            self._forget(digest)
            self._drop_if_unused(digest)

    def find_refusal(self, digest: str | None) -> InvalidValue | None:
        """The error that refuses this adapter to a new sequence, or None."""
        if digest is None or self.is_usable(digest):
            return None
        return InvalidValue(f"the engine has no adapter {digest!r}; name one that is loaded", param="adapter")

    def is_usable(self, digest: str | None) -> bool:
        """Whether new sequences may use the adapter."""
        return digest is None or (digest in self._cache and digest not in self._removed_digests)

    def acquire(self, digest: str | None) -> None:
        """Counts a new sequence that uses the adapter."""
        if digest is not None:
            self._users[digest] += 1

    def release(self, digest: str | None) -> None:
        """Counts one sequence less that uses the adapter."""
        if digest is not None:
            self._users[digest] -= 1
            self._drop_if_unused(digest)

    def is_tested(self, digest: str) -> bool:
        """Whether a call with the adapter has given finite numbers."""
        return digest in self._tested_digests

    def record_result(self, digest: str, is_finite: bool) -> bool:
        """Notes whether a call with the adapter gave finite numbers. If not, bans the adapter. Returns
        `is_finite`."""
        if is_finite:
            self._tested_digests.add(digest)
        else:
            self._tested_digests.discard(digest)
            self._cache.ban(digest, NO_NUMBERS)
        return is_finite

    def _drop_if_unused(self, digest: str) -> None:
        """Forgets a removed adapter and its prefixes if no sequence uses the adapter any more."""
        if digest in self._removed_digests and not self._users[digest]:
            self._removed_digests.discard(digest)
            self._tested_digests.discard(digest)
            del self._users[digest]
            self._forget(digest)
            self._cache.remove(digest)
