"""Jobs for tests of `run_job`. Some behave well. The others fail as functions can on hostile data."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import TemplateRefused


def return_payload(payload: Mapping[str, object]) -> object:
    """Returns its payload."""
    return dict(payload)


def refuse(_: Mapping[str, object]) -> object:
    """Raises an Antiphon error."""
    raise TemplateRefused("not these messages", param="messages")


def list_environment(_: Mapping[str, object]) -> object:
    """Returns the names of the environment variables that a job has."""
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


def sleep_briefly(payload: Mapping[str, object]) -> object:
    """Takes some time, and no CPU."""
    time.sleep(float(str(payload["seconds"])))
    return "awake"


def allocate_memory(_: Mapping[str, object]) -> object:
    """Takes more memory than a job is allowed."""
    return len(bytearray(400 * 1024 * 1024))


def return_large_result(_: Mapping[str, object]) -> object:
    """Returns a result that is larger than a job's output may be."""
    return "a" * 20_000_000


def write_file(payload: Mapping[str, object]) -> object:
    """Writes more to disk than a job is allowed."""
    return Path(str(payload["path"])).write_bytes(b"a")


def crash(_: Mapping[str, object]) -> object:
    """Dies of a signal, as native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return None


def fail(_: Mapping[str, object]) -> object:
    """Raises an unexpected error."""
    raise ZeroDivisionError("a defect")
