"""`antiphon rolling-restart`: has a running server replace its HTTP processes, and waits until it has."""

import os
import signal
import sys
import time
from pathlib import Path

from antiphon.cli.home import home_of
from antiphon.cli.running import Running, path_of, running_at, running_of
from antiphon.cli.terminal import shown

SIGNAL = signal.SIGUSR2
PATIENCE_S = 90.0
"""Seconds for each process: the server gives a new one 60 to be ready."""
PAUSE_S = 0.1


def run(pid: int | None) -> int:
    """The exit status: 0 when every process was replaced by one that serves."""
    home = home_of(os.environ, Path.home())
    try:
        problem = _restarted(home, _chosen(running_of(home), home, pid))
    except LookupError as unknown:
        problem = str(unknown.args[0])
    except KeyboardInterrupt:
        return 130
    if problem is None:
        return 0
    print(f"antiphon: {shown(problem)}", file=sys.stderr)
    return 1


def _chosen(found: list[Running], home: Path, pid: int | None) -> Running:
    """The one that is meant. Raises LookupError."""
    named = [each for each in found if pid in (None, each.pid)]
    if len(named) == 1:
        return named[0]
    listed = ", ".join(f"{each.pid} ({each.url})" for each in found)
    if not found:
        raise LookupError(
            f"no server of {home} is running here as this user; ANTIPHON_HOME names another home"
        )
    if named:
        raise LookupError(f"several servers of {home} are running: choose one with --pid; there are {listed}")
    raise LookupError(f"the server {pid} is not of {home}; there are {listed}")


def _restarted(home: Path, server: Running) -> str | None:
    """Why it failed; None where every process was replaced."""
    try:
        os.kill(server.pid, SIGNAL)
    except (ProcessLookupError, PermissionError) as problem:
        return f"the server {server.pid} cannot be told: {os.strerror(problem.errno or 0)}"
    print(f"antiphon: replacing {_processes(server)} of {server.url}", file=sys.stderr)
    end = time.monotonic() + PATIENCE_S * server.workers
    while time.monotonic() < end:
        now = running_at(path_of(home, server.pid))
        if now is None:
            return f"the server {server.pid} ended meanwhile; its log says why"
        if now.rounds > server.rounds:
            return now.problem and f"what served goes on serving: {now.problem}"
        time.sleep(PAUSE_S)
    return f"the server {server.pid} says nothing of a restart; its log may"


def _processes(server: Running) -> str:
    return "the HTTP process" if server.workers == 1 else f"{server.workers} HTTP processes"
