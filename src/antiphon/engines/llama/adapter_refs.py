"""Who computes with which adapter: who is refused, and which one is forgotten when its last user has ended.

It belongs to the decode thread. The adapters themselves are the shelf's.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from antiphon.engines.llama.adapter_cache import AdapterCache
from antiphon.errors import InvalidValue, LoadError

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
