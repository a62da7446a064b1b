"""Every command on its worst day: a broken settings file, no server, no rights to the files, a closed pipe.

Each says in one line what is wrong, and ends with a status. The commands come from the command line itself,
and their arguments from their declarations, so a new command is tested too."""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup, TyperOption

from antiphon.cli.main import build_command
from tests.cli.conftest import Run
from tests.support.rights import obey_file_modes

CLOSED = "http://127.0.0.1:9"
"""Nothing listens at the port of `discard`."""

ARGUMENTS = {
    "chat": ["--model", "cantor"],
    "keys update": ["--note", "x"],
    "knowledge export": ["exported"],
    "limits set": ["--per", "minute"],
    "lora add": ["a=b"],
    "models convert": ["--out", "converted"],
    "prices add": ["--currency", "USD"],
    "prices import": ["--file", "prices.json", "--dry-run"],
    "requests read": ["1"],
    "top": ["--once", "--interval", "0.2"],
    "usage": ["--format", "csv"],
    "users update": ["--note", "x"],
}
"""What a command needs beside a `1` for each required argument."""

FILES = {"1": '{"format": "antiphon knowledge table 2"}', "prices.json": "[]"}
"""The files that the commands read."""

NEED_SETTINGS = ("chat", "prices import")
"""Commands that call a server, and need the settings too: a chat without a server starts one."""

REPORTS = ("doctor",)
"""Commands that list on standard output what is wrong."""

READERS = ("knowledge add", "knowledge import", "prices import")
"""Commands that call a server, and read or write files of the user."""

ANSWER = {"id": "1", "name": "1", "secret": "s", "state": "ready", "input": "1", "output": "1"}
"""Each row, and the answer to each other request, of a server that answers everything."""


def list_commands(group: TyperGroup, *path: str) -> Iterator[tuple[str, TyperCommand]]:
    """The words of each command, and its declaration."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from list_commands(command, *path, name)
        else:
            assert isinstance(command, TyperCommand)
            yield " ".join((*path, name)), command


ROOT = build_command()
assert isinstance(ROOT, TyperGroup)
COMMANDS = dict(list_commands(ROOT))
CALLERS = [name for name, command in COMMANDS.items() if any("--url" in each.opts for each in command.params)]
"""Commands that call a server."""


def build_arguments(name: str, *more: str) -> list[str]:
    """A whole command line, with a value for each required parameter."""
    required = [each for each in COMMANDS[name].params if each.required]
    given = ARGUMENTS.get(name, [])
    words = name.split()
    words += [
        str(getattr(each.type, "choices", "1")[0])
        for each in required[: -1 if name in ("knowledge export", "lora add") else None]
        if not isinstance(each, TyperOption)
    ]
    words += [text for each in required if isinstance(each, TyperOption) for text in (each.opts[0], "1")]
    return [*words, *given, *more]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory in which the commands run."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def require_lines(done: "subprocess.CompletedProcess[str]", *texts: str) -> None:
    """The command failed, and each of its lines has the text."""
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and len(lines) == len(texts), (done.args, done.stdout, done.stderr)
    for line, text in zip(lines, texts, strict=True):
        assert line.startswith("antiphon: ") and text in line, (done.args, done.stderr)


def require_explained(done: "subprocess.CompletedProcess[str]", name: str, cause: str) -> None:
    """The command goes on without the settings file, or needs it and says what is wrong with it."""
    if name in REPORTS:
        assert done.returncode == 1 and cause in done.stdout and not done.stderr, done
    elif name in NEED_SETTINGS:
        assert done.returncode == 1 and "Traceback" not in done.stderr, done
        assert all(cause in line for line in done.stderr.splitlines()), done.stderr
    elif name in CALLERS:
        require_lines(done, cause, "nothing answers at http://127.0.0.1:9")
    else:
        require_one_reason(done)


def require_one_reason(done: "subprocess.CompletedProcess[str]") -> None:
    """The command ended well, or says in its last line why not."""
    assert all(line.startswith("antiphon: ") for line in done.stderr.splitlines()), done.stderr
    assert done.returncode in (0, 1) and bool(done.stderr) == bool(done.returncode), done


@pytest.mark.parametrize("name", NEED_SETTINGS)
def test_a_command_without_a_server_says_so(antiphon: Run, place: Path, name: str) -> None:
    """The others are called beside a broken settings file, where they find no server either."""
    require_lines(antiphon(*build_arguments(name, "--url", CLOSED)), f"nothing answers at {CLOSED}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_beside_a_broken_settings_file_goes_on_or_says_why(
    antiphon: Run, place: Path, name: str
) -> None:
    (place / "antiphon.toml").write_text("[models\n")
    env = {"ANTIPHON_PORT": "9", "ANTIPHON_HOME": str(place / "home")}
    require_explained(antiphon(*build_arguments(name), env=env), name, "antiphon.toml is not valid TOML")


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in (*REPORTS, *NEED_SETTINGS)])
def test_a_command_without_rights_goes_on_or_says_why(antiphon: Run, place: Path, name: str) -> None:
    (place / "antiphon.toml").touch(0o000)
    (place / "home").mkdir(0o000)
    place.chmod(0o500)
    env = {"ANTIPHON_PORT": "9", "ANTIPHON_HOME": str(place / "home")}
    with obey_file_modes():
        done = antiphon(*build_arguments(name), env=env)
    require_explained(done, name, "antiphon.toml: Permission denied")


@pytest.mark.parametrize(
    "name", [name for name in COMMANDS if name not in ("serve", *CALLERS, *REPORTS)] + [*READERS]
)
def test_a_command_whose_files_cannot_be_used_names_one(antiphon: Run, place: Path, name: str) -> None:
    home = place / "home"
    home.mkdir(0o500)
    for file in FILES:
        (place / file).chmod(0o000)
    place.chmod(0o500)
    with obey_file_modes():
        done = antiphon(*build_arguments(name), env={"ANTIPHON_PORT": "9", "ANTIPHON_HOME": str(home)})
    require_one_reason(done)


@pytest.fixture(scope="module")
def generous() -> Iterator[str]:
    """The address of a server that answers everything."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nobody reads it."""

        def answer(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            body = json.dumps({**ANSWER, "data": [ANSWER], "total": 1}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815 - as http.server calls them

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("serve", *REPORTS)])
def test_a_command_ends_quietly_when_nobody_reads_its_output(
    antiphon: Run, place: Path, generous: str, name: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as pipe:
        url = ["--url", generous] if name in CALLERS else []
        done = antiphon(*build_arguments(name, *url), stdout=pipe, env={"ANTIPHON_HOME": str(place / "home")})
    assert done.returncode in (0, 1), done
    assert all(line.startswith("antiphon: ") for line in done.stderr.splitlines()), done.stderr
