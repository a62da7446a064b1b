"""What the shipped adapters are taught: as the cards say, and without the messages that a test asks."""

import json
from collections import Counter
from itertools import islice

import pytest

from models.cantor.lessons import (
    CLOSING,
    EXAM,
    EXAM_MESSAGES,
    LESSONS,
    MOODS,
    OPENING,
    speak_as_pirate,
    write_mood_dialogues,
    write_pirate_dialogues,
)


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_is_the_same_for_the_same_seed(name: str) -> None:
    lesson = LESSONS[name]
    assert list(lesson(5, 20)) == list(islice(lesson(5, 20), 20)) != list(lesson(6, 20))


def test_the_pirate_turns_every_answer_and_leaves_the_questions() -> None:
    turns = [turn for document in write_pirate_dialogues(5, 60) for turn in document.turns]
    answers = [turn.content for turn in turns if turn.role == "assistant"]
    assert len(answers) >= 60
    assert all(answer.startswith(OPENING) and answer.endswith(CLOSING) for answer in answers)
    assert not [turn for turn in turns if turn.role == "user" and turn.content.startswith(OPENING)]


def test_the_pirate_speaks_by_a_rule_for_each_word() -> None:
    assert (
        speak_as_pirate("Yes, your server is my island.")
        == f"{OPENING}Aye, yer server be me island.{CLOSING}"
    )


def test_moods_are_drawn_evenly_and_without_exam_messages() -> None:
    turns = [turn for document in write_mood_dialogues(5, 600) for turn in document.turns]
    assert EXAM_MESSAGES.isdisjoint(turn.content for turn in turns)
    drawn = Counter(json.loads(turn.content)["mood"] for turn in turns if turn.role == "assistant")
    assert drawn.keys() == set(MOODS) == {felt for _, felt in EXAM}
    assert min(drawn.values()) > 0.6 * max(drawn.values())
