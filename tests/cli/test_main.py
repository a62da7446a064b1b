"""The command itself: what is there, and how quickly it answers when asked for help."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from antiphon import __version__
from antiphon.cli.main import build_command
from tests.cli.conftest import Run

WORK = {
    "antiphon.processes.supervisor",
    "antiphon.settings.schema",
    "numpy",
    "rich",
    "httptools",
    "http.client",
}
"""What a page of help must not pay for."""

HELP_DEADLINE = 3.0
"""CPU seconds; it takes 0.15. See benchmarks/cli.py."""


def test_help_lists_every_command_within_its_time(antiphon_process: Run):
    began = sum(os.times()[2:4])
    done = antiphon_process("--help")
    assert sum(os.times()[2:4]) - began < HELP_DEADLINE, "of the processes that have ended since"
    assert done.returncode == 0
    assert {"serve", "chat", "config", "doctor", "bench", "top", "version"} <= set(done.stdout.split())


def test_help_lists_every_command_in_one_group(antiphon: Run):
    command = build_command()
    assert isinstance(command, typer.core.TyperGroup)
    shown = antiphon("--help", env={"COLUMNS": "80"}).stdout.splitlines()
    heads = [line for line in shown if line.endswith(":") and not line.startswith((" ", "Options"))]
    assert heads == ["Run a server:", "Use a server:", "Administer:", "Models and data:"]
    listed = [line.split()[0] for line in shown[shown.index(heads[0]) :] if line.startswith("  ")]
    assert sorted(listed) == sorted(command.commands) and max(map(len, shown)) <= 80


SHOW_HELP = """
import sys
from antiphon.cli.main import main

for line in sys.stdin:
    sys.argv = ["antiphon", *line.split(), "--help"]
    try:
        main()
    except SystemExit as ended:
        print(f"shown {ended.code or 0}:", *sys.modules, flush=True)  # the next one has another stdout
"""
"""Prints the help of each line's command, and what is imported after it."""


def test_help_imports_no_work():
    pages = ["", "serve", "chat", "doctor", "bench", "top", "config", "projects list", "users create"]
    shown = subprocess.run(
        [sys.executable, "-c", SHOW_HELP],
        input="\n".join([*pages, "keys create", "audit"]),
        check=True,
        capture_output=True,
        text=True,
    )
    imported = [line.split() for line in shown.stdout.splitlines() if line.startswith("shown ")]
    assert len(imported) == shown.stdout.count("Usage:") == len(pages) + 2
    for _, status, *modules in imported:
        assert status == "0:" and "antiphon.cli.main" in modules and not WORK & set(modules)


def options_of(name: str) -> set[str]:
    command = build_command()
    assert isinstance(command, typer.core.TyperGroup)
    return {option for each in command.commands[name].params for option in each.opts}


@pytest.mark.parametrize("name", ["doctor", "config"])
def test_what_says_how_serve_would_do_takes_the_options_of_serve(name: str):
    assert "--workers" in options_of("serve")
    assert options_of("serve") <= options_of(name)


def test_a_mistyped_command_names_the_nearest(antiphon: Run):
    done = antiphon("doctr")
    assert done.returncode == 2 and "doctor" in done.stderr


def list_commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command and group."""
    yield path
    if isinstance(command, typer.core.TyperGroup):
        for name, each in command.commands.items():
            yield from list_commands(each, (*path, name))


def test_every_command_takes_the_short_help(antiphon: Run):
    for words in list_commands(build_command()):
        shown = antiphon(*words, "-h")
        assert (shown.returncode, "Usage:" in shown.stdout) == (0, True), words


def test_the_version_is_an_option_and_a_command(antiphon: Run):
    assert antiphon("--version").stdout == antiphon("version").stdout == f"{__version__}\n"


COMPLETE = """
source /dev/stdin <<< "$SCRIPT"
complete -p antiphon | grep -q -- "-F _antiphon_completion" || exit 1
COMP_WORDS=(antiphon $WORDS)
[[ $WORDS = *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_antiphon_completion antiphon
printf "%s\\n" "${COMPREPLY[@]}"
"""
"""What bash does at the tab key, for the last word."""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        pytest.param("ke", ["keys"], marks=pytest.mark.soak),
        ("keys ro", ["rotate"]),
        pytest.param("keys create se", ["service"], marks=pytest.mark.soak),
        pytest.param("limits set default --pe", ["--per"], marks=pytest.mark.soak),
        ("limits set default --per ", ["minute", "day", "week", "month"]),
    ],
)
def test_bash_completes_commands_options_and_values(antiphon: Run, words: str, completed: list[str]):
    script = antiphon("completion", "bash").stdout
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE],
        env=os.environ | {"PATH": path, "SCRIPT": script, "WORDS": words},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, done.stdout.split()) == (0, completed), done.stderr
