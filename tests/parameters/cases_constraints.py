"""What an answer must look like."""

import json
import re
from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CHAT, GENERATING, TEXT

HOT = {"temperature": 1.2, "seed": 1, "max_tokens": 30}
AGE: dict[str, Any] = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}


def is_age(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return bool(found.keys() == {"age"} and 0 <= found["age"] <= 120)


@case(GENERATING, "response_format", HOT, OUT, {"type": "json_object", "schema": AGE}, NAMED)
@case(GENERATING, "guided_json", HOT, OUT, AGE, json.dumps(AGE))
@case(GENERATING, "structured_outputs", HOT, OUT, {"json": AGE}, {"regex": r'\{"age": [1-9][0-9]\}'})
def the_text_satisfies_the_schema(free: Answer, one: Answer, other: Answer) -> None:
    assert is_age(one.text) and is_age(other.text) and not is_age(free.text)


DESCRIBED = {"type": "json_schema", "json_schema": {"name": "age", "description": "in years", "schema": AGE}}
BARE = {"type": "json_schema", "json_schema": {"schema": AGE}}


@case(GENERATING, "response_format", HOT, BARE, NAMED, DESCRIBED)
def what_the_model_is_not_shown_is_named(bare: Answer, named: Answer, described: Answer) -> None:
    assert bare.text == named.text == described.text
    found = [each.headers.get("x-antiphon-ignored", "").split(", ") for each in (bare, named, described)]
    name, description = (f"response_format.json_schema.{each}" for each in ("name", "description"))
    assert found == [[""], [name], [name, description]]


@case(GENERATING, "structured_outputs", HOT, {"regex": "[a-c]{3}"}, {}, {"json_object": False})
def what_constrains_nothing_is_refused(bound: Answer, empty: Answer, none: Answer) -> None:
    assert bound.status == 200 and empty.status == none.status == 400
    assert "structured_outputs has no constraint" in empty.refusal


@case(
    (*CHAT, *TEXT),
    "guided_whitespace_pattern",
    HOT | {"structured_outputs": {"json": AGE, "whitespace_pattern": " "}},
    OUT,
    "[ ]?",
)
def one_pattern_is_said(one: Answer, two: Answer) -> None:
    assert is_age(one.text) and two.status == 400 and "exclude each other" in two.refusal


@case(GENERATING, "min_tokens", HOT | {"guided_regex": "[a-c]{3}"}, 0, 9)
def no_constraint_ends_earlier(free: Answer, bound: Answer) -> None:
    assert re.fullmatch("[a-c]{3}", free.text) and bound.status == 400
    assert "no token is left" in bound.refusal


@case(GENERATING, "response_format", HOT, {"type": "text"}, {"type": "json_object"})
def the_text_begins_an_object(free: Answer, bound: Answer) -> None:
    assert bound.text.startswith("{") and not free.text.startswith("{")


@case(GENERATING, "guided_regex", HOT, OUT, "[a-c]{3}-[0-9]{2}")
@case(GENERATING, "guided_choice", HOT, OUT, ["abc-12", "cba-21"])
@case(GENERATING, "guided_grammar", HOT, OUT, 'root ::= [a-c] [a-c] [a-c] "-" [0-9] [0-9]')
def the_text_is_of_the_form(free: Answer, bound: Answer) -> None:
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", bound.text) and bound.finish == "stop"
    assert not re.fullmatch("[a-c]{3}-[0-9]{2}", free.text)


@case(GENERATING, "guided_whitespace_pattern", HOT | {"seed": 2, "guided_json": AGE}, OUT, "[\\n]", "[ ]{2}")
def whitespace_is_what_the_pattern_says(usual: Answer, line: Answer, two: Answer) -> None:
    found = [set(re.findall(r"\s+", each.text)) for each in (usual, line, two)]
    assert found == [{" "}, {"\n"}, {"  "}] and all(is_age(each.text) for each in (usual, line, two))
