"""The recording of a terminal: what gets into it, and that the one in docs is whole."""

import json
import re
from itertools import count

from scripts.record_terminal import CAST, TEXT, Recorder

MOST_BYTES = 200_000


def recorded(*pieces: str) -> Recorder:
    recorder = Recorder("/secret/home", "~", count().__next__)
    for piece in pieces:
        recorder.add(piece)
    return recorder


def test_the_hidden_path_does_not_get_in_however_it_is_cut():
    path = "at /secret/home/.venv and /secret/homes"
    for cut in range(len(path)):
        cast = recorded(path[:cut], path[cut:], "\r\n").format_cast()
        assert "secret" not in cast and cast.count("~") == 2


def test_text_that_only_begins_like_it_is_kept():
    assert recorded("see /sec", "tion\r\n").format_text() == "see /section\n"


def test_the_text_shows_what_stood_last_in_a_line_and_no_styles():
    text = recorded("\x1b[1mfour\x1b[0m\r\n1 of 2\r2 of 2\r\n\r\n\r\n\r\nend").format_text()
    assert text == "four\n2 of 2\n\nend\n"


def test_states_of_a_progress_line_that_follow_at_once_are_left_out():
    recorder = Recorder("/secret/home", "~")
    states = [f"\r\x1b[2K{percent} %" for percent in range(4)]
    recorder.events = [*zip((0.0, 0.1, 0.2, 0.4), states, strict=True), (0.41, "\r\n"), (0.42, "$ ")]
    events = [json.loads(line) for line in recorder.format_cast().splitlines()[1:]]
    assert events == [[0.0, "o", states[2]], [0.4, "o", states[3]], [0.41, "o", "\r\n"], [0.42, "o", "$ "]]


def test_the_recording_in_docs_is_small_whole_and_as_described():
    header, *events = (json.loads(line) for line in CAST.read_text("utf-8").splitlines())
    assert CAST.stat().st_size < MOST_BYTES and header["version"] == 2
    times = [at for at, kind, _ in events if kind == "o"]
    assert len(times) == len(events) and times == sorted(times)
    again = recorded(*(text for _, _, text in events))
    assert again.format_text() == TEXT.read_text("utf-8")
    for command in ("git clone", "make serve", "curl", "antiphon chat", "antiphon doctor", "antiphon bench"):
        assert re.search(rf"\$ {command}", again.format_text()), command
