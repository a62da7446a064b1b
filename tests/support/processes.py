"""Looks at real processes: which descend from one, whether they have ended, and their variables."""

import os
from contextlib import suppress
from pathlib import Path

import psutil


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def list_children(process: psutil.Process) -> list[psutil.Process]:
    """Returns the children of a process; none if it has ended.

    Tests ask this again and again. psutil reads the file of every process of the machine, which takes
    milliseconds; on Linux the kernel has the list.
    """
    tasks = Path(f"/proc/{process.pid}/task")
    found: list[psutil.Process] = []
    try:
        if not (tasks / str(process.pid) / "children").exists():
            return process.children()
        for task in tasks.iterdir():
            for pid in (task / "children").read_text().split():
                with suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(pid)))
    except (psutil.NoSuchProcess, OSError):  # it ends in this moment
        return []
    return found


def descendants(pid: int, module: str = "", *, recursive: bool = True) -> list[int]:
    """Processes below this one whose command line names the module; only its children without `recursive`."""
    try:
        family = psutil.Process(pid).children(recursive=recursive)
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


def bare_environment() -> dict[str, str]:
    """This process's variables without settings. Ray in this process adds its token to them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ANTIPHON_", "RAY_"))}
