"""Adapters that a host could not load again when it came back: which they are, and when each is tried again.

Says nothing to a host itself, and holds no paths.
"""

import asyncio
from collections.abc import Callable, Collection

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 15.0
"""Seconds before a host is given them again: a file that is being put back is there soon, and finding out
that it is not costs a look at the disk."""


class PendingReloads:
    """Digests, in no order. Belongs to one event loop."""

    def __init__(self, give: Callable[[str], None], first: float = FIRST_PAUSE) -> None:
        """`give`: gives the host the adapter of a digest again; who hears the answer says so here. `first`:
        seconds before that; each later pause is twice as long."""
        self._give = give
        self._first = first
        self._pause = first
        self._digests: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests

    def add(self, digest: str) -> bool:
        """The host refused it; whether that is news."""
        is_new = digest not in self._digests
        self._digests.add(digest)
        if self._timer is None:
            self._wait()
        return is_new

    def discard(self, digest: str) -> bool:
        """The host has it, or need not; whether it lacked it."""
        lacked = digest in self._digests
        self.keep(self._digests - {digest})
        return lacked

    def keep(self, digests: Collection[str]) -> None:
        """None but these are wanted any more."""
        self._digests &= set(digests)
        if not self._digests:
            self.clear()

    def clear(self) -> None:
        """The host is gone; the next one is told of all."""
        self._digests.clear()
        self._pause = self._first
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._again)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _again(self) -> None:
        self._wait()
        for digest in tuple(self._digests):
            self._give(digest)
