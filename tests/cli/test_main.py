"""The command itself: what is there, and how quickly it answers when asked for help."""

import subprocess
import sys
import time

import pytest
import typer

from antiphon.cli.main import app
from tests.cli.conftest import Run

WORK = {
    "antiphon.processes.supervisor",
    "antiphon.settings.schema",
    "numpy",
    "rich",
    "starlette",
    "uvicorn",
    "http.client",
}
"""What a page of help must not pay for."""

HELP_DEADLINE = 3.0
"""Seconds; it takes 0.15 on an idle core. See benchmarks/cli.py."""


def test_help_lists_every_command_within_its_time(antiphon: Run):
    began = time.monotonic()
    done = antiphon("--help")
    assert time.monotonic() - began < HELP_DEADLINE
    assert done.returncode == 0
    assert {"serve", "chat", "config", "doctor", "bench", "top", "version"} <= set(done.stdout.split())


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("serve",),
        ("chat",),
        ("doctor",),
        ("bench",),
        ("top",),
        ("config",),
        ("projects", "list"),
        ("users", "create"),
        ("keys", "create"),
        ("audit",),
    ],
)
def test_help_imports_no_work(arguments: tuple[str, ...]):
    shown = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "antiphon", *arguments, "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Usage:" in shown.stdout
    assert not WORK & {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}


def options_of(name: str) -> set[str]:
    command = typer.main.get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    return {option for each in command.commands[name].params for option in each.opts}


@pytest.mark.parametrize("name", ["doctor", "config"])
def test_what_says_how_serve_would_do_takes_the_options_of_serve(name: str):
    assert "--workers" in options_of("serve")
    assert options_of("serve") <= options_of(name)


def test_a_mistyped_command_names_the_nearest(antiphon: Run):
    done = antiphon("doctr")
    assert done.returncode == 2 and "doctor" in done.stderr
