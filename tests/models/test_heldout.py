"""The held-out set of cantor: unchanged, well formed, its patterns telling right answers from wrong ones.

It does not score a model.
"""

import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any, Literal, TypeVar

import jsonschema
import msgspec
import pytest

ROOT = Path(__file__).parents[2]
HELDOUT = ROOT / "models" / "cantor" / "heldout"
SIZES = {"new_questions.jsonl": 30, "others.jsonl": 50, "questions.jsonl": 100, "tools.jsonl": 50}
MOST_QUESTIONS_PER_FACT = 3

# What a model says when it does not know; no question and no task is answered by it.
EVASIONS = (
    "",
    "I do not know.",
    "I'm not sure.",
    "Sorry, I can't help with that.",
    "That depends on many things.",
    "No idea.",
    "Yes and no.",
    "Antiphon is a good project.",
    "Please read the documentation.",
    "I sometimes make mistakes.",
)


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class Row(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    messages: list[Message]


class Answered(Row):
    accept: str
    example: str
    wrong: list[str]

    def accepts(self, answer: str) -> bool:
        return re.search(self.accept, answer, re.IGNORECASE | re.DOTALL) is not None


class Question(Answered):
    facts: list[str]


class Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str
    parameters: dict[str, Any]


class Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


class Call(Row):
    tools: list[Tool]
    name: str
    arguments: dict[str, str | int]


R = TypeVar("R", bound=Row)


def read(name: str, kind: type[R]) -> list[R]:
    return [msgspec.json.decode(line, type=kind) for line in (HELDOUT / name).read_bytes().splitlines()]


QUESTIONS = [*read("questions.jsonl", Question), *read("new_questions.jsonl", Question)]
CALLS = read("tools.jsonl", Call)
OTHERS = read("others.jsonl", Answered)
ANSWERED: list[Answered] = [*QUESTIONS, *OTHERS]
ROWS: list[Row] = [*ANSWERED, *CALLS]
FACTS = [line[2:] for line in (ROOT / "docs" / "facts.md").read_text().splitlines() if line.startswith("- ")]


def test_the_files_are_the_ones_that_were_pinned() -> None:
    lines = (HELDOUT / "SHA256SUMS").read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert pinned == {name: hashlib.sha256((HELDOUT / name).read_bytes()).hexdigest() for name in SIZES}


@pytest.mark.parametrize(("name", "rows"), SIZES.items())
def test_each_file_has_its_number_of_rows(name: str, rows: int) -> None:
    assert len((HELDOUT / name).read_bytes().splitlines()) == rows


def test_no_id_and_no_conversation_stands_twice() -> None:
    conversations = [tuple((m.role, m.content.casefold()) for m in row.messages) for row in ROWS]
    assert len({row.id for row in ROWS}) == len(set(conversations)) == len(ROWS)


def test_a_conversation_takes_turns_and_ends_with_the_user() -> None:
    for row in ROWS:
        roles = [message.role for message in row.messages]
        turns = roles[1:] if roles[0] == "system" else roles
        assert turns == ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))], row.id
        assert turns[-1] == "user", row.id
        assert all(m.content.isascii() and m.content == m.content.strip() != "" for m in row.messages), row.id


def test_a_pattern_rejects_wrong_and_evasive_answers() -> None:
    for row in ANSWERED:
        assert row.accepts(row.example), row.id
        assert row.wrong, row.id
        assert [answer for answer in (*row.wrong, *EVASIONS) if row.accepts(answer)] == [], row.id


def test_a_question_accepts_just_the_facts_that_answer_it() -> None:
    for row in QUESTIONS:
        assert sorted(row.facts) == sorted(fact for fact in FACTS if row.accepts(fact)), row.id


def test_every_fact_is_asked_for_and_none_too_often() -> None:
    asked = Counter(row.facts[0] for row in QUESTIONS)
    assert max(asked.values()) <= MOST_QUESTIONS_PER_FACT
    assert set(FACTS) == {fact for row in QUESTIONS for fact in row.facts}


def test_a_tool_call_fits_the_schema_of_a_tool_that_is_shown() -> None:
    for row in CALLS:
        shown = {tool.function.name: tool.function.parameters for tool in row.tools}
        assert 1 <= len(shown) == len(row.tools) <= 3, row.id
        validator = jsonschema.Draft202012Validator({**shown[row.name], "additionalProperties": False})
        validator.check_schema(validator.schema)
        validator.validate(row.arguments)


def test_each_argument_stands_in_the_prompt() -> None:
    for row in CALLS:
        prompt = row.messages[-1].content
        missing = [
            value
            for value in map(str, row.arguments.values())
            if not re.search(rf"(?<!\w){re.escape(value)}(?!\w)", prompt, re.IGNORECASE)
        ]
        assert missing == [], row.id
