"""CSV and JSON become paragraphs of `name: value`, one a record."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidValue
from antiphon.retrieval.ingest.records import find_delimiter, read_csv, read_json, read_json_lines

ADA = "name: Ada\ncity: London, UK"


def test_each_row_names_its_columns():
    table = 'name,city\nAda,"London, UK"\n\nGrace,\n'
    assert read_csv(table, "a.csv") == f"{ADA}\n\nname: Grace"
    assert read_csv("name,\nAda,7,8\n", "a.csv") == "name: Ada\ncolumn 2: 7\ncolumn 3: 8"
    assert read_csv("only,names\n", "a.csv") == "only, names"
    assert read_csv("a\tb\n1\t2,3\n", "a.tsv", "\t") == "a: 1\nb: 2,3"


@pytest.mark.parametrize(
    ("head", "delimiter"),
    [("a;b,c;d", ";"), ("a\tb", "\t"), ('"a;b;c",d', ","), ("a|b\n,,,", "|"), ("", ",")],
)
def test_the_first_row_tells_the_delimiter(head, delimiter):
    assert find_delimiter(head) == delimiter


def test_an_open_quote_is_refused_with_its_line():
    with pytest.raises(InvalidValue, match=r"'a\.csv' is not a CSV file at line 3: unexpected end"):
        read_csv('a,b\n1,"2\n3', "a.csv")


def test_json_keeps_paths_and_numbers_as_written():
    text = '{"a": {"b": [1.50, 1e3, null, true, "x y"]}, "a": {}, "n": 12345678901234567890}'
    assert read_json(text, "a.json").split("\n") == [
        "a.b[0]: 1.50",
        "a.b[1]: 1e3",
        "a.b[2]: null",
        "a.b[3]: true",
        "a.b[4]: x y",
        "a: empty",
        "n: 12345678901234567890",
    ]
    assert read_json('"word"', "a.json") == "word"


def test_elements_and_lines_are_paragraphs():
    record = json.dumps({"name": "Ada", "city": "London, UK"})
    assert read_json(f'[{record}, {{"name": "Grace"}}]', "a.json") == f"{ADA}\n\nname: Grace"
    assert read_json_lines(f'{record}\n\n{{"name": "Grace"}}\n', "a.jsonl") == f"{ADA}\n\nname: Grace"
    nested = read_json('{"items": [{"a": 1}, {"a": 2}]}', "a.json")
    assert nested == "items[0].a: 1\n\nitems[1].a: 2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON: Expecting"),
        ("", "is not JSON"),
        ("[NaN]", "NaN is no JSON value"),
        ("[" * 200_000 + "]" * 200_000, "nested too deep"),
    ],
)
def test_what_is_not_json_is_refused(text, words):
    with pytest.raises(InvalidValue, match=words):
        read_json(text, "a.json")


def test_json_lines_names_the_line_at_fault():
    with pytest.raises(InvalidValue, match="in line 2: Expecting"):
        read_json_lines('{"a": 1}\n{"a"\n', "a.jsonl")
    with pytest.raises(InvalidValue, match="nested too deep in line 1"):
        read_json_lines("[" * 200_000 + "]" * 200_000, "a.jsonl")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(min_size=1),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_every_value_of_json_is_in_the_text(value):
    text = read_json(json.dumps(value), "a.json")

    def leaves(each: object) -> list[str]:
        if isinstance(each, dict):
            return [leaf for member in each.values() for leaf in leaves(member)]
        if isinstance(each, list):
            return [leaf for element in each for leaf in leaves(element)]
        return [each if isinstance(each, str) else json.dumps(each)]

    squeezed = "".join(text.split())
    assert [leaf for leaf in leaves(value) if "".join(leaf.split()) not in squeezed] == []
