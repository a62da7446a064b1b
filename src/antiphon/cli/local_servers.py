"""Servers on this machine: finds and restarts running ones, and starts one as a child of a command.

A running server has a file in its home and holds it open. In the file it writes how its last rolling restart
ended. `python -m antiphon.cli.local_servers ARGUMENTS` runs the `antiphon` command until its standard input
ends, so a killed parent takes the server with it.
"""

import json
import os
import re
import runpy
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from antiphon.cli.output import CallFailed, escape_unprintable, note, report_errors
from antiphon.cli.serve_options import find_home
from antiphon.settings.changes import ReloadReport

if TYPE_CHECKING:
    import psutil

PREFIX, SUFFIX = "server-", ".json"

SIZE = 16_384
"""Bytes of the file, which is always written whole in one call."""

LONGEST = 500
"""Most characters of a reason. Each takes 6 bytes at most."""

LONGEST_REPORT = 1_500
"""Most characters of a reload's report."""

RESTART_SIGNAL, RELOAD_SIGNAL = signal.SIGUSR2, signal.SIGUSR1

PATIENCE_S = 90.0
"""Seconds for each process: the server gives a new one 60 to be ready."""

RELOAD_PATIENCE_S = 900.0
"""Seconds for a reload, which may load a large model."""

PAUSE_S = 0.1

LISTENS = re.compile(r"listens on (http://\S+)")

END_DEADLINE = 15.0
"""Seconds that the server gets to end by itself."""

SHOWN_LINES = 5
"""Last lines of output that are shown of a server that could not start."""


@dataclass(frozen=True, slots=True)
class Running:
    """A running server."""

    url: str
    workers: int
    rounds: int = 0
    """Rolling restarts that ended since its start."""
    problem: str | None = None
    """Why the last one failed; None where it did not."""
    reloads: int = 0
    """Reloads that ended since its start."""
    changes: str = ""
    """What the last reload changed."""
    refusal: str | None = None
    """Why the last reload was refused; None where it was not."""


class Notice:
    """The file in which this server's process describes itself."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._notice: Running | None = None

    def serves(self, url: str, workers: int) -> None:
        """Records that the server is ready."""
        self._say(Running(url, workers))

    def record_restart(self, problem: str | None) -> None:
        """Records the end of a rolling restart. `problem`: why it failed, if it did."""
        if self._notice is not None:
            shortened = problem and problem[:LONGEST]
            self._say(replace(self._notice, rounds=self._notice.rounds + 1, problem=shortened))

    def record_reload(self, report: ReloadReport | None, refusal: str | None) -> None:
        """Records the end of a reload: its report, or why it was refused."""
        if self._notice is not None:
            changes = "" if report is None else report.describe()[:LONGEST_REPORT]
            refusal = refusal and refusal[:LONGEST]
            notice = replace(self._notice, reloads=self._notice.reloads + 1, changes=changes, refusal=refusal)
            self._say(notice)

    def _say(self, running: Running) -> None:
        """Keeps the server's data, and writes it to the file if that is possible."""
        self._notice = running
        with suppress(OSError):  # as on a full disk: the server goes on
            os.pwrite(self._descriptor, json.dumps(asdict(running)).encode().ljust(SIZE), 0)


@contextmanager
def publish_notice(home: Path) -> Iterator[Notice]:
    """Keeps this process's file while the context lasts. A server without one serves, but is not found."""
    path = home / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _sweep(home)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        yield Notice(-1)
        return
    try:
        yield Notice(descriptor)
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def list_running(home: Path) -> dict[Path, Running]:
    """Lists the running servers of a home on this machine, by their files."""
    notices = ((path, read_running(path)) for path in _list_files(home))
    return {path: running for path, running in notices if running is not None}


def read_running(path: Path) -> Running | None:
    """Reads the running server of a file. Returns None if the server is not ready yet or has ended."""
    if _find_holder(path) is None:
        return None
    try:
        content = json.loads(path.read_bytes())
        return Running(**content)
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _list_files(home: Path) -> list[Path]:
    """Returns the files of all servers of a home."""
    return sorted(home.glob(f"{PREFIX}*{SUFFIX}"))


def _sweep(home: Path) -> None:
    """Removes files of killed servers, whose process ids are free or belong to this process."""
    for path in _list_files(home):
        try:
            if parse_pid(path) != os.getpid():
                os.kill(parse_pid(path), 0)
                continue
        except ProcessLookupError:
            pass
        except (OSError, ValueError):
            continue
        path.unlink(missing_ok=True)


def parse_pid(file: Path) -> int:
    """Returns the process id in the name of a server's file."""
    return int(file.name.removeprefix(PREFIX).partition("-")[0])


def restart(pid: int | None) -> None:
    """Runs a rolling restart and waits for its end. `pid`: which of several servers."""
    home = find_home(os.environ, Path.home())
    with report_errors():
        file, server = _choose(list_running(home), home, pid)
        _send_signal(file, RESTART_SIGNAL)
        processes = "the HTTP process" if server.workers == 1 else f"{server.workers} HTTP processes"
        note(f"replacing {processes} of {server.url}")
        now = _wait(file, PATIENCE_S * server.workers, lambda now: now.rounds > server.rounds)
        if now.problem:
            raise CallFailed(f"what served goes on serving: {now.problem}")


def reload(pid: int | None) -> None:
    """Has the server load its settings again, and prints what changed. `pid`: which of several servers."""
    home = find_home(os.environ, Path.home())
    with report_errors():
        file, server = _choose(list_running(home), home, pid)
        _send_signal(file, RELOAD_SIGNAL)
        now = _wait(file, RELOAD_PATIENCE_S, lambda now: now.reloads > server.reloads)
        if now.refusal:
            raise CallFailed(f"nothing was changed: {now.refusal}")
        print(escape_unprintable(now.changes))


def _choose(servers: Mapping[Path, Running], home: Path, pid: int | None) -> tuple[Path, Running]:
    """Chooses the server to tell, and returns it with its file. Raises CallFailed."""
    if not servers:
        raise CallFailed(
            f"no server of {home} is running here as this user: ANTIPHON_HOME names another home, and a "
            "server in another container or on another machine is told there"
        )
    listed = ", ".join(f"{parse_pid(path)} ({each.url})" for path, each in servers.items())
    matching = [(path, each) for path, each in servers.items() if pid in (None, parse_pid(path))]
    if not matching:
        raise CallFailed(f"the server {pid} is not of {home}; there are {listed}")
    if len(matching) > 1:
        raise CallFailed(f"several servers of {home} are running: choose one with --pid; there are {listed}")
    return matching[0]


def _find_holder(file: Path) -> "psutil.Process | None":
    """Finds the process that made a server's file and holds it open.

    The same process id can belong to another process later, in another container or on another machine.
    """
    import psutil

    try:
        process = psutil.Process(parse_pid(file))
        opened = {Path(each.path) for each in process.open_files()}
    except (psutil.Error, ValueError):
        return None
    return process if file.resolve() in opened else None


def _send_signal(file: Path, number: signal.Signals) -> None:
    """Sends the signal to the server of a file, and to no other process. Raises CallFailed."""
    import psutil

    process = _find_holder(file)
    if process is None:
        raise CallFailed(f"the server {parse_pid(file)} ended meanwhile; its log says why")
    try:
        process.send_signal(number)
    except psutil.Error as problem:
        raise CallFailed(f"the server {process.pid} cannot be told: {problem}") from None


def _wait(file: Path, seconds: float, is_done: Callable[[Running], bool]) -> Running:
    """Waits until the server has done what it was told, and returns what it says then. Raises CallFailed."""
    pid = parse_pid(file)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        now = read_running(file)
        if now is None:
            raise CallFailed(f"the server {pid} ended meanwhile; its log says why")
        if is_done(now):
            return now
        time.sleep(PAUSE_S)
    raise CallFailed(f"the server {pid} has not said within {seconds:g} s that it is done; its log may")


@contextmanager
def start_server(arguments: Sequence[str] = ()) -> Iterator[str]:
    """Starts a server and yields its address once it is ready. Raises CallFailed with the server's own
    reason.

    The child is in a session of its own, so that Ctrl-C in the terminal is not for it, and holds the end
    of a pipe, so that it also ends when this process is killed.
    """
    command = [
        sys.executable,
        "-m",
        "antiphon.cli.local_servers",
        "serve",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, "--log-level", "warning", "--log-format", "text", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            if process.stdout is not None:
                yield _read_address(process.stdout, log)
        finally:
            _end(process)


def _read_address(panel: IO[str], log: IO[str]) -> str:
    """Reads the server's address from its panel. Discards the rest of the panel. Raises CallFailed if there
    is no address."""
    for line in panel:
        if match := LISTENS.search(line):
            threading.Thread(target=panel.read, daemon=True).start()
            return match[1]
    log.seek(0)
    lines = [line.strip() for line in log.readlines() if line.strip()]
    raise CallFailed(f"no server could be started: {'; '.join(lines[-SHOWN_LINES:])}")


def _end(process: subprocess.Popen[str]) -> None:
    """Ends the process and closes its pipes."""
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
