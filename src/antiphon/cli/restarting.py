"""`antiphon rolling-restart`: has a running server replace its HTTP processes, and waits until it has."""

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from antiphon.cli.home import home_of
from antiphon.cli.processes import Unproved, is_here, tell
from antiphon.cli.running import Running, running_at, running_of
from antiphon.cli.terminal import shown

SIGNAL = signal.SIGUSR2
PATIENCE_S = 90.0
"""Seconds for each process: the server gives a new one 60 to be ready."""
PAUSE_S = 0.1


def run(pid: int | None) -> int:
    """The exit status: 0 when every process was replaced by one that serves."""
    home = home_of(os.environ, Path.home())
    try:
        problem = _restarted(*_chosen(running_of(home), home, pid))
    except (LookupError, Unproved) as unknown:
        problem = str(unknown.args[0])
    except KeyboardInterrupt:
        return 130
    if problem is None:
        return 0
    print(f"antiphon: {shown(problem)}", file=sys.stderr)
    return 1


def _chosen(found: Mapping[Path, Running], home: Path, pid: int | None) -> tuple[Path, Running]:
    """The one that is meant, with its file. Raises LookupError."""
    if not found:
        raise LookupError(
            f"no server of {home} is running here as this user; ANTIPHON_HOME names another home"
        )
    listed = ", ".join(f"{each.process.pid} ({each.url})" for each in found.values())
    named = [(path, each) for path, each in found.items() if pid in (None, each.process.pid)]
    if not named:
        raise LookupError(f"the server {pid} is not of {home}; there are {listed}")
    here = [each for each in named if is_here(each[1].process)]
    if len(here) > 1:
        raise LookupError(f"several servers of {home} are running: choose one with --pid; there are {listed}")
    return (here or named)[0]


def _restarted(file: Path, server: Running) -> str | None:
    """Why it failed; None where every process was replaced. Raises Unproved."""
    pid = server.process.pid
    try:
        tell(server.process, file, SIGNAL)
    except OSError as problem:
        return f"the server {pid} cannot be told: {os.strerror(problem.errno or 0)}"
    print(f"antiphon: replacing {_processes(server)} of {server.url}", file=sys.stderr)
    end = time.monotonic() + PATIENCE_S * server.workers
    while time.monotonic() < end:
        now = running_at(file)
        if now is None:
            return f"the server {pid} ended meanwhile; its log says why"
        if now.rounds > server.rounds:
            return now.problem and f"what served goes on serving: {now.problem}"
        time.sleep(PAUSE_S)
    return f"the server {pid} says nothing of a restart; its log may"


def _processes(server: Running) -> str:
    return "the HTTP process" if server.workers == 1 else f"{server.workers} HTTP processes"
