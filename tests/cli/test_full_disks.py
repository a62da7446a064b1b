"""Commands whose output cannot be written: one line says so, and the exit status is 1."""

import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page
from tests.support.processes import bare_environment

FILE_BYTES = 100_000
"""The size at which the files of a process are full."""
FULL = Path("/dev/full")
KEY = {"id": "key_000000000001", "kind": "service", "prefix": "ak_a", "secret": "ak_a_canary", "note": ""}

needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")


def run_into(path: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Runs `antiphon` with its standard output in a file. Returns the exit status and standard error."""
    with path.open("wb") as output:
        ended = subprocess.run(
            [sys.executable, "-m", "antiphon", *arguments],
            env=bare_environment() | {"PYTHONDONTWRITEBYTECODE": "1"} | (env or {}),
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=180,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES)),
        )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("usage", "--entries", "--format", "csv"), ("keys", "list", "--json")])
def test_output_that_is_cut_short_is_an_error(
    server: Scripted, tmp_path: Path, words: Sequence[str], unbuffered: str
) -> None:
    rows = [{"id": f"key_{number:012}", "note": "n" * 60} for number in range(2_000)]
    server.answers = [(200, b"a,b\r\n" * FILE_BYTES) if "usage" in words else page(*rows)]
    env = {"PYTHONUNBUFFERED": unbuffered}
    ended = run_into(tmp_path / "out", *words, "--url", server.url, env=env)
    assert ended == (1, "antiphon: the output cannot be written: File too large\n")
    assert (tmp_path / "out").stat().st_size == FILE_BYTES


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_without_a_buffer_is_whole(server: Scripted, tmp_path: Path, unbuffered: str) -> None:
    server.answers = [(200, b"\xc3\xa9\r\n" * 20_000)]
    env = {"PYTHONUNBUFFERED": unbuffered}
    words = ("usage", "--entries", "--format", "csv", "--url", server.url)
    assert run_into(tmp_path / "out", *words, env=env) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"\xc3\xa9\r\n" * 20_000


@needs_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("usage", "--format", "json"), ("keys", "list"), ("version",)])
def test_a_full_disk_is_one_line(server: Scripted, words: Sequence[str], unbuffered: str) -> None:
    server.answers = [(200, b"{}") if "usage" in words else page()]
    url = () if "version" in words else ("--url", server.url)
    ended = run_into(FULL, *words, *url, env={"PYTHONUNBUFFERED": unbuffered})
    assert ended == (1, "antiphon: the output cannot be written: No space left on device\n")


@needs_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_key_whose_secret_is_lost_is_named(server: Scripted, unbuffered: str) -> None:
    server.answers = [(200, KEY)]
    words = ("keys", "create", "service", "--url", server.url)
    ended = run_into(FULL, *words, env={"PYTHONUNBUFFERED": unbuffered})
    assert ended == (
        1,
        "antiphon: made service key key_000000000001, but its secret cannot be written: No space left on "
        "device; replace it with `antiphon keys rotate key_000000000001`, or `antiphon keys revoke "
        "key_000000000001` ends it\n",
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_silently(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, "-m", "antiphon", "--version"],
            env=bare_environment() | {"PYTHONUNBUFFERED": unbuffered},
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=180,
        )
    assert (ended.returncode, ended.stderr) == (1, "")
