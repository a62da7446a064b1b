"""A program in a terminal of its own: a pseudo-terminal whose keys are typed and whose output is awaited."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.processes import bare_environment

CTRL_C, CTRL_D, UP = "\x03", "\x04", "\x1b[A"

PATIENCE = 60.0
"""Seconds; what is awaited takes tenths, and a server's start two, or thirty on a machine that is busy."""

STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """What a program wrote so far, and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: int) -> None:
        self.process = process
        self._keyboard = keyboard
        self._seen = ""
        self._awaited = 0

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def expect(self, text: str) -> None:
        """Waits for the text, after what was awaited before."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.text.find(text, self._awaited)) < 0:
            assert time.monotonic() < deadline, f"{text!r} does not come: {self.text[self._awaited :]!r}"
            self._read(0.1)
        self._awaited = found + len(text)

    def expect_prompt(self) -> None:
        """Waits until the chat reads keys: the line editor shows its prompt a moment before it does."""
        self.expect("> ")
        time.sleep(0.1)
        deadline = time.monotonic() + PATIENCE
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline, "it does not come to rest"
            time.sleep(0.01)

    def end(self) -> int:
        """Waits for the program's end; its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.text!r}"
            self._read(0.1)
        return self.process.returncode

    @property
    def text(self) -> str:
        """All of it without styles."""
        return STYLE.sub("", self._seen)

    def _read(self, within: float) -> None:
        if select.select([self._keyboard], [], [], within)[0]:
            with suppress(OSError):  # the program has closed its side
                self._seen += os.read(self._keyboard, 65536).decode("utf-8", "replace")


@contextmanager
def screen(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, size: tuple[int, int] = (24, 80)
) -> Iterator[Screen]:
    """`antiphon` with these arguments in a terminal; killed when it is still there at the end."""
    keyboard, line = pty.openpty()
    termios.tcsetwinsize(line, size)
    # The first terminal that the leader of a new session opens becomes its own: Ctrl-C is a signal there.
    command = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(line), sys.executable, "-m", "antiphon"]
    # A test run may carry its own terminal's size in these, which would win over this one's.
    height, width = size
    environ = (
        bare_environment() | {"TERM": "xterm", "LINES": str(height), "COLUMNS": str(width)} | (env or {})
    )
    process = subprocess.Popen([*command, *arguments], start_new_session=True, cwd=cwd, env=environ)
    try:
        yield Screen(process, keyboard)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(line)  # not before: a terminal that nobody holds open forgets its size
        os.close(keyboard)
