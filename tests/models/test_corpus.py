"""The corpus of cantor: calls fit the tools that are shown, exercises are answered rightly."""

import json
import random
import re

import jsonschema
import pytest

from models.cantor.corpus import Corpus, Document, documents
from models.cantor.corpus.blocks import Asker, load_blocks
from models.cantor.corpus.composed import ACTS, THESAURUS
from models.cantor.corpus.grammar import HERE
from models.cantor.corpus.skills import EXERCISES, REQUESTS, request
from models.cantor.corpus.tools import GIVEN, Kinds

CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)
SOME = 600
SCHEMAS = 60  # that are checked themselves, which takes longer than to check a call
LONGEST_ANSWER = 400  # characters


@pytest.fixture(scope="module", params=[200, pytest.param(600, marks=pytest.mark.soak)])
def calling(request: pytest.FixtureRequest) -> list[Document]:
    return list(documents(3, request.param, mixture="tools"))


def calls(document: Document) -> list[tuple[str, dict[str, object]]]:
    found = (CALL.fullmatch(turn.content) for turn in document.turns if turn.role == "assistant")
    parsed = (json.loads(match[1]) for match in found if match)
    return [(call["name"], call["arguments"]) for call in parsed]


def test_every_call_fits_the_schema_of_a_tool_that_is_shown(calling: list[Document]) -> None:
    seen = 0
    for document in calling:
        shown = {tool["name"]: tool["parameters"] for tool in document.tools}
        for name, arguments in calls(document):
            schema = shown[name]
            assert isinstance(schema, dict)
            strict = {**schema, "required": [], "additionalProperties": False}
            if seen < SCHEMAS:
                jsonschema.Draft202012Validator.check_schema(strict)
            jsonschema.Draft202012Validator(strict).validate(arguments)
            assert list(arguments) == [key for key in schema["properties"] if key in arguments]
            seen += 1
    assert seen > len(calling)


def test_calls_use_every_type_and_leave_out_what_is_not_said(calling: list[Document]) -> None:
    types: set[type] = set()
    left_out = 0
    for document in calling:
        shown = {tool["name"]: tool["parameters"] for tool in document.tools}
        for name, arguments in calls(document):
            schema = shown[name]
            assert isinstance(schema, dict)
            types |= {type(value) for value in arguments.values()}
            left_out += len(arguments) < len(schema["properties"])
    assert types == {str, int, float, bool, list}
    assert left_out > len(calling) / 50


def test_documents_show_one_to_four_tools_or_need_none(calling: list[Document]) -> None:
    assert {len(document.tools) for document in calling} >= {1, 2, 3, 4}
    assert any(
        turn.role == "assistant"
        and not CALL.fullmatch(turn.content)
        and document.turns[at - 1].role == "user"
        for document in calling
        for at, turn in enumerate(document.turns)
    )


def test_requests_give_only_parameters_of_their_kind() -> None:
    for path in sorted(HERE.glob("tools_*.txt")):
        known: set[str] = set()
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("@"):
                known = set()
            elif line.startswith("$"):
                known.add(line[2:].split("|")[0].split(" ")[0])
            elif line.startswith("?"):
                assert {match[1] for match in GIVEN.finditer(line)} <= known, line
    assert len(Kinds().all) > 200


def test_every_exercise_fills_every_blank_of_all_its_wordings() -> None:
    rng = random.Random(1)
    assert REQUESTS.keys() == EXERCISES.keys()
    for name, (_, exercise) in EXERCISES.items():
        for _ in range(20):
            values, answer = exercise(rng)
            asked = request(name, dict.fromkeys(values, "x"), rng)
            assert not re.search(r"\{\w+\}", asked), (name, asked)
            assert answer


def test_spelling_counting_and_json_are_answered_rightly() -> None:
    rng = random.Random(2)
    for _ in range(200):
        values, answer = EXERCISES["spell"][1](rng)
        assert answer.replace("-", "") == values["word"].strip("\"'").lower()
        values, answer = EXERCISES["count"][1](rng)
        numbers = [int(number) for number in answer.rstrip(".").split(", ")]
        assert numbers == list(range(int(values["low"]), int(values["high"]) + 1))
        values, answer = EXERCISES["json_object"][1](rng)
        assert all(key in values["pairs"] for key in json.loads(answer))


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.soak)])
def test_no_question_has_two_answers(count: int) -> None:
    """Two blocks that the same words ask for would teach a coin's throw."""
    rng, asker = random.Random(3), Asker()
    answers: dict[str, set[str]] = {}
    for name in ("facts.txt", "talk.txt", "knowledge.txt"):
        for block in load_blocks(HERE / name):
            for _ in range(count):
                question, _ = asker.ask(block, rng)
                answers.setdefault(question.lower().rstrip("?."), set()).add(block.answers[0])
    assert {question: found for question, found in answers.items() if len(found) > 1} == {}


def test_answers_are_short_and_ascii() -> None:
    for document in documents(4, SOME, mixture="all"):
        spoken = [turn.content for turn in document.turns if turn.role == "assistant"]
        assert all(text.isascii() for text in (document.lead, document.text, *spoken))
        copied = "".join(turn.content for turn in document.turns if turn.role != "assistant")
        assert all(len(text) < max(LONGEST_ANSWER, len(copied)) * 2 for text in spoken)


def test_an_answer_that_is_stuck_ends_with_what_it_has_just_said() -> None:
    for document in documents(5, 200, mixture="stuck"):
        assert document.stuck
        assert document.turns[-1].role == "assistant"
        words = document.turns[-1].content.split()
        assert any(words[-size:] == words[-2 * size : -size] for size in range(1, len(words) // 2 + 1)), words
    assert not any(document.stuck for document in documents(5, 200, mixture="all"))


def test_composed_tools_have_other_words_for_their_things() -> None:
    things = {thing for act in ACTS for thing in act.things}
    assert THESAURUS.keys() <= things
    assert all(thing not in words for thing, words in THESAURUS.items())


def test_every_kind_of_document_can_be_drawn() -> None:
    corpus = Corpus()
    for kind in corpus.kinds_of_document:
        rng = random.Random(6)
        made = [corpus.draw(rng, kind) for _ in range(5)]
        assert all(document.turns or document.text for document in made)
