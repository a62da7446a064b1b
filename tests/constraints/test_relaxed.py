"""Schemas of tools that are not strict: what cannot be kept is left out and named, what is left is taken."""

import json

import pytest
from jsonschema import Draft202012Validator

from antiphon.constraints.schemas import compilable, relaxed
from antiphon.domain.constraint import ConstraintKind
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.constraints.collected import REFUSED, TAKEN
from tests.constraints.support import sampled, vocabulary


def refused(schema):
    try:
        compilable(json.dumps(schema), "f")
    except (UnsupportedParameter, InvalidValue) as error:
        return error
    return None


def test_what_is_taken_loses_nothing_but_the_exclusiveness_of_one_of():
    for schema in TAKEN:
        if isinstance(schema, dict):
            made, names = relaxed(schema, "f")
            assert set(names) <= {"oneOf"}
            if not names:
                assert made == compilable(json.dumps(schema), "f")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_taken_without_what_could_not_be_kept(name):
    schema = REFUSED[name]
    if not isinstance(schema, dict) or isinstance(refused(schema), InvalidValue):
        return
    made, names = relaxed(schema, "f")
    assert refused(made) is None
    assert names or refused(schema) is None


def test_the_names_are_those_of_what_was_left_out_and_the_rest_holds():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 5, "multipleOf": 1, "maximun": 3},
            "b": {"$ref": "http://x"},
        },
        "required": ["a"],
        "additionalProperties": False,
        "if": {"required": ["b"]},
    }
    made, names = relaxed(schema, "f")
    assert names == ("maximun", "if", "$ref")
    loose = Draft202012Validator(made)
    assert loose.is_valid({"a": 5, "b": "anything"}) and not loose.is_valid({"a": 6})
    assert not loose.is_valid({"a": 1, "c": 1})


def test_a_call_is_made_of_what_is_left():
    made, _ = relaxed(
        {
            "type": "object",
            "properties": {"a": {"const": 1, "not": {}}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "f",
    )
    texts = sampled(ConstraintKind.JSON_SCHEMA, json.dumps(made), vocabulary(), 3)
    assert {json.dumps(json.loads(text)) for text in texts} == {'{"a": 1}'}


@pytest.mark.parametrize("schema", [{"properties": []}, {"type": "strin"}, {"required": "a"}, {"items": 3}])
def test_what_is_no_schema_is_refused_all_the_same(schema):
    with pytest.raises(InvalidValue):
        relaxed(schema, "f")
