"""Starts of `antiphon serve` that are refused, most of them in the process of the test."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from antiphon.cli.commands.serve import prepare_settings
from antiphon.cli.serve_options import ServeOptions
from tests.support.commands import run_command
from tests.support.processes import bare_environment


def refused(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """The one line that `antiphon serve` ends with before it starts a process. A start that is not refused
    ends too, since its port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("serve", "--port", port, "--log-level", "error", *arguments)
        line = read_refusal(run_command(*words, cwd=Path.cwd(), env=env))
    assert "--port" not in line, "it was not refused"
    return line


def refused_process(
    *arguments: str, env: Mapping[str, str] | None = None, python: tuple[str, ...] = ()
) -> str:
    """The line of a process of its own, under a Python with these flags. Its children may be what refuses."""
    command = [sys.executable, *python, "-m", "antiphon", "serve", "--port", "0", "--log-level", "error"]
    variables = bare_environment() | dict(env or {})
    ended = subprocess.run(
        [*command, *arguments], check=False, capture_output=True, text=True, timeout=180, env=variables
    )
    return read_refusal(ended)


def read_refusal(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode not in (0, None) and ended.returncode > 0, ended
    # The library writes the place of the assertion with which it ends a process.
    (line,) = [line for line in ended.stderr.strip().splitlines() if ".cpp:" not in line]
    assert line.startswith("antiphon: ") and "Traceback" not in ended.stdout
    return line


def prepare(env: Mapping[str, str]) -> None:
    """Does what a start does before it starts a process: the home has its database, pepper and first key."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ.keys() - bare_environment():
            patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        prepare_settings(ServeOptions())
