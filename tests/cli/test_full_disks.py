"""Commands whose output cannot be written: one line says so, and the exit status is 1."""

import io
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.scripted import *  # noqa: F403 - a fixture is found by its name; `__all__` lists it
from tests.cli.scripted import Scripted, page
from tests.support.commands import run_command
from tests.support.processes import bare_environment

FILE_BYTES = 100_000
"""The size at which the files of a process are full."""
FULL = Path("/dev/full")
FULL_LINE = "antiphon: the output cannot be written: No space left on device\n"
KEY = {"id": "key_000000000001", "kind": "service", "prefix": "ak_a", "secret": "ak_a_canary", "note": ""}

needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="only Linux has /dev/full")


def run_into(path: Path, *arguments: str, unbuffered: str) -> tuple[int, str]:
    """Runs `antiphon` with its standard output in a file, as Python opens it. Returns the exit status and
    standard error."""
    raw = io.FileIO(path, "wb")
    output = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        "utf-8",
        write_through=bool(unbuffered),
    )
    with output:
        ended = run_command(*arguments, cwd=Path.cwd(), stdout=output)
    return ended.returncode, ended.stderr


def run_process(output: io.BufferedWriter, unbuffered: str) -> tuple[int, str]:
    """Runs `antiphon --version` in a process of its own, whose interpreter ends with this output."""
    ended = subprocess.run(
        [sys.executable, "-m", "antiphon", "--version"],
        env=bare_environment() | {"PYTHONUNBUFFERED": unbuffered},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=180,
    )
    return ended.returncode, ended.stderr


@contextmanager
def limiting_files() -> Iterator[None]:
    """Files of this process are full at FILE_BYTES."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("usage", "--entries", "--format", "csv"), ("keys", "list", "--json")])
def test_output_that_is_cut_short_is_an_error(
    server: Scripted, tmp_path: Path, words: Sequence[str], unbuffered: str
) -> None:
    rows = [{"id": f"key_{number:012}", "note": "n" * 60} for number in range(2_000)]
    server.answers = [(200, b"a,b\r\n" * FILE_BYTES) if "usage" in words else page(*rows)]
    with limiting_files():
        ended = run_into(tmp_path / "out", *words, "--url", server.url, unbuffered=unbuffered)
    assert ended == (1, "antiphon: the output cannot be written: File too large\n")
    assert (tmp_path / "out").stat().st_size == FILE_BYTES


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_without_a_buffer_is_whole(server: Scripted, tmp_path: Path, unbuffered: str) -> None:
    server.answers = [(200, b"\xc3\xa9\r\n" * 20_000)]
    words = ("usage", "--entries", "--format", "csv", "--url", server.url)
    assert run_into(tmp_path / "out", *words, unbuffered=unbuffered) == (0, "")
    assert (tmp_path / "out").read_bytes() == b"\xc3\xa9\r\n" * 20_000


@needs_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [("usage", "--format", "json"), ("keys", "list")])
def test_a_full_disk_is_one_line(server: Scripted, words: Sequence[str], unbuffered: str) -> None:
    server.answers = [(200, b"{}") if "usage" in words else page()]
    assert run_into(FULL, *words, "--url", server.url, unbuffered=unbuffered) == (1, FULL_LINE)


@needs_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_interpreter_on_a_full_disk_ends_with_one_line(unbuffered: str) -> None:
    with FULL.open("wb") as output:
        assert run_process(output, unbuffered) == (1, FULL_LINE)


@needs_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_key_whose_secret_is_lost_is_named(server: Scripted, unbuffered: str) -> None:
    server.answers = [(200, KEY)]
    words = ("keys", "create", "service", "--url", server.url)
    ended = run_into(FULL, *words, unbuffered=unbuffered)
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
        assert run_process(pipe, unbuffered) == (1, "")
