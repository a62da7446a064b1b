"""Commands as a user runs them, with no setting anywhere but what a test gives."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.processes import bare_environment

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def antiphon(tmp_path: Path) -> Run:
    """Runs `antiphon` in an empty directory, to its end, in this process. Commands that start processes or
    threads of their own are run by `antiphon_process`."""
    return partial(run_command, cwd=tmp_path)


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
            timeout=180,
        )

    return run
