"""Standard error as lines of JSON, whoever writes to it: tried on a process's own descriptor."""

import json
import subprocess
import sys
import textwrap

from antiphon.telemetry.logs import convert_line


def run(code: str) -> tuple[int, list[dict[str, object]]]:
    """Runs code with a JSON log, and parses every line of its standard error."""
    head = """
        import logging, os, subprocess, sys, threading, warnings
        from antiphon.telemetry.logs import convert_stderr
        from antiphon.telemetry.logs import configure, record
        configure("info", "json")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert done.stdout == b""
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


def list_texts(lines: list[dict[str, object]], event: str) -> list[object]:
    return [line["text"] for line in lines if line["event"] == event]


def test_text_of_any_origin_becomes_records():
    status, lines = run(
        r"""
        with convert_stderr():
            os.write(2, b"half ")
            os.write(2, b"a line\nand \xff more\n\n{no json\n")
            print("antiphon: a notice", file=sys.stderr)
            subprocess.run(["sh", "-c", "echo from a child >&2"])
            record("own", value="text\nof two lines")
            os.write(2, b"no end")
        record("after")
        """
    )
    assert status == 0
    told = ["half a line", "and \ufffd more", "{no json", "from a child", "no end"]
    assert list_texts(lines, "output") == told
    assert list_texts(lines, "notice") == ["a notice"]
    assert lines[-1]["event"] == "after"
    assert all({"time", "level", "event"} <= set(line) for line in lines)


def test_a_crash_a_warning_and_a_broken_interpreter_are_records():
    status, lines = run(
        """
        with convert_stderr():
            warnings.warn("a warning of Python's")
            subprocess.run([sys.executable, "-c", "def broken(:"])
            raise ValueError("a secret")
        """
    )
    assert status == 1
    assert "a warning of Python's" in str(lines[0]["event"])
    assert "SyntaxError: invalid syntax" in list_texts(lines, "output")
    assert lines[-1]["event"] == "crash" and str(lines[-1]["problem"]).startswith("ValueError at <string>")
    assert "a secret" not in json.dumps(lines)


def test_many_writers_and_long_lines_lose_nothing():
    status, lines = run(
        """
        def write(name):
            for number in range(200):
                record("written", name=name, number=number, text="x" * 3000)

        with convert_stderr():
            threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            subprocess.run(["sh", "-c", "for i in $(seq 200); do echo line $i >&2; done"])
            for thread in threads:
                thread.join()
            os.write(2, b"y" * 3_000_000 + b"\\n")
        """
    )
    assert status == 0
    written = {(line["name"], line["number"]) for line in lines if line["event"] == "written"}
    assert written == {(name, number) for name in range(4) for number in range(200)}
    texts = list_texts(lines, "output")
    assert [each for each in texts if str(each).startswith("line")] == [f"line {n}" for n in range(1, 201)]
    assert "".join(str(each) for each in texts if str(each).startswith("y")) == "y" * 3_000_000


def test_nobody_who_reads_holds_up_no_writer():
    code = """
        import os
        from antiphon.telemetry.logs import convert_stderr
        reading, writing = os.pipe()
        os.dup2(writing, 2)
        os.close(writing)
        os.close(reading)
        with convert_stderr():
            os.write(2, b"x\\n" * 50_000)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=180)
    assert done.returncode == 0


def test_a_json_object_stays_as_it_is():
    assert convert_line(b'{"a": 1}') == b'{"a": 1}'
    for line in (b"[1]", b'{"a": 1} x', b'{"a": 1}{"b": 2}', b"null"):
        assert json.loads(convert_line(line))["text"] == line.decode()


def test_a_deeply_nested_line_becomes_a_record():
    line = b'{"a":' + b"[" * 200_000
    assert json.loads(convert_line(line))["text"] == line.decode()
