"""What may wait for an engine host to read it, all callers' together and one caller's."""

from antiphon.errors import EngineBusy, Overloaded

MAX_UNSENT = 32 * 1024 * 1024
"""Bytes that may wait before new calls are refused; one caller takes half of it at most."""

RETRY_AFTER = 1.0
"""Seconds after which a refused caller may try again: the host reads as long as it lives."""


def require_room(name: str, waiting: int, mine: int, size: int) -> None:
    """Raises Overloaded when a caller of whose bytes so many wait would take more than it leaves to others
    with a message of this size, EngineBusy when others leave it no room. What finds nothing waiting is
    taken, whatever its size."""
    if not waiting:
        return
    left = MAX_UNSENT - waiting - size
    if mine and mine + size > left:
        raise Overloaded(
            f"what your requests send to the engine of {name} would take more room than it leaves to others; "
            "wait for some of them to begin, or send less at once",
            retry_after=RETRY_AFTER,
        )
    if left < 0:
        raise EngineBusy(f"too much is waiting for the engine of {name}; try again", retry_after=RETRY_AFTER)
