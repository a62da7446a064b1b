"""The directory of a vLLM host's sockets and adapters, after its owner was killed. Needs no vLLM."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from antiphon.engines.vllm.engine import PREFIX, VllmTokenEngine
from tests.support.host_link import short_directory
from tests.support.processes import bare_environment

OWNER = """
import sys
from antiphon.engines.vllm.engine import VllmTokenEngine
engine = VllmTokenEngine()
print("made", flush=True)
sys.stdin.read()
"""


FOLLOWER = """
import sys
from pathlib import Path
from antiphon.locked_directory import end_with_owner
end_with_owner(Path(sys.argv[1]))
print("follows", flush=True)
sys.stdin.read()
"""


@contextmanager
def start_owner(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has a directory in `place` and waits. Killed, it leaves it behind."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=bare_environment() | {"TMPDIR": str(place)},
    )
    assert owner.stdout is not None and owner.stdin is not None
    with owner.stdin, owner.stdout:
        assert owner.stdout.readline() == "made\n"
        yield owner
        owner.kill()
        owner.wait(30)


def start_follower(directory: Path) -> subprocess.Popen[str]:
    """A process that ends with the owner of a directory."""
    command = [sys.executable, "-c", FOLLOWER, str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_directory() as directory:
        monkeypatch.setattr("tempfile.tempdir", str(directory))
        yield directory


def test_a_start_removes_the_directory_of_a_killed_owner(place: Path) -> None:
    other = place / f"{PREFIX}of-another"
    other.mkdir()
    with start_owner(place):
        (left,) = set(place.iterdir()) - {other}
        assert left.name.startswith(PREFIX)
        living = VllmTokenEngine()
        assert left.exists(), "its owner lives"
    assert left.exists(), "it was killed"
    engine = VllmTokenEngine()
    assert not left.exists()
    assert len(list(place.glob(f"{PREFIX}*"))) == 3, "two of living owners, and one that is not ours"
    for each in (living, engine):
        asyncio.run(each.aclose())
    assert list(place.iterdir()) == [other]


def test_a_process_ends_with_the_owner_of_its_directory(place: Path) -> None:
    with start_owner(place):
        (directory,) = place.iterdir()
        follower, brief = start_follower(directory), start_follower(directory)
        for each in (follower, brief):
            assert each.stdout is not None and each.stdout.readline() == "follows\n"
        brief.communicate(timeout=30)
        assert brief.returncode == 0, "the thread keeps no process"
        assert follower.poll() is None
    follower.wait(30)
    assert follower.returncode == -signal.SIGKILL
    follower.communicate()
    late = start_follower(place / f"{PREFIX}gone")
    late.wait(30)  # its standard input stays open: it would end by itself when that is closed
    late.communicate()
    assert late.returncode == -signal.SIGKILL
