"""Sandbox jobs that behave as honest functions do on hostile data, for tests of `run_job`."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import TemplateRefused


def repeat(payload: Mapping[str, object]) -> object:
    """Behaves: returns its payload."""
    return dict(payload)


def refuse(_: Mapping[str, object]) -> object:
    """Behaves: raises an Antiphon error."""
    raise TemplateRefused("not these messages", param="messages")


def environment(_: Mapping[str, object]) -> object:
    """Behaves: returns the names of the environment variables that a job has."""
    return sorted(os.environ)


def spin(_: Mapping[str, object]) -> object:
    """Never ends."""
    while True:
        pass


def spin_in_native_code(_: Mapping[str, object]) -> object:
    """Never ends, inside one call that no signal handler of the interpreter can interrupt."""
    return len(str(7 ** (7**12)))


def sleep(_: Mapping[str, object]) -> object:
    """Never ends, and takes no CPU."""
    signal.pause()
    return None


def nap(payload: Mapping[str, object]) -> object:
    """Takes some time, and no CPU."""
    time.sleep(float(str(payload["seconds"])))
    return "awake"


def grow(_: Mapping[str, object]) -> object:
    """Takes more memory than a job is allowed."""
    return len(bytearray(400 * 1024 * 1024))


def talk(_: Mapping[str, object]) -> object:
    """Returns more than the allowed output."""
    return "a" * 20_000_000


def write(payload: Mapping[str, object]) -> object:
    """Writes more to disk than a job is allowed."""
    return Path(str(payload["path"])).write_bytes(b"a")


def crash(_: Mapping[str, object]) -> object:
    """Dies of a signal, as native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return None


def fail(_: Mapping[str, object]) -> object:
    """Raises an unexpected error."""
    raise ZeroDivisionError("a defect")
