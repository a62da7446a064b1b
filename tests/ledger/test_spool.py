"""The spool and its drain, without a database: nothing is lost, nothing comes twice, whatever is done to the
files."""

import errno
import fcntl
import logging
import os
import stat
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

import pytest

from antiphon.domain.events import UsageSource
from antiphon.errors import InternalError, InvalidValue, LedgerFull, StartupError
from antiphon.ledger import drain as draining
from antiphon.ledger import segments
from antiphon.ledger.base import LedgerState
from antiphon.ledger.drain import Drain
from antiphon.ledger.segments import (
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD,
    SEGMENT_SIZE,
    RecordKind,
    SegmentReader,
    encode_entry,
    frame_record,
    list_segments,
)
from antiphon.ledger.spool import COMPLETION_EXTRA_BYTES, SPARE_FILES, UNAVAILABLE_FILE, Spool
from antiphon.settings.tenancy import SMALLEST_SPOOL
from antiphon.telemetry.logs import FIELDS
from tests.support.ledger_doubles import StoreDouble, build_completion, build_intent
from tests.support.waiting import wait_until

PLENTY = 64 * SEGMENT_SIZE
AHEAD = 5000
"""Bytes that are not written yet; a real file has more."""
SOON = 20.0
"""Seconds; what is waited for takes a fraction of one."""


class Spools:
    """Makes spools in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: list[Spool] = []

    def __call__(self, most: int = PLENTY) -> Spool:
        spool = Spool(self.directory, most, 0.02)
        spool.start()
        self.made.append(spool)
        return spool


@pytest.fixture
def spools(tmp_path):
    """Ended with the test."""
    make = Spools(tmp_path / "spool")
    yield make
    for spool in make.made:
        if spool._thread.is_alive():
            spool.close()


@pytest.fixture
def drains(tmp_path):
    """Makes drains of that directory."""
    running = []

    def make(kept):
        drain = Drain(tmp_path / "spool", kept)
        drain.start()
        running.append(drain)
        return drain

    yield make
    for drain in running:
        drain.stop(SOON)


@pytest.fixture
def opened():
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


def events(caplog):
    return [each.getMessage() for each in caplog.records if hasattr(each, FIELDS)]


def emptied(directory):
    return list_segments(directory) == []


def wait_until_drains(drain):
    """Waits until a drain has taken over from another. `drain_now` waits only briefly for that."""
    wait_until(lambda: drain.status.is_draining and not drain.status.other_is_draining)


def test_what_ended_is_in_the_database_and_the_files_go(spools, drains):
    spool, kept = spools(), StoreDouble()
    drain = drains(kept)
    begun = build_intent(tags=MappingProxyType({"team": "blue"}))
    spool.begin(begun)
    assert drain.drain_now(SOON)
    assert kept.rows == {}
    ended = build_completion(begun)
    spool.complete(ended)
    assert drain.drain_now(SOON)
    assert kept.rows == {begun.id: ended}
    spool.close()
    assert drain.stop(SOON)
    assert emptied(spools.directory)
    assert kept.added == [[begun.id]]


def test_an_entry_is_in_the_database_within_a_second_of_its_end(spools, drains):
    spool, kept = spools(), StoreDouble()
    drain = drains(kept)
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    wait_until(lambda: kept.rows, 10)  # nobody asks for it
    assert drain._pause < 1, "stated: one second"


def test_what_a_dead_writer_began_is_aborted_and_estimated(spools, drains):
    spool, kept = spools(), StoreDouble()
    spool.begin(build_intent(1, source=UsageSource.ENGINE, status="ok"))
    spool.begin(build_intent(2))
    spool.complete(build_completion(build_intent(2)))
    spool.close()
    drain = drains(kept)
    assert drain.drain_now(SOON)
    assert kept.rows == {
        build_intent(1).id: build_intent(1, status="aborted", source=UsageSource.ESTIMATED),
        build_intent(2).id: build_completion(build_intent(2)),
    }
    assert emptied(spools.directory)


def test_what_a_live_writer_began_is_left_to_it(spools, drains):
    spool, kept = spools(), StoreDouble()
    spool.begin(build_intent())
    assert drains(kept).drain_now(SOON)
    assert (kept.rows, emptied(spools.directory)) == ({}, False)


def test_a_restart_reads_everything_again_and_doubles_nothing(spools, drains):
    spool, kept = spools(), StoreDouble()
    first = drains(kept)
    for number in range(5):
        spool.begin(build_intent(number))
        spool.complete(build_completion(build_intent(number)))
    assert first.drain_now(SOON)
    assert first.stop(SOON)
    assert not emptied(spools.directory)  # inserted and not deleted: as after a kill in between
    second = drains(kept)
    assert second.drain_now(SOON)
    assert len(kept.rows) == 5
    assert sum(map(len, kept.added)) == 10  # the database, which knows ids, got all of them twice
    spool.close()
    assert second.stop(SOON)
    assert emptied(spools.directory)


def test_two_drains_take_turns(spools, drains):
    spool, kept, other = spools(), StoreDouble(), StoreDouble()
    first = drains(kept)
    wait_until(lambda: first.status.is_draining)
    second = drains(other)
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    assert first.drain_now(SOON)
    assert not second.drain_now(0.3)
    assert (len(kept.rows), other.was_called.is_set(), second.status.is_draining) == (1, False, False)
    first.stop(SOON)
    wait_until_drains(second)
    assert second.drain_now(SOON)
    assert list(other.rows) == list(kept.rows)


def test_a_second_drain_logs_once_and_waits_only_briefly(spools, drains, caplog):
    spools()
    first = drains(StoreDouble())
    wait_until(lambda: first.status.is_draining)
    with caplog.at_level(logging.INFO, "antiphon"):
        second = drains(StoreDouble())
        wait_until(lambda: second.status.other_is_draining)
        began = time.monotonic()
        assert not second.drain_now(20 * SOON)
        assert not second.drain_now(20 * SOON)
        assert time.monotonic() - began < SOON
        assert second.status.other_is_draining
        assert events(caplog) == ["ledger_drained_elsewhere"]
        first.stop(SOON)
        wait_until_drains(second)
        assert second.drain_now(SOON)
        assert not second.status.other_is_draining
        assert events(caplog) == ["ledger_drained_elsewhere", "ledger_drained_here"]


def test_a_database_that_is_away_is_said_once_and_waited_for(spools, drains, caplog):
    spool, kept = spools(), StoreDouble()
    kept.is_down = True
    drain = drains(kept)
    for number in range(3):
        spool.begin(build_intent(number))
        spool.complete(build_completion(build_intent(number)))
    with caplog.at_level(logging.WARNING, "antiphon"):
        wait_until(lambda: drain.status.unavailable_reason)
        kept.was_called.clear()
        assert kept.was_called.wait(SOON)
        assert drain.status.unavailable_reason == "the database is away"
        assert drain.status.waiting
        assert spool.state == LedgerState.WAITING
        assert events(caplog) == ["ledger_store_away"]
        kept.is_down = False
        wait_until(lambda: len(kept.rows) == 3)
        wait_until(lambda: not drain.status.unavailable_reason)
        assert events(caplog) == ["ledger_store_away", "ledger_store_back"]
    wait_until(lambda: drain.status.waiting == 0)
    assert spool.state == LedgerState.WELL


def test_a_defect_of_the_database_loses_nothing(spools, drains, caplog):
    spool, kept = spools(), StoreDouble()
    kept.error = ZeroDivisionError("prompt text")
    drain = drains(kept)
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    wait_until(lambda: drain.status.unavailable_reason)
    assert "ZeroDivisionError at" in drain.status.unavailable_reason
    assert "prompt text" not in drain.status.unavailable_reason
    kept.error = None
    wait_until(lambda: kept.rows)


def test_a_drain_catches_up_and_stops_while_others_go_on_writing(spools, drains):
    spool, kept, over = spools(), StoreDouble(), threading.Event()
    kept.delay_s = 0.02
    drain = drains(kept)
    written: list[str] = []

    def write():
        for number in range(1_000_000):
            if over.wait(0.001):
                return
            if spool._spares:  # otherwise the next file is being created
                spool.begin(build_intent(number))
                spool.complete(build_completion(build_intent(number)))
                written.append(build_intent(number).id)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        wait_until(lambda: len(kept.rows) > 5)
        before = len(kept.rows)
        wait_until(lambda: len(written) > before)
        ended = list(written)
        assert drain.drain_now(SOON)
        assert kept.rows.keys() >= set(ended)
        assert drain.stop(SOON)
    finally:
        over.set()
        writing.join()


def test_a_file_that_cannot_be_opened_holds_up_no_other(spools, drains, caplog):
    spool, kept = spools(), StoreDouble()
    (spools.directory / "0.seg").symlink_to("nowhere")
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    assert drains(kept).drain_now(SOON)
    assert (len(kept.rows), events(caplog)) == (1, ["spool_unreadable"])


def test_the_away_file_of_a_killed_drain_is_removed(spools, drains):
    spool = spools()
    (spools.directory / UNAVAILABLE_FILE).touch()
    assert spool.state == LedgerState.WAITING
    assert drains(StoreDouble()).drain_now(SOON)
    assert spool.state == LedgerState.WELL


def test_stopping_without_a_database_keeps_the_spool(spools, drains):
    spool, kept = spools(), StoreDouble()
    kept.is_down = True
    drain = drains(kept)
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    spool.close()
    wait_until(lambda: drain.status.unavailable_reason)
    assert drain.stop(SOON)
    assert not emptied(spools.directory)
    kept.is_down = False
    assert drains(kept).drain_now(SOON)
    assert list(kept.rows) == [build_intent().id]


def test_a_file_stays_until_the_database_has_all_of_it(spools, drains):
    spool, kept = spools(), StoreDouble()
    kept.is_down = True
    spool.begin(build_intent(1))
    spool.begin(build_intent(2))
    spool.complete(build_completion(build_intent(2)))
    spool.close()
    files = list_segments(spools.directory)
    drain = drains(kept)
    wait_until(lambda: drain.status.unavailable_reason)
    assert list_segments(spools.directory) == files
    kept.is_down = False
    assert drain.drain_now(SOON)
    assert (len(kept.rows), emptied(spools.directory)) == (2, True)


def test_a_refused_row_goes_to_a_file_and_delays_no_other(spools, drains, caplog):
    spool, kept = spools(), StoreDouble()
    kept.refused_text = "never"
    for number in range(7):
        begun = build_intent(number, tags={"t": "never" if number == 4 else "ok"})
        spool.begin(begun)
        spool.complete(build_completion(begun))
    assert drains(kept).drain_now(SOON)
    assert len(kept.rows) == 6
    assert (spools.directory / draining.REFUSED_FILE).read_bytes().count(b"never") == 1
    assert "ledger_entry_refused" in events(caplog)


# --- room ---------------------------------------------------------------------------------------------------


def test_a_full_spool_takes_completions_only_and_recovers(spools, drains, caplog):
    spool, kept = spools(3 * SEGMENT_SIZE), StoreDouble()
    kept.is_down = True
    drains(kept)
    wait_until(lambda: len(list_segments(spools.directory)) == 2)
    begun: list[int] = []

    def fill() -> None:
        for number in range(len(begun), 100_000):
            spool.begin(build_intent(number))
            begun.append(number)
            if number == 0:
                wait_until(lambda: len(list_segments(spools.directory)) == 3)

    def fills() -> bool:
        """Begins until there is no room; whether it is for good, and not for a file that is being made."""
        with pytest.raises(LedgerFull) as full:
            fill()
        assert (full.value.status, full.value.retryable) == (503, True)
        return bool(spool.state == LedgerState.FULL)

    wait_until(fills)
    with pytest.raises(LedgerFull, match="reached its largest size"):
        spool.begin(build_intent(999_998))
    assert "spool_full" in events(caplog)
    assert spool.state == LedgerState.FULL
    for number in begun:
        spool.complete(build_completion(build_intent(number)))  # room for each was set aside
    wait_until(lambda: spool.problem)
    kept.is_down = False
    wait_until(lambda: len(kept.rows) == len(begun))
    wait_until(lambda: not spool.problem)
    spool.begin(build_intent(999_999))
    spool.complete(build_completion(build_intent(999_999)))
    wait_until(lambda: len(kept.rows) == len(begun) + 1)
    assert all(row.status == "ok" for row in kept.rows.values())


def test_a_completion_that_is_too_long_keeps_its_counts(spools, drains, caplog):
    spool, kept = spools(), StoreDouble()
    most = 2**63 - 1
    long = build_completion(
        build_intent(1),
        attempts=most,
        prompt_tokens=most,
        cached_tokens=most,
        output_tokens=most,
        reasoning_tokens=most,
        cost=most,
        queue_ms=most,
        ttft_ms=most,
        total_ms=most,
        status="x" * 64,
        adapter="a" * 64,
        price="p" * 64,
        currency="EUR",
    )
    endless = build_completion(build_intent(2), output_tokens=99, status="y" * 100, engine="e" * 5000)
    spool.begin(build_intent(1))
    spool.begin(build_intent(2))
    spool.complete(long)
    assert events(caplog) == []
    spool.complete(endless)
    assert events(caplog) == ["ledger_entry_cut"]
    assert drains(kept).drain_now(SOON)
    assert kept.rows[long.id] == long
    cut = kept.rows[endless.id]
    assert (cut.output_tokens, cut.status, cut.engine) == (99, "y" * 64, "")


def test_openais_largest_tags_fit_and_larger_ones_are_refused(spools, drains):
    spool, kept = spools(), StoreDouble()
    largest = build_intent(1, tags={f"{number:02}" + "\1" * 62: "\1" * 512 for number in range(16)})
    spool.begin(largest)
    spool.complete(build_completion(largest))
    with pytest.raises(
        InvalidValue, match=f"more than the allowed {MAX_PAYLOAD - COMPLETION_EXTRA_BYTES}:"
    ) as refused:
        spool.begin(build_intent(2, tags={"t": "x" * MAX_PAYLOAD}))
    assert refused.value.param == "metadata"
    with pytest.raises(InvalidValue) as refused:
        spool.begin(build_intent(2, end_user="x" * MAX_PAYLOAD))
    assert refused.value.param is None
    assert drains(kept).drain_now(SOON)
    assert kept.rows == {largest.id: build_completion(largest)}


def test_text_that_is_no_text_is_kept_with_question_marks(spools, drains):
    spool, kept = spools(), StoreDouble()
    begun = build_intent(end_user="a\ud800b", tags=MappingProxyType({"\udfff": "é\ud800"}))
    spool.begin(begun)
    spool.complete(build_completion(begun))
    assert drains(kept).drain_now(SOON)
    (row,) = kept.rows.values()
    assert (row.end_user, row.tags, row.source) == ("a?b", {"?": "é?"}, UsageSource.ENGINE)


def test_a_completion_without_an_open_intent_is_a_defect(spools):
    spool = spools()
    with pytest.raises(InternalError):
        spool.complete(build_completion(build_intent()))
    spool.begin(build_intent())
    spool.complete(build_completion(build_intent()))
    with pytest.raises(InternalError):
        spool.complete(build_completion(build_intent()))


def test_a_file_is_given_up_when_its_last_generation_ended(spools, drains):
    spool, kept = spools(), StoreDouble()
    drain = drains(kept)
    spool.begin(build_intent(0))  # a long one
    (first,) = {spool._current.path}
    number = 0
    while spool._current.path == first:
        number += 1
        wait_until(lambda: len(spool._spares) == SPARE_FILES)
        spool.begin(build_intent(number))
        spool.complete(build_completion(build_intent(number)))
    assert drain.drain_now(SOON)
    assert len(kept.rows) == number
    assert first.exists()
    spool.complete(build_completion(build_intent(0)))
    wait_until(lambda: not first.exists())
    assert kept.rows[build_intent(0).id].status == "ok"


# --- the disk -----------------------------------------------------------------------------------------------


def test_files_are_private_and_allocated_before_writing(spools):
    spool = spools()
    assert stat.S_IMODE(spools.directory.stat().st_mode) == 0o700
    assert len(list_segments(spools.directory)) == SPARE_FILES
    for path in list_segments(spools.directory):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size == SEGMENT_SIZE
        assert path.stat().st_blocks * 512 >= SEGMENT_SIZE
    assert spool.problem == ""


def test_a_full_disk_refuses_intents_until_it_has_room(spools, drains, monkeypatch, caplog):
    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "_allocate", full)
        spool = spools()
        with pytest.raises(LedgerFull, match="No space left on device"):
            spool.begin(build_intent())
        wait_until(lambda: not list(spools.directory.iterdir()))  # the spool's thread tries again and again
        wait_until(lambda: "spool_full" in events(caplog))
    wait_until(lambda: not spool.problem)
    spool.begin(build_intent())
    assert events(caplog) == ["spool_full", "spool_has_room"]


def test_a_failed_write_refuses_intents_and_reports_completions(spools, drains, monkeypatch):
    spool, kept = spools(), StoreDouble()
    for number in (1, 2):
        spool.begin(build_intent(number))
    real = os.pwrite

    def cut(descriptor, data, position):
        return real(descriptor, data[:40], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", cut)
        with pytest.raises(LedgerFull):
            spool.complete(build_completion(build_intent(1)))
        with pytest.raises(LedgerFull):
            spool.begin(build_intent(3))
    spool.complete(build_completion(build_intent(2)))
    assert drains(kept).drain_now(SOON)
    wait_until(lambda: len(kept.rows) == 2)
    assert [kept.rows[build_intent(number).id].status for number in (1, 2)] == ["aborted", "ok"]


def test_a_directory_that_cannot_be_used_is_refused_at_start(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="cannot be written"):
        Spool(tmp_path / "file" / "spool", PLENTY, 1).start()


def test_a_file_system_without_locks_is_refused_at_start(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_arguments: None)
    with pytest.raises(StartupError, match="without locks"):
        Drain(tmp_path, StoreDouble()).start()


def test_what_was_written_is_synced_soon_and_not_by_the_writer(spools, monkeypatch):
    synced = []
    monkeypatch.setattr(segments, "_sync", lambda _descriptor: synced.append(threading.current_thread().name))
    spool = spools()
    for number in range(100):
        spool.begin(build_intent(number))
    wait_until(lambda: synced)
    assert set(synced) == {"antiphon-spool"}
    assert len(synced) < 100


def test_a_file_that_nobody_finished_making_goes_when_it_is_old(spools, drains):
    spools()
    old, new = (spools.directory / f"{name}.new" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(bytes(10))
    os.utime(old, (0, 0))
    assert drains(StoreDouble()).drain_now(SOON)
    assert (old.exists(), new.exists()) == (False, True)


# --- damage -------------------------------------------------------------------------------------------------


def written(path: Path, *numbers: int) -> list[tuple[int, int]]:
    """A file of pairs as a writer left it that was killed; where each record begins and ends."""
    places: list[tuple[int, int]] = []
    at = 0
    with path.open("wb") as file:
        for number in numbers:
            pair = (
                (RecordKind.INTENT, build_intent(number)),
                (RecordKind.COMPLETION, build_completion(build_intent(number))),
            )
            for kind, entry in pair:
                at += file.write(frame_record(kind, number, encode_entry(entry)))
                places.append((places[-1][1] if places else 0, at))
        file.write(bytes(AHEAD))
    return places


def read(path: Path) -> dict[str, str]:
    """Statuses by id."""
    reader = SegmentReader(path)
    found = reader.read(100)
    assert reader.is_done
    reader.close()
    assert len({entry.id for entry in found}) == len(found)
    return {entry.id: entry.status for entry in found}


def test_a_file_cut_at_any_byte_gives_what_was_whole_before(tmp_path):
    path = tmp_path / "a.seg"
    places = written(path, 1, 2)
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(places[-1][1], places[1][1] - 1, -1):
            expected = {build_intent(1).id: "ok"}
            if at >= places[2][1]:
                expected[build_intent(2).id] = "ok" if at == places[3][1] else "aborted"
            os.pwrite(file.fileno(), b"\0", at)
            assert read(path) == expected, at
        os.pwrite(file.fileno(), whole, 0)
        for at in range(places[-1][1], places[1][1] - 1, -13):
            file.truncate(at)
            assert build_intent(1).id in read(path), at


@pytest.mark.parametrize("wrong", [0x00, 0xFF, None])
def test_one_damaged_byte_costs_one_record(tmp_path, caplog, opened, wrong):
    path = tmp_path / "a.seg"
    places = written(path, 1, 2, 3)
    whole = path.read_bytes()
    file = opened.enter_context(path.open("r+b", buffering=0))
    for at in range(places[0][0], places[-1][1]):
        value = whole[at] ^ 1 if wrong is None else wrong
        if value == whole[at]:
            continue
        hit = next(index for index, (begin, end) in enumerate(places) if begin <= at < end)
        caplog.clear()
        os.pwrite(file.fileno(), bytes([value]), at)
        expected = {build_intent(number).id: "ok" for number in (1, 2, 3)}
        if hit % 2 == 1:
            expected[build_intent(hit // 2 + 1).id] = "aborted"
        assert read(path) == expected, at
        assert events(caplog) == ["spool_damaged"], at
        os.pwrite(file.fileno(), whole[at : at + 1], at)


def test_a_power_failure_costs_only_the_missing_pages(tmp_path, caplog):
    path = tmp_path / "a.seg"
    places = written(path, *range(40))
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    hit = {index for index, (begin, end) in enumerate(places) if begin < 8192 and end > 4096}
    expected = {}
    for number in range(40):
        if 2 * number + 1 not in hit:
            expected[build_intent(number).id] = "ok"
        elif 2 * number not in hit:
            expected[build_intent(number).id] = "aborted"
    assert read(path) == expected
    assert events(caplog) == ["spool_damaged"]


def test_what_a_caller_sends_is_never_taken_for_a_record(tmp_path):
    path = tmp_path / "a.seg"
    forged = frame_record(RecordKind.COMPLETION, 9, encode_entry(build_completion(build_intent(9)))).decode(
        "latin-1"
    )
    entry = build_completion(build_intent(1), tags={"t": forged, "u": MAGIC.decode("latin-1")})
    record = frame_record(RecordKind.COMPLETION, 1, encode_entry(entry))
    path.write_bytes(record)
    assert read(path) == {entry.id: "ok"}
    path.write_bytes(b"\xfe" + record[1:])
    assert read(path) == {}


def test_damage_is_skipped_beside_a_writer_that_lives(tmp_path, caplog):
    path = tmp_path / "a.seg"
    places = written(path, 1, 2)
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(places[0][0] + HEADER_BYTES + 3)
        file.write(b"!")
        file.flush()
        reader = SegmentReader(path)
        assert [entry.id for entry in reader.read(100)] == [build_intent(1).id, build_intent(2).id]
        assert not reader.is_done
        reader.close()
    assert events(caplog) == ["spool_damaged"]


def test_a_record_in_the_making_is_waited_for(tmp_path, caplog):
    path = tmp_path / "a.seg"
    record = frame_record(RecordKind.COMPLETION, 1, encode_entry(build_completion(build_intent(1))))
    path.write_bytes(bytes(AHEAD))
    with path.open("r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for cut in range(len(record)):
            os.pwrite(file.fileno(), record[:cut] + bytes(len(record) - cut), 0)
            reader = SegmentReader(path)
            assert reader.read(100) == []
            os.pwrite(file.fileno(), record, 0)
            assert [entry.id for entry in reader.read(100)] == [build_intent(1).id]
            reader.close()
    assert events(caplog) == []


def test_a_half_written_record_is_read_again(tmp_path, caplog, monkeypatch):
    path = tmp_path / "a.seg"
    places = written(path, 1, 2)
    whole, real = path.read_bytes(), os.pread
    looks = []

    def pread(descriptor, size, at):
        looks.append(at)
        if len(looks) > 3:
            return real(descriptor, size, at)
        half = places[0][1] - 9  # what a copy of two pages shows while the first is being written
        return (whole[:half] + bytes(9) + whole[places[0][1] :])[at : at + size]

    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        reader = SegmentReader(path)
        monkeypatch.setattr(os, "pread", pread)
        assert [entry.id for entry in reader.read(100)] == [build_intent(1).id, build_intent(2).id]
        assert reader._intents == {}
        reader.close()
    assert (events(caplog), len(looks) > 3) == ([], True)


def test_records_across_two_reads_are_complete(tmp_path):
    path = tmp_path / "a.seg"
    entries = [
        build_completion(build_intent(number), tags={"t": "x" * (number * 997 % 60_000)})
        for number in range(30)
    ]
    path.write_bytes(
        b"".join(
            frame_record(RecordKind.COMPLETION, at, encode_entry(each)) for at, each in enumerate(entries)
        )
    )
    reader = SegmentReader(path)
    found = []
    while not reader.is_done:
        found += reader.read(4)
    reader.close()
    assert found == entries


def test_a_record_of_another_version_is_logged_and_aborted(tmp_path, caplog):
    path = tmp_path / "a.seg"
    strange = frame_record(RecordKind.COMPLETION, 1, b'{"id":1}')
    path.write_bytes(frame_record(RecordKind.INTENT, 1, encode_entry(build_intent(1))) + strange)
    assert read(path) == {build_intent(1).id: "aborted"}
    assert events(caplog) == ["spool_damaged"]


def test_the_smallest_spool_has_room_for_a_restart(spools):
    old = spools(SMALLEST_SPOOL)
    old.begin(build_intent())
    wait_until(lambda: len(list_segments(spools.directory)) == 1 + SPARE_FILES)
    new = spools(SMALLEST_SPOOL)
    new.begin(build_intent())
    wait_until(lambda: len(list_segments(spools.directory)) == 2 * (1 + SPARE_FILES))
    assert (old.problem, new.problem, new.state) == ("", "", LedgerState.WELL)
