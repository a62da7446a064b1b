"""What every test shares: the event loop that async tests run on, and no skips where none are allowed."""

import hypothesis
import pytest

from tests.no_skips import *  # noqa: F403 - hooks are found by their names; `__all__` lists them

# Machines are shared and noisy: a slow example is no finding.
hypothesis.settings.register_profile("antiphon", deadline=None, print_blob=True)
hypothesis.settings.load_profile("antiphon")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests, marked or not, run on uvloop, as the server does."""
    return "asyncio", {"use_uvloop": True}
