"""A server of one's own: a child `antiphon serve` on a free port of loopback, ended with this process.

`python -m antiphon.cli.own_server ARGUMENTS` is that child: the `antiphon` command, ended when its standard
input ends. Whoever holds the other end of that pipe takes the server with it, also when it is killed.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from antiphon.cli.errors import CallFailed

LISTENS = re.compile(r"listens on (http://\S+)")

END_DEADLINE = 15.0
"""Seconds that the server gets to end by itself."""

SHOWN_LINES = 5
"""Of what the server said last, when it could not start."""


@contextmanager
def own_server(arguments: Sequence[str] = ()) -> Iterator[str]:
    """The address of a server that is ready. Raises CallFailed with the server's own reason.

    The child is in a session of its own, so that Ctrl-C in the terminal is not for it, and holds the end of a
    pipe, so that it also ends when this process is killed.
    """
    command = [sys.executable, "-m", "antiphon.cli.own_server", "serve", "--host", "127.0.0.1", "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--log-level", "warning", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            if process.stdout is not None:
                yield _address(process.stdout, log)
        finally:
            _end(process)


def _address(panel: IO[str], log: IO[str]) -> str:
    """Where it listens, read from its panel; the rest of the panel is read away."""
    for line in panel:
        if found := LISTENS.search(line):
            threading.Thread(target=panel.read, daemon=True).start()
            return found[1]
    log.seek(0)
    said = [line.strip() for line in log.readlines() if line.strip()]
    raise CallFailed(f"no server could be started: {'; '.join(said[-SHOWN_LINES:])}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def end_with_input() -> None:
    """Waits for the end of standard input, then asks this process to stop."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_input, daemon=True).start()
    runpy.run_module("antiphon", run_name="__main__")
