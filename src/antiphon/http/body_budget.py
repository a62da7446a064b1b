"""Limits the total size of the request bodies in this process's memory.

If keys are on, the bodies of one actor must leave at least as many bytes free as they have. So one actor
whose requests run for hours cannot shut out the others.
"""

from antiphon.errors import Overloaded, ServerBusy

RETRY_AFTER = 1.0
"""Seconds after which a refused caller can try again."""


class BodyBudget:
    """Counts the bytes of all bodies in memory. A body counts from its arrival until its request has ended.

    Only bytes that have arrived count. So a client cannot use up the budget by announcing a body that it does
    not send.
    """

    def __init__(self) -> None:
        self.byte_count = 0
        self._by_actor: dict[str, int] = {}
        """The number of bytes of each actor. Empty if keys are off."""

    def add(self, actor: str | None, size: int) -> None:
        """Adds bytes to the count; a negative size removes them."""
        self.byte_count += size
        if actor is not None:
            actor_bytes = self._by_actor.get(actor, 0) + size
            if actor_bytes:
                self._by_actor[actor] = actor_bytes
            else:
                self._by_actor.pop(actor, None)

    def count_actor_bytes(self, actor: str) -> int:
        """Returns the number of bytes of one actor."""
        return self._by_actor.get(actor, 0)


class BodyCounter:
    """Counts the bytes of one request's body."""

    __slots__ = ("_actor", "_budget", "_max_bytes", "byte_count")

    def __init__(self, budget: BodyBudget, max_bytes: int, actor: str | None) -> None:
        self._budget = budget
        self._max_bytes = max_bytes
        self._actor = actor
        self.byte_count = 0

    def require_free(self, size: int) -> None:
        """Checks that the budget has `size` free bytes, and counts nothing. Raises ServerBusy if it has
        fewer, and Overloaded if the actor's bodies would then have more bytes than are free."""
        free_bytes = self._max_bytes - self._budget.byte_count - size
        if free_bytes < 0:
            raise ServerBusy(
                f"the bodies of running requests together would pass {self._max_bytes:,} bytes "
                "(ANTIPHON_MAX_BODIES_BYTES); try again",
                retry_after=RETRY_AFTER,
            )

        is_only_body = self.byte_count == self._budget.byte_count
        if (
            self._actor is not None
            and not is_only_body
            and self._budget.count_actor_bytes(self._actor) + size > free_bytes
        ):
            raise Overloaded(
                "the bodies of your running requests would use more memory than they leave free "
                f"(of {self._max_bytes:,} bytes, ANTIPHON_MAX_BODIES_BYTES); wait for some of them to end",
                retry_after=RETRY_AFTER,
            )

    def charge(self, size: int) -> None:
        """Counts bytes that have arrived. Raises the same errors as `require_free`."""
        self.require_free(size)
        self._budget.add(self._actor, size)
        self.byte_count += size

    def release(self) -> None:
        """Removes the body's bytes from the budget. Call it when the request has ended."""
        self._budget.add(self._actor, -self.byte_count)
        self.byte_count = 0
