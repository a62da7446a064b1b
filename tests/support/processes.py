"""Looking at real processes: which descend from one, whether they are gone, what they were given."""

import time
from collections.abc import Callable

import psutil

PATIENCE = 50.0
"""Seconds to wait for what is promised within five."""


def until(happened: Callable[[], bool], what: str, patience: float = PATIENCE) -> float:
    """Waits; the seconds that it took."""
    begun = time.monotonic()
    while not happened():
        assert time.monotonic() - begun < patience, f"waited {patience:g} s in vain: {what}"
        time.sleep(0.01)
    return time.monotonic() - begun


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int, module: str = "") -> list[int]:
    """Processes below this one whose command line names the module."""
    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid for process in family if not module or module in _command(process)]


def _command(process: psutil.Process) -> list[str] | str:
    try:
        return process.cmdline() or ""
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def environment(pid: int) -> dict[str, str]:
    """What the process was given when it began."""
    return psutil.Process(pid).environ()
