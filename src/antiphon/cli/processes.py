"""Which process a number names. The same number is another process in another container, on another machine
and later; nobody is sent a signal who is not proved to be the one that is meant."""

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
BOOT = PROC / "sys/kernel/random/boot_id"
NAMESPACE = PROC / "self/ns/pid"
STARTED = 19
"""Where a process's line in /proc says when it started, counted from behind its name."""
QUICK_S = 5.0
"""Seconds for `ps`, where there is no /proc."""


class Unproved(Exception):
    """It cannot be shown that a number names the process that is meant; the text says why."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process, as it says itself."""

    pid: int
    place: str
    """Where the number holds: the machine since its start, and the container."""
    started: str
    """When it started, as the system says it."""


def this_process() -> Process:
    """Raises OSError where the system does not say."""
    pid = os.getpid()
    return Process(pid, place(), _started("self") if _has_proc() else _asked(pid))


def is_here(process: Process) -> bool:
    """Whether its number holds here too."""
    try:
        return process.place == place()
    except OSError:
        return False


def place() -> str:
    """Where this process's numbers hold. Raises OSError."""
    if not _has_proc():
        return ""  # macOS, where there is one place
    namespace = NAMESPACE.stat()
    return f"{BOOT.read_text(encoding='ascii').strip()} {namespace.st_dev}:{namespace.st_ino}"


def tell(process: Process, file: Path, number: int) -> None:
    """Sends a signal to a process that holds a file open. Raises Unproved, or OSError where it cannot be
    told."""
    untold = f"the server {process.pid} is not told"
    if not is_here(process):
        raise Unproved(
            f"{untold}: it runs in another container or on another machine, where this command has to run too"
        )
    with _sending(process.pid) as send:
        if (doubt := _doubt(process, file)) is not None:
            raise Unproved(f"{untold}: {doubt}")
        send(number)


def _has_proc() -> bool:
    return PROC.joinpath("self").exists()


def _doubt(process: Process, file: Path) -> str | None:
    """Why its number may name another process, in the same place; None where it does not."""
    try:
        if process.started != (_started(str(process.pid)) if _has_proc() else _asked(process.pid)):
            return "another process has this number now"
        if _has_proc() and not _opens(process.pid, file):
            return f"the process of this number does not hold {file}"
    except OSError as problem:
        return f"nothing shows that the process of this number is it ({os.strerror(problem.errno or 0)})"
    return None


def _started(of: str) -> str:
    """When the process of a directory in /proc started. Raises OSError."""
    line = PROC.joinpath(of, "stat").read_text(encoding="utf-8", errors="replace")
    return line.rpartition(")")[2].split()[STARTED]


def _asked(pid: int) -> str:
    """When a process started, and what it runs, where there is no /proc. Raises OSError."""
    command = ["ps", "-o", "lstart=", "-o", "comm=", "-p", str(pid)]
    neutral = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=QUICK_S, env=neutral
        )
    except subprocess.SubprocessError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    return done.stdout.strip()


def _opens(pid: int, file: Path) -> bool:
    """Whether a process has a file open. Raises OSError."""
    meant = file.stat()
    for each in PROC.joinpath(str(pid), "fd").iterdir():
        try:
            if os.path.samestat(each.stat(), meant):
                return True
        except OSError:  # closed meanwhile
            continue
    return False


@contextmanager
def _sending(pid: int) -> Iterator[Callable[[int], None]]:
    """Sends signals to who has a number now, and to no other that gets it later. Raises
    ProcessLookupError."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):  # macOS; a kernel or sandbox without
        yield lambda number: os.kill(pid, number)
        return
    try:
        yield lambda number: signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
