"""Runs `antiphon` to its end in this process. A new interpreter would spend most of its time on imports."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from antiphon.cli.main import main
from tests.support.processes import bare_environment


def run_command(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    stdout: io.TextIOWrapper | None = None,
) -> subprocess.CompletedProcess[str]:
    """What a process of its own would print in this directory, with these variables and no other settings.
    Commands that start processes or threads of their own need one. `stdout`: where it prints, if the test
    does not read it."""
    pipes = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"), stdout or _open_pipe(), _open_pipe()
    command = ["antiphon", *arguments]
    variables = bare_environment() | dict(env or {})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        for name in os.environ.keys() - variables:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", command)
        for name, pipe in zip(("stdin", "stdout", "stderr"), pipes, strict=True):
            patch.setattr(sys, name, pipe)
        with pytest.raises(SystemExit) as ended:
            main()
    printed = [
        pipe.buffer.getvalue().decode() if isinstance(pipe.buffer, io.BytesIO) else "" for pipe in pipes[1:]
    ]
    status = ended.value.code or 0
    assert isinstance(status, int), status
    return subprocess.CompletedProcess(command, status, *printed)


def _open_pipe() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
