"""The supervisor's pipes: lines go through whole, and the end is noticed."""

import os
import threading

import pytest

from antiphon.engines.base import EngineState, LoadSpec
from antiphon.engines.host.control import (
    ChildState,
    EngineStateNotice,
    HostConfig,
    HttpConfig,
    Lifeline,
    Status,
    StatusPipe,
)
from antiphon.errors import ErrorReport, LibraryError
from antiphon.processes.ipc import FrameError, from_line, to_line
from antiphon_testing import scripted_info

LINES = [
    HostConfig("a", "b:c", LoadSpec("m.gguf", 128, 4, 2, True, "f32", "lib.so"), "/s", 5, "debug", "json"),
    HttpConfig(3, 4, "/run/x", {"name with\nnewline and 😀": "/run/x/0.sock"}),
    EngineStateNotice("a", EngineState.FAILED, "it died"),
    Status(ChildState.READY, scripted_info()),
    Status(ChildState.FAILED, error=ErrorReport("invalid_model_file", "cut short")),
]


@pytest.mark.parametrize("value", LINES, ids=repr)
def test_what_is_written_is_one_line_and_is_read_as_it_was(value: object) -> None:
    line = to_line(value)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert from_line(line, type(value)) == value


@pytest.mark.parametrize(
    "line", [b"", b"{", b'{"state":"odd"}', b'{"state":"ready","info":{"library":"of another release"}}']
)
def test_a_line_of_another_release_is_named_unreadable(line: bytes) -> None:
    with pytest.raises(FrameError, match="cannot be read"):
        from_line(line, Status)


def test_lines_come_whole_however_they_are_written() -> None:
    reading, writing = os.pipe()
    lifeline = Lifeline(reading)
    os.write(writing, b'{"a":1}\n{"b"')
    assert lifeline.read_line() == b'{"a":1}'
    os.write(writing, b":2}\nnews\n")
    assert lifeline.read_line() == b'{"b":2}'
    told: list[bytes] = []
    over = threading.Event()
    lifeline.watch(told.append, over.set)
    os.write(writing, b"more news\nhalf a li")
    assert not over.wait(0.05)
    os.close(writing)
    assert over.wait(20)
    assert told == [b"news", b"more news"]
    os.close(reading)


def test_a_child_without_a_supervisor_is_told_so() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    with pytest.raises(EOFError, match="supervisor is gone"):
        Lifeline(reading).read_line()
    os.close(reading)


def test_reports_arrive_and_a_lost_supervisor_is_no_error() -> None:
    reading, writing = os.pipe()
    pipe = StatusPipe(writing)
    pipe.report_loading()
    pipe.report_ready(scripted_info())
    pipe.report_failure(LibraryError("none found"))
    *lines, rest = os.read(reading, 100_000).split(b"\n")
    assert rest == b""
    loading, ready, failed = (from_line(line, Status) for line in lines)
    assert loading == Status(ChildState.LOADING)
    assert ready.info is not None and ready.info.chat_template is None
    assert failed.error == ErrorReport("engine_library_unusable", "none found")
    os.close(reading)
    pipe.report_ready()
    os.close(writing)
