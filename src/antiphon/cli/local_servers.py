"""Servers on this machine: finds and restarts running servers, and starts a server as a child of a command.

A running server keeps a file in its home directory open, and writes its state to it. `python -m
antiphon.cli.local_servers ARGUMENTS` runs the `antiphon` command until its standard input ends. A killed
parent thus ends the server.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING

from antiphon.cli.output import CallFailed, escape_unprintable, note, report_errors
from antiphon.cli.serve_options import find_home
from antiphon.domain.values import Struct, asdict, replace
from antiphon.settings.changes import ReloadReport

if TYPE_CHECKING:
    import psutil

PREFIX, SUFFIX = "server-", ".json"

FILE_BYTES = 16_384
"""The size of the state file in bytes. One call writes all of them, so readers see one whole state."""

REASON_CHARACTERS = 500
"""Most characters of a reason. Each needs at most 6 bytes."""

REPORT_CHARACTERS = 1_500
"""Most characters of a reload's report."""

RESTART_SIGNAL, RELOAD_SIGNAL = signal.SIGUSR2, signal.SIGUSR1
"""The signals of a rolling restart and of a reload. `processes.supervisor` handles them."""

RESTART_TIMEOUT_S = 90.0
"""Seconds for each process. The server waits 60 s until a new process is ready."""

RELOAD_TIMEOUT_S = 900.0
"""Seconds for a reload, which may load a large model."""

POLL_S = 0.1

ADDRESS_LINE = re.compile(r"listens on (http://\S+)")

TERMINATION_TIMEOUT = 15.0
"""Seconds until the server is killed."""

ERROR_LINES = 5
"""Displayed last lines of output of a server that failed to start."""


class RunningServer(Struct, frozen=True):
    """The state of a running server."""

    url: str
    workers: int
    rounds: int = 0
    """Completed rolling restarts since the server's start."""
    problem: str | None = None
    """The reason why the last restart failed; None if it succeeded."""
    reloads: int = 0
    """Completed reloads since the server's start."""
    changes: str = ""
    """The report of the last reload."""
    refusal: str | None = None
    """The reason why the last reload was rejected; None if it succeeded."""


class StateFile:
    """The file in which this process publishes the state of its server for commands."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._state: RunningServer | None = None

    def record_ready(self, url: str, workers: int) -> None:
        self._write(RunningServer(url, workers))

    def record_restart(self, problem: str | None) -> None:
        """Records the end of a rolling restart. `problem`: the reason of a failure."""
        if self._state is not None:
            shortened = problem and problem[:REASON_CHARACTERS]
            self._write(replace(self._state, rounds=self._state.rounds + 1, problem=shortened))

    def record_reload(self, report: ReloadReport | None, refusal: str | None) -> None:
        """Records the end of a reload: its report, or the reason of its rejection."""
        if self._state is not None:
            changes = "" if report is None else report.describe()[:REPORT_CHARACTERS]
            refusal = refusal and refusal[:REASON_CHARACTERS]
            reloads = self._state.reloads + 1
            self._write(replace(self._state, reloads=reloads, changes=changes, refusal=refusal))

    def _write(self, state: RunningServer) -> None:
        """Stores the state, and writes it to the file if possible."""
        self._state = state
        with suppress(OSError):  # such as a full disk; the server continues
            os.pwrite(self._descriptor, json.dumps(asdict(state)).encode().ljust(FILE_BYTES), 0)


@contextmanager
def publish_state(home: Path) -> Iterator[StateFile]:
    """Creates the state file of this process, and removes it when the context ends. If the file cannot be
    created, commands cannot find the server."""
    path = home / f"{PREFIX}{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_old_files(home)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        yield StateFile(-1)
        return
    try:
        yield StateFile(descriptor)
    finally:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def list_running_servers(home: Path) -> dict[Path, RunningServer]:
    """Returns the running servers of a home directory, keyed by state file."""
    states = ((path, read_state(path)) for path in _list_state_files(home))
    return {path: state for path, state in states if state is not None}


def read_state(path: Path) -> RunningServer | None:
    """Reads the state of a running server. Returns None if the server is not ready or has ended."""
    if _find_process(path) is None:
        return None
    try:
        content = json.loads(path.read_bytes())
        return RunningServer(**content)
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _list_state_files(home: Path) -> list[Path]:
    return sorted(home.glob(f"{PREFIX}*{SUFFIX}"))


def _remove_old_files(home: Path) -> None:
    """Removes the files of killed servers, whose process ids are free or belong to this process."""
    for path in _list_state_files(home):
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
    """Returns the process id in the name of a state file."""
    return int(file.name.removeprefix(PREFIX).partition("-")[0])


def restart(pid: int | None) -> None:
    """Runs a rolling restart and waits for its end. `pid`: the server's process id; None for the only one."""
    home = find_home(os.environ, Path.home())
    with report_errors():
        file, server = _select_server(list_running_servers(home), home, pid)
        _send_signal(file, RESTART_SIGNAL)
        processes = "the HTTP process" if server.workers == 1 else f"{server.workers} HTTP processes"
        note(f"replacing {processes} of {server.url}")
        state = _wait_until(
            file, RESTART_TIMEOUT_S * server.workers, lambda state: state.rounds > server.rounds
        )
        if state.problem:
            raise CallFailed(f"the old processes continue: {state.problem}")


def reload(pid: int | None) -> None:
    """Makes the server load its settings again, and prints the changes. `pid`: the server's process id; None
    for the only server."""
    home = find_home(os.environ, Path.home())
    with report_errors():
        file, server = _select_server(list_running_servers(home), home, pid)
        _send_signal(file, RELOAD_SIGNAL)
        state = _wait_until(file, RELOAD_TIMEOUT_S, lambda state: state.reloads > server.reloads)
        if state.refusal:
            raise CallFailed(f"nothing was changed: {state.refusal}")
        print(escape_unprintable(state.changes))


def _select_server(
    servers: Mapping[Path, RunningServer], home: Path, pid: int | None
) -> tuple[Path, RunningServer]:
    """Selects the server for a signal, and returns it with its file. Raises CallFailed."""
    if not servers:
        raise CallFailed(
            f"this user runs no server of {home} on this machine. ANTIPHON_HOME selects another home; for a "
            "server in another container, run the command there"
        )
    server_list = ", ".join(f"{parse_pid(path)} ({server.url})" for path, server in servers.items())
    matching = [(path, server) for path, server in servers.items() if pid in (None, parse_pid(path))]
    if not matching:
        raise CallFailed(f"the server {pid} does not belong to {home}; its servers: {server_list}")
    if len(matching) > 1:
        raise CallFailed(f"several servers of {home} are running: choose one with --pid: {server_list}")
    return matching[0]


def _find_process(file: Path) -> "psutil.Process | None":
    """Returns the server's process, which keeps its state file open; None if it has ended.

    The process id alone is not enough: another process may reuse it.
    """
    import psutil

    try:
        process = psutil.Process(parse_pid(file))
        open_paths = {Path(open_file.path) for open_file in process.open_files()}
    except (psutil.Error, ValueError):
        return None
    return process if file.resolve() in open_paths else None


def _send_signal(file: Path, signal_number: signal.Signals) -> None:
    """Sends a signal to the server of a state file, and to no other process. Raises CallFailed."""
    import psutil

    process = _find_process(file)
    if process is None:
        raise CallFailed(f"the server {parse_pid(file)} has ended; see its log")
    try:
        process.send_signal(signal_number)
    except psutil.Error as problem:
        raise CallFailed(f"cannot send a signal to the server {process.pid}: {problem}") from None


def _wait_until(file: Path, timeout: float, is_done: Callable[[RunningServer], bool]) -> RunningServer:
    """Waits until the server's state satisfies `is_done`, and returns the state. Raises CallFailed."""
    pid = parse_pid(file)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        state = read_state(file)
        if state is None:
            raise CallFailed(f"the server {pid} has ended; see its log")
        if is_done(state):
            return state
        time.sleep(POLL_S)
    raise CallFailed(f"the server {pid} did not finish within {timeout:g} s; see its log")


@contextmanager
def start_server(arguments: Sequence[str] = ()) -> Iterator[str]:
    """Starts a server and yields its address once it is ready. Ends the server afterwards.

    The child has its own session, so that Ctrl-C does not reach it. It also ends if this process is killed.
    Raises CallFailed with the server's error.
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
            process.terminate()
            try:
                process.wait(TERMINATION_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _read_address(panel: IO[str], log: IO[str]) -> str:
    """Reads the server's address from its start-up panel, and discards the rest.

    Raises CallFailed if there is no address.
    """
    for line in panel:
        if match := ADDRESS_LINE.search(line):
            threading.Thread(target=panel.read, daemon=True).start()
            return match[1]
    log.seek(0)
    lines = [line.strip() for line in log.readlines() if line.strip()]
    raise CallFailed(f"no server could be started: {'; '.join(lines[-ERROR_LINES:])}")


def terminate_at_input_end() -> None:
    """Waits for the end of standard input, and then terminates this process."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=terminate_at_input_end, daemon=True).start()
    runpy.run_module("antiphon", run_name="__main__")
