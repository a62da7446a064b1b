"""What every test shares: the event loop that async tests run on, and no skips where none are allowed."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tests.support.collector import *  # noqa: F403
from tests.support.cpu_seconds import *  # noqa: F403
from tests.support.no_skips import *  # noqa: F403 - hooks are found by their names; `__all__` lists them
from tests.support.scheduling import *  # noqa: F403
from tests.support.trust import trust_nobody

if TYPE_CHECKING:
    from tests.support.server import Server

# The suite starts hundreds of interpreters. Without bytecode files each compiles all that it imports, which
# is half of what a server's start costs. Git ignores these files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
trust_nobody()

# The default cache of models: what this machine's user has fetched must not change what a test serves.
os.environ["XDG_CACHE_HOME"] = os.path.join(tempfile.gettempdir(), "antiphon-test-cache")

# Machines are shared and noisy: a slow example is no finding. `make soak` takes many more examples.
# The same examples in each run, so that a change is judged by what it changes; the soak draws new ones.
hypothesis.settings.register_profile(
    "antiphon", deadline=None, print_blob=True, max_examples=10, derandomize=True
)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=2_000)
hypothesis.settings.load_profile("antiphon")

# Who runs in the background of a script, or under nohup, has inherited deaf ears, and every process that a
# test starts and means to interrupt would inherit them too.
for number, answer in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, answer)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One worker more than cores, since tests wait for servers. At most four, since each takes 1 GiB."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return min(cores + 1, 4)


@pytest.fixture(scope="session")
def demo_server() -> "Iterator[Server]":
    """`antiphon serve` with the demo model, for all tests of a worker that do not break it."""
    from tests.support.server import serving

    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests, marked or not, run on uvloop, as the server does."""
    return "asyncio", {"use_uvloop": True}
