"""The outputs in docs/first-hour.md are what the commands print today."""

import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

from tests.support.commands import run_command
from tests.support.docs import ROOT, list_code_blocks
from tests.support.model_files import write_encoder
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

NOT_RUN = {"serve", "doctor", "store"}
"""Subcommands that need PostgreSQL or stop the server; tests/e2e/test_backup.py runs the last."""

CHANGING = re.compile(r"\b(?:key|proj|user)_\w+|\bak_\w+|\d{4}-\d\d-\d\d \d\d:\d\d")
"""What differs from one server to the next: ids and times."""


HEADINGS = re.compile(r"[A-Z_ ]{8,}")


def list_steps() -> list[tuple[str, list[str]]]:
    """The commands of the page, each with the lines that follow it."""
    steps: list[tuple[str, list[str]]] = []
    for block in list_code_blocks(ROOT / "docs/first-hour.md", "text"):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                steps.append((line.removeprefix("$ "), []))
            elif steps:
                steps[-1][1].append(line)
    return steps


def hide_changing(line: str) -> str:
    return " ".join(CHANGING.sub("...", line).split())


def is_recorded(run: Callable[[], CompletedProcess[str]]) -> bool:
    """Whether the command finds a recorded request. A list of none succeeds, too."""
    done = run()
    return done.returncode == 0 and "no recorded request" not in done.stdout + done.stderr


def test_the_outputs_of_the_first_hour_are_those_of_today(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "antiphon.toml").write_text(
        '[knowledge]\nstorage = "files"\n[[models]]\nname = "cantor"\npath = "cantor"\n'
        f'[[models]]\nname = "minilm"\npath = "{write_encoder(tmp_path / "minilm.gguf")}"\n'
    )
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
    compared, stale, new = set(), {}, {}
    with serving(env=env, cwd=tmp_path) as server:
        env["ANTIPHON_PORT"] = server.url.rpartition(":")[2]
        for command, expected in list_steps():
            words = shlex.split(command)
            match words:
                case ["cat", "rules.md"]:
                    (tmp_path / "rules.md").write_text("\n".join(expected) + "\n")
                case ["export", text, *_] if text.startswith("ANTIPHON_API_KEY="):
                    env["ANTIPHON_API_KEY"] = (tmp_path / "ada.key").read_text().strip()
                case [*_, "python", "ask.py"]:
                    ask(server, (tmp_path / "ada.key").read_text().strip())
                case ["unset", name]:
                    del env[name]
                case ["printf", text, ">>", _]:
                    with (home / "antiphon.toml").open("a") as file:
                        file.write(text.replace("\\n", "\n"))
                case ["antiphon", subcommand, *_] if subcommand not in NOT_RUN:
                    target = words[words.index(">") + 1] if ">" in words else None
                    arguments = words[1 : words.index(">")] if target else words[1:]
                    run = partial(run_command, *arguments, cwd=tmp_path, env=env)
                    if arguments[0] == "requests":  # a thread records them, after the answer
                        wait_until(partial(is_recorded, run), what="the request is recorded")
                    done = run()
                    assert done.returncode == 0, (command, done.stderr)
                    if target:
                        (tmp_path / target).write_text(done.stdout)
                    lines = (("" if target else done.stdout) + done.stderr).splitlines()
                    if stale_lines := list_stale(expected, lines):
                        stale[command] = (stale_lines, lines)
                    if new_lines := list_stale(list_messages(lines), expected):
                        new[command] = new_lines
                    compared.add(subcommand)
    assert stale == {}, "the page's lines, and what is printed"
    assert new == {}, "what the page does not show"
    assert {"projects", "keys", "prices", "limits", "knowledge", "usage", "audit", "reload"} <= compared


def ask(server: Server, key: str) -> None:
    """A request of Ada's, as her program sends it without the proxy."""
    question = {
        "messages": [{"role": "user", "content": "How many days of leave do I have?"}],
        "model": "cantor",
    }
    with server.client(headers={"authorization": f"Bearer {key}"}) as client:
        client.post("/v1/chat/completions", json=question).raise_for_status()


def list_messages(lines: list[str]) -> list[str]:
    """What an output says to a person; the page leaves out which project a name selected."""
    return [line for line in lines if line.startswith("antiphon: ") and " selected the " not in line]


def list_stale(expected: list[str], lines: list[str]) -> list[str]:
    """Returns the lines of the page that an output does not have. Of a table only the headings count, and of
    a line only what is before its `...`."""
    shown_lines = [line for line in expected if line.strip("./ ")]
    heading = next((number for number, line in enumerate(shown_lines) if HEADINGS.fullmatch(line)), None)
    if heading is not None:
        shown_lines = shown_lines[: heading + 1]
    outputs = [hide_changing(line) for line in lines]
    begins = {line: hide_changing(line.partition("...")[0]) for line in shown_lines}
    return [line for line, begin in begins.items() if not any(output.startswith(begin) for output in outputs)]
