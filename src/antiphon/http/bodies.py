"""The request bodies of this process, all together: how many bytes are held now, and no more than so many."""

from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.errors import ServerBusy

RETRY_AFTER = 1.0
"""Seconds after which a refused caller may try again."""


class Bodies:
    """What all of them hold. A body counts as it arrives, so that promising a large one takes nothing from
    others, and until its request is over: so long its text is held, decoded or not."""

    def __init__(self) -> None:
        self.held = 0

    @contextmanager
    def account(self, most: int) -> Iterator["Account"]:
        """What one request holds, while the context lasts; all together may hold `most` bytes."""
        account = Account(self, most)
        try:
            yield account
        finally:
            self.held -= account.held


class Account:
    """One request's part."""

    __slots__ = ("_bodies", "_most", "held")

    def __init__(self, bodies: Bodies, most: int) -> None:
        self._bodies = bodies
        self._most = most
        self.held = 0

    def expect(self, size: int) -> None:
        """Raises ServerBusy when there is no room for what is announced. Takes none of it."""
        if self._bodies.held + size > self._most:
            raise ServerBusy(
                f"the bodies of running requests together would pass {self._most:,} bytes "
                "(ANTIPHON_MAX_BODIES_BYTES); try again",
                retry_after=RETRY_AFTER,
            )

    def charge(self, size: int) -> None:
        """So many bytes have come. Raises ServerBusy when there is no room for them."""
        self.expect(size)
        self._bodies.held += size
        self.held += size
