"""Sandboxed jobs on a busy machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from antiphon.processes import sandbox


@contextmanager
def let_jobs_start() -> Iterator[None]:
    """Lets the processes of jobs start as late as a busy machine lets them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "START_DEADLINE", 100.0)
        yield
