"""What the pages tell a reader to type works: it is run against a real server, or at least exists."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest
import typer
from typer._click.exceptions import MissingParameter, NoArgsIsHelpError

from antiphon.cli.main import build_command
from antiphon.settings.loading import load_settings
from antiphon.settings.models import ModelSettings
from antiphon.settings.schema import SECTIONS, Settings, list_settings
from tests.support.commands import run_command
from tests.support.docs import (
    EXTERNAL_PROGRAMS,
    PAGES,
    ROOT,
    Command,
    list_code_blocks,
    list_commands,
    list_inline_commands,
)
from tests.support.processes import bare_environment
from tests.support.server import Server

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
COMMANDS = list(dict.fromkeys(list_commands()))
RUNNING = list(
    {
        command.text.partition("  #")[0].rstrip(): command
        for command in COMMANDS
        if command.is_runnable and '"chat_template"' not in command.text
    }.values()
)
"""Without those that bring a template: tests/e2e/test_conversations.py has a server that takes them."""

EXISTING = list(
    {
        command.text: command for command in [*list_inline_commands(), *COMMANDS] if not command.is_runnable
    }.values()
)

PYTHON_PAGES = (
    "docs/chat.md",
    "docs/fireworks.md",
    "docs/from-empower.md",
    "docs/from-fireworks.md",
    "docs/from-openai.md",
    "docs/quickstart.md",
)
"""Pages whose code needs the openai client alone."""


@pytest.fixture
def shell(server: Server, tmp_path: Path) -> dict[str, str]:
    """An environment in which `antiphon` is this one, and the server is where the settings say."""
    path = tmp_path / "bin" / "antiphon"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m antiphon "$@"\n')
    path.chmod(0o755)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    port = server.url.rpartition(":")[2]
    added = {"PATH": f"{path.parent}:{os.environ['PATH']}", "ANTIPHON_PORT": port, "HOME": str(tmp_path)}
    return bare_environment() | added


@pytest.mark.parametrize("command", RUNNING, ids=lambda command: command.text)
def test_a_command_of_the_pages_runs(
    command: Command, shell: dict[str, str], tmp_path: Path, server: Server
) -> None:
    if command.program == "antiphon":
        done = run_command(*command.words[1:], cwd=tmp_path, env=shell, stdin="Hello!\n")
    else:
        done = subprocess.run(
            ["sh", "-c", command.text.replace("http://127.0.0.1:8000", server.url)],
            env=shell,
            cwd=tmp_path,
            input="Hello!\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    if command.program == "curl":
        assert answered(done.stdout), done.stdout


def answered(text: str) -> bool:
    """Whether it is a whole answer: of one piece, or a stream with its end."""
    if text.startswith("data:"):
        return text.rstrip().endswith("data: [DONE]") and '"error"' not in text
    return "error" not in json.loads(text)


@pytest.mark.parametrize("command", EXISTING, ids=lambda command: command.text)
def test_what_is_not_run_exists(command: Command) -> None:
    if command.program == "antiphon":
        parse(command.words[1:])
    elif command.program == "make":
        parse_make(command.words[1:])
    else:
        assert command.program in EXTERNAL_PROGRAMS, f"{command}: say in docs.py whether it is run"


def parse(words: list[str]) -> None:
    """Asks the command line's own parser. Raises SystemExit or a usage error where it would."""
    command = build_command()
    # A command keeps its help option from the first context, so that one must have the names that all have.
    context = typer.Context(command, **command.context_settings)
    words = [word for word in words if word != "--help"]  # every command has it
    while words and isinstance(command, typer.core.TyperGroup):
        name, found, words = command.resolve_command(context, words)
        assert found is not None, name
        command = found
    try:
        command.make_context("antiphon", [word for word in words if word != "..."], parent=context)
    except MissingParameter:
        assert not words, "a sentence may leave out the arguments, and no more"
    except NoArgsIsHelpError:
        pass


def parse_make(words: list[str]) -> None:
    """Targets and variables that the Makefile knows; what goes on to `serve` as `serve` takes it."""
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            assert re.search(rf"^{name}:", MAKEFILE, re.MULTILINE), f"there is no target {name}"
            continue
        assert re.search(rf"\$[({{]{name}[)}}]", MAKEFILE), f"nobody reads {name}"
        if name == "ARGS" and "serve" in words:
            parse(["serve", *shlex.split(value)])


def test_the_check_finds_what_does_not_exist() -> None:
    for words in (["serve", "--modle", "a"], ["cat"], ["models", "fetch"], ["chat", "--port", "1"]):
        with pytest.raises(Exception, match=r"(?i)no such"):
            parse(words)
    with pytest.raises(AssertionError):
        parse_make(["server"])
    with pytest.raises(AssertionError):
        test_what_is_not_run_exists(Command("a.md", "unknown --flag"))
    assert {"curl", "antiphon"} <= {command.program for command in RUNNING}


RUN_BLOCKS = """
import contextlib, io, json, sys
printed = []
for code in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(code, {"__name__": "__main__"})
    printed.append(output.getvalue())
print(json.dumps(printed))
"""
"""Runs each block with names of its own. One interpreter for all of them imports the client once."""


def _to_greedy(code: str) -> str:
    """Sets the temperature of a page's requests to 0. A drawn answer is sometimes a single word."""
    assert "temperature" not in code
    return code.replace("completions.create(", "completions.create(temperature=0, ")


def test_the_python_of_the_pages_gets_answers(server: Server) -> None:
    found = [(page, code) for page in PYTHON_PAGES for code in list_code_blocks(ROOT / page, "python")]
    assert {page for page, _ in found} == set(PYTHON_PAGES)
    ran = subprocess.run(
        [sys.executable, "-c", RUN_BLOCKS],
        input=json.dumps(
            [_to_greedy(code).replace("http://127.0.0.1:8000", server.url) for _, code in found]
        ),
        check=False,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert not ran.stderr and ran.returncode == 0, ran.stderr
    for (page, _), printed in zip(found, json.loads(ran.stdout), strict=True):
        assert len(printed.split()) >= 3, page


def test_the_settings_files_of_the_pages_are_taken(tmp_path: Path) -> None:
    for page in PAGES:
        for number, block in enumerate(list_code_blocks(page, "toml")):
            file = tmp_path / f"{page.stem}-{number}.toml"
            file.write_text(block)
            load_settings({}, {}, file, [])


def test_every_block_names_its_language() -> None:
    """What is not said to be a shell's is not tried, so none may be left unsaid."""
    assert [page.name for page in PAGES if list_code_blocks(page, "")] == []


def test_every_link_of_the_pages_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} names {target}"


def section(page: str, heading: str) -> str:
    """What stands under a heading, up to the next."""
    text = (ROOT / page).read_text("utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_no_page_denies_what_is_built() -> None:
    missing = " ".join(re.findall(r"\*\*(.*?)\*\*", section("docs/faq.md", "What is not built yet?")))
    missing += section("docs/engines.md", "Not built").partition("Encoders make vectors")[0]
    assert "Windows" in missing and "speculative decoding" in missing
    built = (
        "key|user|project|budget|limit|ledger|encoders|embedding|adapter|grammar|tool|worker|GPU|reranking"
    )
    assert re.findall(rf"(?i)\b(?:{built})s?\b", missing) == []


def test_the_questions_name_every_setting_that_connects_out() -> None:
    connections = (ROOT / "docs" / "faq.md").read_text("utf-8").partition("What does it send home?")[2]
    for section_of, name in (
        ("hub", "endpoint"),
        ("lora", "repositories"),
        ("keys", "store"),
        ("limits", "url"),
        ("oidc", "issuer"),
    ):
        variable = next(env for each, env, _, _ in list_settings(section_of) if each == name)
        assert variable in connections.partition("Where is my data?")[0], variable


def choices(hint: object) -> list[object]:
    """The few values that a setting takes; none, where it takes any of a kind."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [value for part in get_args(hint) for value in choices(part)]


def test_the_settings_page_has_every_value_of_enumerations() -> None:
    rows = (ROOT / "docs" / "configuration.md").read_text("utf-8").splitlines()
    sections = get_type_hints(Settings)
    shapes = [sections[name] for name in SECTIONS] + [ModelSettings]
    few = {
        name: found
        for shape in shapes
        for name, hint in get_type_hints(shape).items()
        if (found := choices(hint))
    }
    assert {"unknown_fields", "level", "kv_type", "algorithms"} <= set(few)
    for name, values in few.items():
        shown = [row for row in rows if row.startswith(f"| `{name}` |")]  # several tables can have the name
        assert any(all(f"`{value}`" in row for value in values) for row in shown), name
