"""Commands as a user runs them, with no setting anywhere but what a test gives."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.cli.main import main
from tests.support.processes import bare_environment

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def antiphon(tmp_path: Path) -> Run:
    """Runs `antiphon` in an empty directory, to its end, in this process.

    A new interpreter would spend most of its time on imports. Commands that start processes or threads of
    their own are run by `antiphon_process`.
    """

    def run(
        *arguments: str, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        pipes = io.TextIOWrapper(io.BytesIO(stdin.encode()), "utf-8"), _open_pipe(), _open_pipe()
        command = ["antiphon", *arguments]
        variables = bare_environment() | (env or {})
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            for name in os.environ.keys() - variables:
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", command)
            for name, pipe in zip(("stdin", "stdout", "stderr"), pipes, strict=True):
                patch.setattr(sys, name, pipe)
            with pytest.raises(SystemExit) as ended:
                main()
        printed = [pipe.buffer.getvalue().decode() for pipe in pipes[1:]]  # type: ignore[attr-defined]
        status = ended.value.code or 0
        assert isinstance(status, int), status
        return subprocess.CompletedProcess(command, status, *printed)

    return run


def _open_pipe() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)


@pytest.fixture
def antiphon_process(tmp_path: Path) -> Run:
    """Runs `antiphon` in an empty directory, to its end, in a process of its own."""

    def run(
        *arguments: str, env: dict[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "antiphon", *arguments],
            env=bare_environment() | (env or {}),
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )

    return run
