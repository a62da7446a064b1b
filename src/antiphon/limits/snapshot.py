"""The state of a limiter as values, and the file that stores it during a restart."""

import os
from collections.abc import Mapping
from pathlib import Path

import antiphon
from antiphon.domain.limits import Limit
from antiphon.domain.values import Struct
from antiphon.limits.windows import SECOND, ClockReading
from antiphon.processes.ipc import FrameError, from_line, to_line

MAX_AGE_S = 60.0
"""The age in seconds above which a file is not used. By then its sliding windows have passed, and the ledger
has the usage of longer windows."""

MAX_DRIFT_S = 1.0
"""Seconds. If more than this passed on one clock but not on the other since the file was written, the machine
was restarted or its clock was set. The file is then not used."""


class CounterState(Struct, frozen=True):
    """A limit and the amounts of its counter."""

    limit: Limit
    amounts_by_slot: Mapping[int, int]
    """The amounts by window slot; see `limits.windows`."""


class PartState(Struct, frozen=True):
    """The amounts that a claim has reserved in one limit."""

    limit: str
    """Id of the limit."""
    additions: tuple[tuple[int, int], ...]
    """Pairs of a window slot and the amount that counts there, the oldest first."""
    is_extended: bool


class ClaimState(Struct, frozen=True):
    """An open claim."""

    id: str
    parts: tuple[PartState, ...]


class Snapshot(Struct, frozen=True):
    """All counters and open claims of a limiter at one moment."""

    at: ClockReading
    """When the snapshot was made."""
    counters: tuple[CounterState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    release: str = antiphon.__version__
    """The version of Antiphon that made the snapshot."""


def save_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Writes a file that only this user can read. Raises OSError."""
    new_path = path.with_suffix(".new")
    with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(to_line(snapshot))
    new_path.replace(path)


def pop_snapshot(path: Path, now: ClockReading) -> Snapshot | None:
    """Reads the file and deletes it. Returns None if the file is missing, too old or damaged, or from another
    version."""
    try:
        content = path.read_bytes()
        path.unlink()
        snapshot = from_line(content, Snapshot)
    except (OSError, FrameError):
        return None
    age = now.wall - snapshot.at.wall
    monotonic_age = (now.monotonic - snapshot.at.monotonic) / SECOND
    is_usable = 0 <= age <= MAX_AGE_S and abs(age - monotonic_age) <= MAX_DRIFT_S
    return snapshot if is_usable and snapshot.release == antiphon.__version__ else None
