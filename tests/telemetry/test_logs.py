"""Log records: values stay values, whatever they hold."""

import asyncio
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from antiphon.telemetry.logs import (
    FIELDS,
    LOGGER,
    LineHandler,
    configure,
    cut_unknown_path,
    format_json,
    format_text,
    record,
    record_loop_failure,
)

NASTY = 'a"b\r\nlevel=error injected="yes" \u2028 \x1b[31m'


def made(**values: object) -> logging.LogRecord:
    line = logging.LogRecord(LOGGER.name, logging.INFO, "", 0, "event", (), None)
    setattr(line, FIELDS, values)
    return line


def test_a_json_record_is_one_object_with_the_values():
    line = LineHandler(format_json).format(made(model=NASTY, tokens=3))
    assert "\n" not in line
    assert {"event": "event", "model": NASTY, "tokens": 3}.items() <= json.loads(line).items()


def test_a_text_record_is_one_line_whatever_a_value_holds():
    line = LineHandler(format_text).format(made(model=NASTY, tokens=3, plain="abc"))
    assert line.isprintable() and line.isascii()
    assert "tokens=3" in line and "plain=abc" in line


def test_silence_takes_no_room():
    assert "nothing" not in LineHandler(format_text).format(made(nothing=None, empty=[]))


@pytest.fixture
def restored():
    root = logging.getLogger()
    before = (root.handlers[:], root.level, LOGGER.level)
    yield
    root.handlers[:], level, own = before[0], before[1], before[2]
    root.setLevel(level)
    LOGGER.setLevel(own)


def test_levels_below_the_configured_one_are_not_written(restored, capfd):
    configure("warning", "json")
    record("quiet", value=1)
    record("loud", logging.WARNING, value=2)
    written = capfd.readouterr().err.splitlines()
    assert [json.loads(line)["event"] for line in written] == ["loud"]


def test_other_loggers_come_out_in_the_same_form(restored, capfd):
    configure("info", "text")
    logging.getLogger("some.library").warning("line one\nline two")
    (line,) = capfd.readouterr().err.splitlines()
    assert "some.library" in line and "line one" in line


@contextmanager
def full_stderr() -> Iterator[int]:
    """Makes standard error a non-blocking pipe with room for one page, and yields its other end."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    page = os.sysconf("SC_PAGESIZE")
    os.write(writing, b"-" * (fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) - page - 1) + b"\n")
    before = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield reading
    finally:
        os.dup2(before, 2)  # closes the pipe
        os.close(before)


def read_lines(descriptor: int) -> list[bytes]:
    with open(descriptor, "rb") as pipe:
        return pipe.readlines()


def test_a_slow_reader_gets_whole_lines(restored):
    configure("info", "json")
    with ThreadPoolExecutor() as threads:
        with full_stderr() as reading:
            lines = threads.submit(read_lines, reading)
            for letter in "abc":
                record("event", text=letter * 200_000)
        written = [json.loads(line)["text"] for line in lines.result()[1:]]
    assert written == [letter * 200_000 for letter in "abc"]


def test_a_reader_that_has_stopped_does_not_stop_the_server(restored):
    configure("info", "json")
    with full_stderr() as reading:
        record("event", text="a" * 200_000)
    os.close(reading)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_that_cannot_be_printed_fails_nobody(form, restored, capfd):
    configure("info", form)
    logging.getLogger("some.library").warning("it says %s", Unprintable())
    record("own", value=Unprintable())
    record("next", value=1)
    written = capfd.readouterr().err
    assert "no text" in written and "next" in written.splitlines()[-1]


@pytest.mark.parametrize("form", [LineHandler(format_text), LineHandler(format_json)])
def test_an_exception_is_logged_by_type_and_place_only(form):
    try:
        raise KeyError(NASTY)
    except KeyError as problem:
        line = logging.LogRecord("library", logging.ERROR, "", 0, "it failed", (), (KeyError, problem, None))
    shown = form.format(line)
    assert (
        "\n" not in shown and "KeyError at " in shown and "test_logs.py" in shown and "injected" not in shown
    )


async def test_what_nobody_awaits_is_logged_without_its_message(caplog):
    async def broken():
        raise ValueError(NASTY)

    loop = asyncio.get_running_loop()
    problem: object = (await asyncio.gather(broken(), return_exceptions=True))[0]
    record_loop_failure(loop, {"message": "Task exception was never retrieved", "exception": problem})
    (line,) = [getattr(each, FIELDS) for each in caplog.records if each.message == "event_loop_failure"]
    assert line["problem"].startswith("ValueError at ") and "injected" not in str(line)


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (None, None), ("a", "a"), ("a[0].b[9].c", "a[0].b[9].c"), ("a.SECRET.b", "a"), ("a.b\nc", "a"),
        *((word, "(unknown)") for word in ("", "A", "SECRET", "a[0]SECRET", "a[4111111111]")),
    ],
)  # fmt: skip
def test_a_path_is_known_up_to_the_first_other_word(path, known):
    assert cut_unknown_path(path, [frozenset("ab"), frozenset("c")]) == known
