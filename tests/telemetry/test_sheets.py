"""The numbers of several processes as one."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.domain.load import Histogram
from antiphon.telemetry.exposition import Family, Kind, Series
from antiphon.telemetry.sheets import Sheets

COUNT = Family("count", Kind.COUNTER, "", ("model",))
GAUGE = Family("gauge", Kind.GAUGE, "")
TIMES = Family("times", Kind.HISTOGRAM, "")
BUCKETS = len(Histogram().counts)


class Process:
    """What counts, and its sheet."""

    def __init__(self, directory: Path) -> None:
        self.counted: dict[tuple[str, ...], float] = {}
        self.held = 0
        self.times = Histogram()
        self.sheets = Sheets(directory, self.series)

    def series(self) -> Iterator[Series]:
        yield COUNT, {**self.counted}
        yield GAUGE, {(): self.held}
        yield TIMES, {(): self.times}

    def write(self) -> None:
        self.sheets._write_own()

    def die(self) -> None:
        """As the kernel ends it: its lock is gone, and nothing is written."""
        os.close(self.sheets._lock)

    def seen(self, served: str = "m") -> tuple[float, float, float]:
        """Count of a model, gauge, and seconds of all times."""
        sums = {family.name: dict(values) for family, values in self.sheets.summed({served}.__contains__)}
        times = sums["times"][()]
        assert isinstance(times, Histogram)
        count, gauge = sums["count"].get(("m",), 0), sums["gauge"][()]
        assert not isinstance(count, Histogram) and not isinstance(gauge, Histogram)
        return count, gauge, times.total


def busy(directory: Path, count: int, held: int, seconds: float) -> Process:
    process = Process(directory)
    process.counted, process.held = {("m",): count}, held
    process.times = Histogram((1,) * BUCKETS, seconds)
    process.write()
    return process


def test_all_are_added_up_and_the_dead_count_but_hold_nothing(tmp_path: Path) -> None:
    one, other = busy(tmp_path, 3, 100, 1.5), busy(tmp_path, 4, 20, 2.0)
    assert one.seen() == other.seen() == (7, 120, 3.5)
    assert one.sheets.living() == 2
    other.die()
    assert one.seen() == (7, 100, 3.5)
    assert one.sheets.living() == 1


def test_numbers_that_cannot_be_written_are_said_once_and_shown_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = busy(tmp_path, 3, 100, 1.5)
    tmp_path.rename(tmp_path.with_name("away"))
    one.counted = {("m",): 4}
    for _ in range(3):
        one.write()
    assert one.seen() == (4, 100, 1.5)
    assert caplog.text.count("numbers_not_written") == 1
    assert "Traceback" not in caplog.text
    tmp_path.with_name("away").rename(tmp_path)
    one.sheets.close()
    assert busy(tmp_path, 1, 1, 1.0).seen() == (5, 1, 2.5)


def test_what_the_dead_left_is_gathered_in_one_file_and_counts_once(tmp_path: Path) -> None:
    one = busy(tmp_path, 3, 1, 1.0)
    for _ in range(3):
        busy(tmp_path, 5, 1, 1.0).die()
    later = busy(tmp_path, 1, 1, 1.0)
    assert one.seen() == later.seen() == (19, 2, 5.0)
    assert len(list(tmp_path.glob("numbers-*.json"))) == 3, "two that live, and one of all that died"


def test_who_is_killed_while_it_gathers_has_not_counted_twice(tmp_path: Path) -> None:
    """The file of the dead holds the counts already, and their own files lie there still."""
    one, gone = busy(tmp_path, 3, 1, 1.0), busy(tmp_path, 5, 1, 1.0)
    gone.die()
    own = tmp_path / f"numbers-{gone.sheets._name}.json"
    counts = json.loads(own.read_text())["counts"]
    ended = {"counts": counts, "merged": [gone.sheets._name]}
    (tmp_path / "numbers-ended.json").write_text(json.dumps(ended))
    assert one.seen()[0] == 8
    assert busy(tmp_path, 0, 0, 0.0).seen()[0] == 8
    assert not own.exists()


def test_models_that_are_no_longer_served_are_not_shown_of_others(tmp_path: Path) -> None:
    one = Process(tmp_path)
    busy(tmp_path, 3, 1, 1.0)
    assert one.seen("m")[0] == 3
    assert one.seen("another")[0] == 0


async def test_a_change_is_written_soon(tmp_path: Path) -> None:
    one, other = Process(tmp_path), Process(tmp_path)
    one.counted = {("m",): 2}
    one.sheets.touch()
    async with asyncio.timeout(20):
        while other.seen()[0] != 2:
            await asyncio.sleep(0.01)


def test_who_ends_in_order_leaves_all_of_its_counts(tmp_path: Path) -> None:
    one, other = Process(tmp_path), Process(tmp_path)
    other.counted = {("m",): 9}
    other.sheets.close()
    assert one.seen() == (9, 0, 0.0)
