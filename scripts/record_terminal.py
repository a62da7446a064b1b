"""Records a user's first ten minutes: real shells in pseudo-terminals, with a fresh clone in an empty home.

python scripts/record_terminal.py [--only-times | --no-times]

First it measures twice, without recording, the time from `git clone` and `make serve` to the first token:
with an empty package cache and with a warm one. Then it records docs/first-ten-minutes.cast (asciinema,
version 2) and a text file. It needs git, make, curl, a package index for pip (it passes PIP_CONFIG_FILE and
similar variables on) and the free port 8000. It replaces the home directory by ~. Players shorten long pauses
(idle_time_limit). Nothing else is changed.
"""

import argparse
import codecs
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
CAST = ROOT / "docs" / "first-ten-minutes.cast"
TEXT = CAST.with_suffix(".txt")

COLUMNS, ROWS = 110, 36
PORT = 8000
PATIENCE = 300.0
"""The most seconds to wait for output. An installation without a cache takes some tens."""
KEY_DELAY = 0.02
"""Seconds between two keys."""
LONGEST_PAUSE = 2.0
REDRAWN_LINE = re.compile(r"\r\x1b\[2K[^\n]*")
"""A state of a progress line."""
FRAME = 0.25
"""The fewest seconds for which the cast shows a state of a redrawn line."""

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x07|\x1b\][^\x07]*\x07")
KEPT_VARIABLES = re.compile(
    r"PIP_(?!FIND_LINKS).*|.*_PROXY|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE|LANG|LC_ALL"
)
"""Environment variables that pip may need to reach a package index. The recording shows none of them."""

CURL = """curl -s http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello! Who are you?"}]}'; echo"""


class Recorder:
    """The events of a cast, with the seconds since its start. The hidden path is replaced, even if it arrives
    in parts."""

    def __init__(
        self, hidden_path: str, replacement: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.events: list[tuple[float, str]] = []
        self._hidden_path, self._replacement, self._clock = hidden_path, replacement, clock
        self._began = clock()
        self._held_text = ""

    def add(self, text: str) -> None:
        """Adds the output of a terminal with the current time."""
        text = (self._held_text + text).replace(self._hidden_path, self._replacement)
        held_length = next(
            (
                size
                for size in range(min(len(self._hidden_path), len(text)), 0, -1)
                if text.endswith(self._hidden_path[:size])
            ),
            0,
        )
        self._held_text = text[len(text) - held_length :]
        if text := text[: len(text) - held_length]:
            self.events.append((round(self._clock() - self._began, 3), text))

    def format_cast(self) -> str:
        """Returns the content of the cast file."""
        header = {
            "version": 2,
            "width": COLUMNS,
            "height": ROWS,
            "idle_time_limit": LONGEST_PAUSE,
            "title": "Antiphon: the first ten minutes",
            "env": {"TERM": "xterm-256color", "SHELL": "bash"},
        }
        shown: list[tuple[float, str]] = []
        for seconds, text in self.events:
            began = seconds
            if shown and all(REDRAWN_LINE.fullmatch(state) for state in (shown[-1][1], text)):
                began = shown.pop()[0] if seconds - shown[-1][0] < FRAME else seconds
            shown.append((began, text))
        lines = [header, *([seconds, "o", text] for seconds, text in shown)]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    def format_text(self) -> str:
        """Returns the visible text without styles. Only the last state of an overwritten line is kept."""
        plain = CONTROL.sub("", "".join(text for _, text in self.events)).replace("\r\n", "\n")
        lines = [line.rpartition("\r")[2].rstrip() for line in plain.split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


class Terminal:
    """A shell in a pseudo-terminal. Its output goes to the recorder, if one is set."""

    def __init__(self, home: Path, directory: Path, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self._output, self._search_start = "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pid, self._keyboard = pty.fork()
        if self._pid == 0:
            os.chdir(directory)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile"], build_environment(home))  # noqa: S606
        os.set_blocking(self._keyboard, False)
        subprocess.run(["stty", "cols", str(COLUMNS), "rows", str(ROWS)], stdin=self._keyboard, check=True)
        self.expect("$ ")

    def type(self, line: str, end: str = "\r") -> None:
        """Types a line key by key."""
        for key in line:
            os.write(self._keyboard, key.encode())
            self.read(KEY_DELAY)
        os.write(self._keyboard, end.encode())

    def expect(self, words: str) -> None:
        """Waits for these words in the output after the previously awaited words."""
        deadline = time.monotonic() + PATIENCE
        while (position := self._output.find(words, self._search_start)) < 0:
            if time.monotonic() > deadline:
                raise SystemExit(f"{words!r} is not in the output: {self._output[self._search_start :]!r}")
            self.read(0.1)
        self._search_start = position + len(words)

    def read(self, seconds: float) -> None:
        """Reads the output for this many seconds."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0:
            if select.select([self._keyboard], [], [], remaining)[0]:
                with suppress(BlockingIOError, OSError):
                    text = self._decoder.decode(os.read(self._keyboard, 65536))
                    self._output += CONTROL.sub("", text)
                    if self.recorder:
                        self.recorder.add(text)

    def close(self) -> None:
        """Interrupts the running command, and ends the shell."""
        with suppress(OSError):
            os.write(self._keyboard, b"\x03")
            self.read(8)
            os.write(self._keyboard, b"exit\r")
            self.read(1)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGHUP)
        os.waitpid(self._pid, 0)
        os.close(self._keyboard)


def build_environment(home: Path) -> dict[str, str]:
    """Builds the environment of a new user, with only the variables that pip may need."""
    variables = {name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)}
    return variables | {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "xterm-256color",
                   "LANG": "C.UTF-8", "PS1": r"\w$ ", "BASH_SILENCE_DEPRECATION_WARNING": "1"}  # fmt: skip


@contextmanager
def create_home() -> Iterator[Path]:
    """Creates a home directory that contains only a repository to clone."""
    with tempfile.TemporaryDirectory(prefix="first-", ignore_cleanup_errors=True) as name:
        subprocess.run(["git", "clone", "--quiet", "--bare", str(ROOT), f"{name}/antiphon.git"], check=True)
        yield Path(name)


def measure_first_token(home: Path) -> float:
    """Returns the seconds from `git clone` to the first token of an answer."""
    began = time.monotonic()
    env = build_environment(home)
    subprocess.run(["git", "clone", "--quiet", "antiphon.git"], cwd=home, env=env, check=True)
    with subprocess.Popen(
        ["make", "serve"],
        cwd=home / "antiphon",
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as server:
        try:
            for line in server.stdout or ():
                if "listens on" in line:
                    break
            body = '{"model": "demo", "prompt": "Hello", "max_tokens": 1}'
            curl = ["curl", "-sf", f"http://127.0.0.1:{PORT}/v1/completions", "-d", body]
            subprocess.run([*curl, "-H", "Content-Type: application/json"], check=True, capture_output=True)
            return time.monotonic() - began
        finally:
            os.killpg(server.pid, signal.SIGINT)
            subprocess.run(["rm", "-rf", str(home / "antiphon")], check=True)


def record_session(home: Path) -> Recorder:
    """Records the session: a server in one terminal, all other commands in a second one."""
    recorder = Recorder(str(home), "~")
    server = Terminal(home, home, recorder)
    server.type("git clone antiphon.git && cd antiphon")
    server.expect("~/antiphon$ ")
    server.type("make serve")
    server.expect("Hello! Who are you?")
    server.read(2)
    server.recorder = None
    recorder.add("\r\n\x1b[2m--- a second terminal ---\x1b[0m\r\n")
    client = Terminal(home, home / "antiphon", recorder)
    for line in CURL.splitlines():
        client.type(line)
    client.expect("usage")
    client.expect("$ ")
    client.type(". .venv/bin/activate")
    client.expect("$ ")
    record_chat(client)
    for command in ("antiphon doctor", "antiphon bench --requests 16"):
        client.type(command)
        client.expect("$ ")
    client.read(0.5)
    client.recorder = None
    client.close()
    server.close()
    return recorder


def record_chat(terminal: Terminal) -> None:
    terminal.type("antiphon chat")
    for line in ("What is gravity?", "Name the three primary colors.", "/quit"):
        terminal.expect("> ")
        terminal.read(0.5)
        terminal.type(line)
        if not line.startswith("/"):
            terminal.expect("first after")
    terminal.expect("$ ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only-times", action="store_true", help="measure, and record nothing")
    parser.add_argument("--no-times", action="store_true", help="record, and measure nothing")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", PORT))
        except OSError:
            sys.exit(f"port {PORT} is taken; end what listens there")
    with create_home() as home:
        if not options.no_times:
            for state in ("an empty", "a warm"):
                print(
                    f"clone to first token, {state} package cache: {measure_first_token(home):.1f} s",
                    flush=True,
                )
        if not options.only_times:
            recorder = record_session(home)
            CAST.write_text(recorder.format_cast(), "utf-8")
            TEXT.write_text(recorder.format_text(), "utf-8")
            print(f"{CAST.relative_to(ROOT)}: {CAST.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
