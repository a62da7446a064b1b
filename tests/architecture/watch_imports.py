"""Imports modules and prints what that did besides defining names; a script, for an interpreter of its own.

Arguments: a JSON list of the modules to watch, and one of modules to import first, unwatched. Prints a line
for each effect. Reading files is none: that is what importing is.
"""

import _signal  # type: ignore[import-not-found]  # signal.getsignal takes most of the time: it makes enums
import importlib
import json
import logging
import os
import sys
import threading
import warnings
from pathlib import Path

# Prefixes of audit events.
ACTS = (
    *("os.chdir", "os.exec", "os.fork", "os.kill", "os.mkdir", "os.posix_spawn", "os.putenv", "os.remove"),
    *("os.rename", "os.rmdir", "os.system", "os.unsetenv", "shutil.", "signal.", "socket.", "sqlite3."),
    *("subprocess.", "tempfile."),
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

SIGNALS = tuple(_signal.valid_signals())

acts: list[str] = []


def audit(event: str, args: tuple[object, ...]) -> None:
    if event.startswith(ACTS):
        acts.append(f"{event} {args!r:.200}")
    elif event == "open" and isinstance(args[2], int) and args[2] & WRITES:
        acts.append(f"opens {args[0]} for writing")


def state() -> dict[str, object]:
    open_files = Path("/proc/self/fd")
    return {
        "threads": threading.active_count(),
        "signal handlers": [_signal.getsignal(number) for number in SIGNALS],
        "open files": len(list(open_files.iterdir())) if open_files.exists() else 0,
        "log handlers": list(logging.root.handlers),
        "environment": dict(os.environ),
    }


def watch(name: str) -> list[str]:
    before = state()
    acts.clear()
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - whatever happens is told, and the next module is watched
        return [f"cannot be imported: {error!r}"]
    done = list(acts)
    after = state()
    return done + [f"changes the {key}" for key in before if before[key] != after[key]]


def main() -> None:
    watched, first = map(json.loads, sys.argv[1:])
    sys.dont_write_bytecode = True
    warnings.simplefilter("error")
    for name in first:
        importlib.import_module(name)
    sys.addaudithook(audit)
    for name in watched:
        for line in watch(name):
            print(f"{name} {line}")  # noqa: T201 - what this script is for


if __name__ == "__main__":
    main()
