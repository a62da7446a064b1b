"""What an answer must look like."""

import json
import re
from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import GENERATING

HOT = {"temperature": 1.2, "seed": 1, "max_tokens": 60}
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


@case(GENERATING, "response_format", HOT | {"max_tokens": 30}, {"type": "text"}, {"type": "json_object"})
def the_text_begins_an_object(free: Answer, bound: Answer) -> None:
    assert bound.text.startswith("{") and not free.text.startswith("{")


@case(GENERATING, "guided_regex", HOT, OUT, "[a-c]{3}-[0-9]{2}")
@case(GENERATING, "guided_choice", HOT, OUT, ["abc-12", "cba-21"])
@case(GENERATING, "guided_grammar", HOT, OUT, 'root ::= [a-c] [a-c] [a-c] "-" [0-9] [0-9]')
def the_text_is_of_the_form(free: Answer, bound: Answer) -> None:
    assert re.fullmatch("[a-c]{3}-[0-9]{2}", bound.text) and bound.finish == "stop"
    assert not re.fullmatch("[a-c]{3}-[0-9]{2}", free.text)


@case(GENERATING, "guided_whitespace_pattern", HOT | {"guided_json": AGE}, OUT, "[\\n]", "[ ]{2}")
def whitespace_is_what_the_pattern_says(usual: Answer, line: Answer, two: Answer) -> None:
    found = [set(re.findall(r"\s+", each.text)) for each in (usual, line, two)]
    assert found == [{" "}, {"\n"}, {"  "}] and all(is_age(each.text) for each in (usual, line, two))
