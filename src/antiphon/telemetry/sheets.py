"""The numbers of several HTTP processes as one: each writes its own into a file of the runtime directory, and
whoever is asked adds all of them up.

A process that died leaves its file, so counters never fall; its gauges count no more. The next process that
starts adds what the dead left to one file of them all.
"""

import asyncio
import fcntl
import json
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.load import Histogram
from antiphon.telemetry.exposition import Family, Kind, Series, Value
from antiphon.telemetry.logs import record

INTERVAL = 0.1
"""Seconds after a change until the others see it, at most; writing takes a fraction of a millisecond."""

PREFIX = "numbers-"
ENDED = "ended"
"""Name of the file of all that died."""

MODEL = "model"
"""The label by which a series is of a model."""

Counts = dict[str, list[tuple[tuple[str, ...], Value]]]
"""Labels and value of each series, by family."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What lies in one file."""

    counts: Counts
    merged: frozenset[str] = frozenset()
    """Of the file of the dead, whose counts are in it."""


class Sheets:
    """The numbers of this process, and of those beside it."""

    def __init__(self, directory: Path, series: Callable[[], Iterable[Series]]) -> None:
        """`series`: this process's own."""
        self._directory = directory
        self._series = series
        self._name = secrets.token_hex(4)
        self._lock = _locked(self._path(self._name, "lock"))
        """Held for as long as this process lives."""
        self._due: asyncio.TimerHandle | None = None
        self._problem = ""
        """Why nothing can be written, for example on a full disk; requests are answered all the same."""
        with self._merging(), self._noted():
            self._merge_dead()
        self._write_own()

    def touch(self) -> None:
        """Something has changed."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(INTERVAL, self._write_own)

    def summed(self, is_served: Callable[[str], bool]) -> Iterator[Series]:
        """The sums over all processes; of others only models that are served."""
        own = list(self._series())
        sheets = self._others()
        for family, values in own:
            sums = dict(values)
            for lives, sheet in sheets:
                if lives or family.kind is not Kind.GAUGE:
                    _add(sums, family, sheet.counts.get(family.name, []), is_served)
            yield family, sums

    def living(self) -> int:
        """How many processes serve, this one included."""
        return 1 + sum(lives for lives, _ in self._others())

    def close(self) -> None:
        """Leaves the last numbers behind."""
        if self._due is not None:
            self._due.cancel()
        self._write_own()
        os.close(self._lock)

    # --- files ----------------------------------------------------------------------------------------------

    def _path(self, name: str, suffix: str) -> Path:
        return self._directory / f"{PREFIX}{name}.{suffix}"

    def _write_own(self) -> None:
        self._due = None
        with self._noted():
            self._write(self._name, {family.name: list(values.items()) for family, values in self._series()})

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Says once that nothing can be written, and tries again with the next change."""
        problem = ""
        try:
            yield
        except OSError as failure:
            problem = os.strerror(failure.errno or 0)
        if problem not in ("", self._problem):
            record("numbers_not_written", logging.WARNING, problem=problem)
        self._problem = problem

    def _write(self, name: str, counts: Counts, merged: Iterable[str] = ()) -> None:
        new = self._path(name, "new")
        new.write_text(json.dumps({"counts": counts, "merged": list(merged)}, default=_plain))
        new.replace(self._path(name, "json"))

    def _others(self) -> list[tuple[bool, Sheet]]:
        """Whether each lives, and its numbers. The file of the dead is read last: what moved into it
        meanwhile is counted there."""
        found = {name: (self._lives(name), self._read(name)) for name in self._names()}
        ended = self._read(ENDED)
        sheets = [each for name, each in found.items() if name not in ended.merged]
        return [*sheets, (False, ended)]

    def _names(self) -> list[str]:
        found = [path.stem.removeprefix(PREFIX) for path in self._directory.glob(f"{PREFIX}*.json")]
        return [name for name in found if name not in (self._name, ENDED)]

    def _read(self, name: str) -> Sheet:
        """What lies there; nothing where another process has moved it just now."""
        try:
            held = json.loads(self._path(name, "json").read_text())
        except FileNotFoundError:
            return Sheet({})
        counts = {
            family: [(tuple(labels), _value(value)) for labels, value in series]
            for family, series in held["counts"].items()
        }
        return Sheet(counts, frozenset(held["merged"]))

    def _lives(self, name: str) -> bool:
        """Whether its process holds its lock."""
        try:
            lock = os.open(self._path(name, "lock"), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @contextmanager
    def _merging(self) -> Iterator[None]:
        """One process at a time."""
        lock = os.open(self._directory / f"{PREFIX}lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _merge_dead(self) -> None:
        """Adds what the dead left to the file of all of them. Who is killed in between has not counted
        twice: the file names whose counts it holds."""
        ended = self._read(ENDED)
        for name in ended.merged:
            self._remove(name)
        dead = [name for name in self._names() if not self._lives(name)]
        sums = {family: dict(series) for family, series in ended.counts.items()}
        kinds = {family.name: family.kind for family, _ in self._series()}
        for name in dead:
            for family, series in self._read(name).counts.items():
                if kinds.get(family) is not Kind.GAUGE:
                    _sum(sums.setdefault(family, {}), series)
        self._write(ENDED, {family: list(series.items()) for family, series in sums.items()}, dead)
        for name in dead:
            self._remove(name)

    def _remove(self, name: str) -> None:
        for suffix in ("json", "lock", "new"):
            with suppress(FileNotFoundError):
                self._path(name, suffix).unlink()


def _locked(path: Path) -> int:
    """A new file, and its lock."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _add(
    sums: dict[tuple[str, ...], Value],
    family: Family,
    series: Iterable[tuple[tuple[str, ...], Value]],
    is_served: Callable[[str], bool],
) -> None:
    """Adds another process's values of a family."""
    place = family.labels.index(MODEL) if MODEL in family.labels else None
    _sum(sums, ((labels, value) for labels, value in series if place is None or is_served(labels[place])))


def _sum(sums: dict[tuple[str, ...], Value], series: Iterable[tuple[tuple[str, ...], Value]]) -> None:
    for labels, value in series:
        held = sums.get(labels)
        if held is None:
            sums[labels] = value
        elif isinstance(held, Histogram) and isinstance(value, Histogram):
            counts = tuple(map(int.__add__, held.counts, value.counts))
            sums[labels] = Histogram(counts, held.total + value.total)
        elif not isinstance(held, Histogram) and not isinstance(value, Histogram):
            sums[labels] = value + held


def _plain(value: object) -> object:
    """A histogram as JSON has it."""
    if isinstance(value, Histogram):
        return {"counts": value.counts, "total": value.total}
    raise TypeError(f"{type(value).__name__} is no number")


def _value(held: float | dict[str, object]) -> Value:
    if isinstance(held, dict):
        counts, total = held["counts"], held["total"]
        if isinstance(counts, list) and isinstance(total, int | float):
            return Histogram(tuple(counts), total)
        raise TypeError("a histogram has counts and a total")
    return held
