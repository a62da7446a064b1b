"""The adapters that the engine knows: which are in memory, which one is on, and which sequences use each.

An adapter is known by the digest of its content. Hundreds may be known. The last used ones are in memory, up
to a bound in bytes; the others are read again when they are needed. All of it belongs to the decode thread,
except where a note says otherwise.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from antiphon.errors import EngineError, InvalidValue, LoadError

Stamp = tuple[int, int, int]
"""Size, time of the last change and number of a file: while these are the same, so is its content."""


class Native(Protocol):
    """An adapter in the library's memory."""

    def close(self) -> None: ...


@dataclass(slots=True)
class _Known:
    """One adapter; `native` is None while it is only on disk."""

    path: Path
    stamp: Stamp
    native: Native | None = None
    fault: str = ""
    """Why it is not computed with, though it was read."""

    @property
    def size(self) -> int:
        return self.stamp[0]


class AdapterCache:
    """The adapters of one model."""

    def __init__(
        self, read: Callable[[Path], Native], turn_on: Callable[[Native | None], None], room: int
    ) -> None:
        """`room`: bytes of adapters kept in memory; the one in use always is."""
        self._read = read
        self._turn_on = turn_on
        self._room = room
        self._known: dict[str, _Known] = {}
        """In the order of last use, the latest last."""
        self._on: str | None = None

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, digest: str) -> bool:
        return digest in self._known

    @property
    def loaded(self) -> int:
        """How many are in memory."""
        return sum(known.native is not None for known in self._known.values())

    def add(self, digest: str, path: Path) -> None:
        """Makes an adapter known, and reads it once to see that it can be. Raises LoadError."""
        stamp = stamp_of(path)
        known = self._known.get(digest)
        if known is not None:
            known.path, known.stamp = path, stamp
            return
        self._known[digest] = _Known(path, stamp, self._read(path))
        self._make_room(keep=digest)

    def remove(self, digest: str) -> None:
        """Forgets an adapter that nobody computes with any more."""
        known = self._known.pop(digest, None)
        if known is None:
            return
        if self._on == digest:
            self.use(None)
        if known.native is not None:
            known.native.close()

    def use(self, digest: str | None) -> None:
        """Has the next decode compute with this adapter, or with none. Raises EngineError when it cannot be
        read any more, or was found not to compute."""
        if digest == self._on:
            return
        native = None if digest is None else self._native(digest)
        try:
            self._turn_on(native)
        except EngineError:
            self._on = None
            self._turn_on(None)
            raise
        self._on = digest
        if digest is not None:
            self._make_room(keep=digest)

    def ban(self, digest: str, fault: str) -> None:
        """Computes with it no more, until it was removed and added again."""
        known = self._known.get(digest)
        if known is None:
            return
        known.fault = fault
        if self._on == digest:
            self.use(None)

    def resting(self, digest: str) -> Path | None:
        """The file of an adapter that is known and not in memory. From any thread."""
        known = self._known.get(digest)
        return None if known is None or known.native is not None else known.path

    def close(self) -> None:
        """Frees all of them."""
        for digest in tuple(self._known):
            self.remove(digest)

    def _native(self, digest: str) -> Native:
        known = self._known.pop(digest, None)
        if known is None:
            raise EngineError("the adapter was unloaded")
        self._known[digest] = known
        if known.fault:
            raise EngineError(known.fault)
        if known.native is None:
            try:
                if stamp_of(known.path) != known.stamp:
                    raise EngineError(f"the file of the adapter {known.path.name} was changed; load it again")
                known.native = self._read(known.path)
            except LoadError as problem:
                raise EngineError(problem.message) from None
        return known.native

    def _make_room(self, keep: str) -> None:
        """Closes the ones that were used longest ago until the rest fit."""
        held = sum(known.size for known in self._known.values() if known.native is not None)
        for digest, known in self._known.items():
            if held <= self._room:
                return
            if known.native is not None and digest not in (keep, self._on):
                known.native.close()
                known.native = None
                held -= known.size


def stamp_of(path: Path) -> Stamp:
    """Raises LoadError when the file cannot be read."""
    try:
        facts = path.stat()
    except OSError as problem:
        raise LoadError(f"the adapter {path.name} cannot be read: {problem.strerror}") from None
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


NO_NUMBERS = "the adapter's weights give no numbers with this model; unload it, and train or convert it again"


class AdapterRefs:
    """Adapters lent to sequences that are queued or run."""

    def __init__(self, shelf: AdapterCache, forget: Callable[[str], None]) -> None:
        """`forget` gives up all that is kept of an adapter which goes away."""
        self._shelf = shelf
        self._forget = forget
        self._users: Counter[str] = Counter()
        self._leaving: set[str] = set()
        self._sound: set[str] = set()

    def add(self, digest: str, path: Path) -> None:
        """Makes an adapter usable. Raises InvalidValue when it cannot be read; then nothing has changed."""
        try:
            self._shelf.add(digest, path)
        except LoadError as problem:
            raise InvalidValue(problem.message, param="adapter") from None
        self._leaving.discard(digest)

    def remove(self, digest: str) -> None:
        """Lends it no more, and forgets it now or when it comes back from the last."""
        if digest in self._shelf:
            self._leaving.add(digest)
            self._forget(digest)
            self._let_go(digest)

    def refusal(self, digest: str | None) -> InvalidValue | None:
        """Why a new sequence may not have it, if so."""
        if digest is None or self.lends(digest):
            return None
        return InvalidValue(f"the engine has no adapter {digest!r}; name one that is loaded", param="adapter")

    def lends(self, digest: str | None) -> bool:
        """Whether new sequences may have it."""
        return digest is None or (digest in self._shelf and digest not in self._leaving)

    def begin(self, digest: str | None) -> None:
        """A sequence has it from here on."""
        if digest is not None:
            self._users[digest] += 1

    def end(self, digest: str | None) -> None:
        """A sequence gives it back."""
        if digest is not None:
            self._users[digest] -= 1
            self._let_go(digest)

    def is_proved(self, digest: str) -> bool:
        """Whether it was computed with, and gave numbers."""
        return digest in self._sound

    def judge(self, digest: str, sound: bool) -> bool:
        """Notes whether a call with it gave numbers. One that did not is computed with no more."""
        if sound:
            self._sound.add(digest)
        else:
            self._sound.discard(digest)
            self._shelf.ban(digest, NO_NUMBERS)
        return sound

    def _let_go(self, digest: str) -> None:
        if digest in self._leaving and not self._users[digest]:
            self._leaving.discard(digest)
            self._sound.discard(digest)
            del self._users[digest]
            self._forget(digest)
            self._shelf.remove(digest)
