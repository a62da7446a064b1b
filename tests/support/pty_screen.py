"""Runs a program in a pseudo-terminal; tests type keys and waits for output."""

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
"""Timeout in seconds. Output takes tenths; a server start takes two, or thirty on a busy machine."""

STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A program's output so far, and its keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], keyboard: int) -> None:
        self.process = process
        self._keyboard = keyboard
        self._output = ""
        self._search_start = 0

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def expect(self, text: str) -> None:
        """Waits for the text after the previously expected one."""
        deadline = time.monotonic() + PATIENCE
        while (position := self.text.find(text, self._search_start)) < 0:
            assert time.monotonic() < deadline, f"{text!r} does not come: {self.text[self._search_start :]!r}"
            self._read(0.1)
        self._search_start = position + len(text)

    def expect_prompt(self) -> None:
        """Waits until the chat reads keys, which is a moment after the prompt appears."""
        self.expect("> ")
        time.sleep(0.1)
        deadline = time.monotonic() + PATIENCE
        while psutil.Process(self.process.pid).status() != psutil.STATUS_SLEEPING:
            assert time.monotonic() < deadline, "it does not come to rest"
            time.sleep(0.01)

    def end(self) -> int:
        """Waits for the program's end and returns its exit status."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.text!r}"
            self._read(0.1)
        return self.process.returncode

    @property
    def text(self) -> str:
        """The output without styles."""
        return STYLE.sub("", self._output)

    def _read(self, timeout_s: float) -> None:
        if select.select([self._keyboard], [], [], timeout_s)[0]:
            with suppress(OSError):  # the program has closed its side
                self._output += os.read(self._keyboard, 65536).decode("utf-8", "replace")


@contextmanager
def open_screen(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, size: tuple[int, int] = (24, 80)
) -> Iterator[Screen]:
    """Runs `antiphon` with these arguments in a terminal; kills it at the end of the context."""
    keyboard, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, size)
    # A session leader's first opened terminal becomes its controlling terminal, so Ctrl-C sends a signal.
    command = [
        "sh",
        "-c",
        'exec "$@" <"$0" >"$0" 2>&1',
        os.ttyname(terminal),
        sys.executable,
        "-m",
        "antiphon",
    ]
    # The test run's own LINES and COLUMNS would override this terminal's size.
    height, width = size
    environment = (
        bare_environment() | {"TERM": "xterm", "LINES": str(height), "COLUMNS": str(width)} | (env or {})
    )
    process = subprocess.Popen([*command, *arguments], start_new_session=True, cwd=cwd, env=environment)
    try:
        yield Screen(process, keyboard)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(terminal)  # after the program's end, because a closed terminal loses its size
        os.close(keyboard)
