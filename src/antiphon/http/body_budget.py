"""The request bodies of this process, all together: how many bytes are held now, and no more than so many.
Where callers are told apart, one leaves as much room to the others as it takes: whoever holds all it may for
hours shuts nobody out."""

from collections import Counter

from antiphon.errors import Overloaded, ServerBusy

RETRY_AFTER = 1.0
"""Seconds after which a refused caller may try again."""


class BodyBudget:
    """What all of them hold. A body counts as it arrives, so that promising a large one takes nothing from
    others, and until its request is over: so long its text is held, decoded or not."""

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()
        """Of each actor that is told apart."""

    def add(self, actor: str | None, size: int) -> None:
        """So many bytes are held now, or no longer."""
        self.held += size
        if actor is not None:
            self._of[actor] += size
            if not self._of[actor]:
                del self._of[actor]

    def of(self, actor: str) -> int:
        """Bytes of one actor."""
        return self._of[actor]


class BodyAccount:
    """One request's part."""

    __slots__ = ("_actor", "_bodies", "_most", "held")

    def __init__(self, bodies: BodyBudget, most: int, actor: str | None) -> None:
        self._bodies = bodies
        self._most = most
        self._actor = actor
        self.held = 0

    def expect(self, size: int) -> None:
        """Raises ServerBusy when there is no room for what is announced, Overloaded when its actor would take
        more than it leaves. Takes none of it."""
        left = self._most - self._bodies.held - size
        if left < 0:
            raise ServerBusy(
                f"the bodies of running requests together would pass {self._most:,} bytes "
                "(ANTIPHON_MAX_BODIES_BYTES); try again",
                retry_after=RETRY_AFTER,
            )

        is_alone = self.held == self._bodies.held
        if self._actor is not None and not is_alone and self._bodies.of(self._actor) + size > left:
            raise Overloaded(
                "the bodies of your running requests would take more room than they leave to others "
                f"(of {self._most:,} bytes, ANTIPHON_MAX_BODIES_BYTES); wait for some of them to end",
                retry_after=RETRY_AFTER,
            )

    def charge(self, size: int) -> None:
        """So many bytes have come. Raises as `expect` does."""
        self.expect(size)
        self._bodies.add(self._actor, size)
        self.held += size

    def release(self) -> None:
        """The request is over."""
        self._bodies.add(self._actor, -self.held)
        self.held = 0
