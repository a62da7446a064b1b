"""A limiter's counters and claims as values, and the file in which they outlive the process that counts."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import antiphon
from antiphon.domain.limits import Limit
from antiphon.limits.windows import SECOND, Moment
from antiphon.processes.ipc.frames import FrameError, from_line, to_line

LONGEST_S = 60.0
"""Age at which a file is stale: the windows that slide are over, and the ledger knows the rest."""

MOST_DRIFT_S = 1.0
"""Seconds by which the clocks may have moved apart: more is another start of the machine, or a clock that was
set."""


@dataclass(frozen=True, slots=True)
class CounterState:
    """A limit with what its counter holds."""

    limit: Limit
    places: Mapping[int, int]
    """Amounts by their places, as of `limits.windows`."""


@dataclass(frozen=True, slots=True)
class PartState:
    """What a claim took of one limit."""

    limit: str
    """Its id."""
    parts: tuple[tuple[int, int], ...]
    """Places and amounts, the oldest first."""
    is_sized: bool


@dataclass(frozen=True, slots=True)
class ClaimState:
    """A claim that stands."""

    id: str
    held: tuple[PartState, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a limiter counted, at one moment."""

    at: Moment
    counters: tuple[CounterState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    release: str = antiphon.__version__


def save(path: Path, snapshot: Snapshot) -> None:
    """Writes a file that only this user may read. Raises OSError."""
    new = path.with_suffix(".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(to_line(snapshot))
    new.replace(path)


def take(path: Path, now: Moment) -> Snapshot | None:
    """Reads the file and removes it. None where there is none, or where it is stale or cannot be read: then
    counters begin with the ledger."""
    try:
        content = path.read_bytes()
        path.unlink()
        snapshot = from_line(content, Snapshot)
    except (OSError, FrameError):
        return None
    age, ticked = now.wall - snapshot.at.wall, (now.monotonic - snapshot.at.monotonic) / SECOND
    usable = 0 <= age <= LONGEST_S and abs(age - ticked) <= MOST_DRIFT_S
    return snapshot if usable and snapshot.release == antiphon.__version__ else None
