"""The garbage collector looks only at what tests make, not at what imports and caches keep for good.

A worker keeps millions of objects in time, and one full collection of them takes seconds of CPU.
"""

import gc

__all__ = ["pytest_collection_finish", "pytest_runtest_logstart"]

MANY = 200_000
"""Objects that outlive a full collection, most of them kept for good. A test makes far fewer."""

_large_heaps: list[int] = []
"""Their numbers since the collector was last told to leave them alone."""


def pytest_collection_finish() -> None:
    """What importing the tests made is most of all there is."""
    gc.collect()
    gc.freeze()
    if _note_size not in gc.callbacks:
        gc.callbacks.append(_note_size)


def pytest_runtest_logstart() -> None:
    """Between two tests, since a test may count its own objects."""
    if _large_heaps:
        gc.collect()  # finds what an earlier test left open, for example a socket
        gc.freeze()
        _large_heaps.clear()


def _note_size(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2 and (size := len(gc.get_objects())) > MANY:
        _large_heaps.append(size)
