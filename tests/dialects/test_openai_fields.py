"""The table of fields: complete against OpenAI's own client, at one with the wire types, and obeyed."""

import typing
from typing import Annotated

import msgspec
import pytest
from openai.types import completion_create_params as text_reference
from openai.types import embedding_create_params as embedding_reference
from openai.types.chat import completion_create_params as chat_reference

from antiphon.dialects.common.field_table import FieldReport, FieldSupport, FieldTable, declare_echoed
from antiphon.dialects.common.fields import OTHERS, SHAPES, TABLES, FieldScope, filter_fields
from antiphon.domain import fields
from antiphon.errors import UnknownParameter, UnsupportedParameter

REFERENCE = {
    FieldScope.CHAT: (
        chat_reference.CompletionCreateParamsNonStreaming,
        chat_reference.CompletionCreateParamsStreaming,
    ),
    FieldScope.TEXT: (
        text_reference.CompletionCreateParamsNonStreaming,
        text_reference.CompletionCreateParamsStreaming,
    ),
    FieldScope.EMBEDDINGS: (embedding_reference.EmbeddingCreateParams,),
}
REFUSED = [
    (place, field)
    for place in FieldScope
    for field in TABLES[place].values()
    if field.support is FieldSupport.REFUSED
]


def names(place: FieldScope, *standings: FieldSupport) -> set[str]:
    return {field.name for field in TABLES[place].values() if field.support in standings}


@pytest.mark.parametrize("place", REFERENCE)
def test_every_field_of_the_reference_has_a_standing(place):
    known = {name for params in REFERENCE[place] for name in typing.get_type_hints(params)}
    assert known - TABLES[place].keys() == set()


class WithUndescribed(msgspec.Struct):
    """A wire type with a field that nothing describes."""

    temperature: fields.Temperature = None
    mood: str | None = None


def test_a_field_of_a_wire_type_without_a_description_stops_the_start() -> None:
    with pytest.raises(TypeError, match=r"WithUndescribed\.mood"):
        FieldTable({"place": WithUndescribed}, (), endpoints=())
    table = FieldTable({"place": WithUndescribed}, declare_echoed({"place"}, "of an answer", "mood"), ())
    supports = {name: field.support for name, field in table.tables["place"].items()}
    assert supports == {"mood": FieldSupport.IGNORED, "temperature": FieldSupport.SUPPORTED}


class WithOwnWords(msgspec.Struct):
    """A wire type that describes a field of all dialects in its own words."""

    top_k: Annotated[fields.TopK, "At most 128."] = None


def test_a_field_in_own_words_keeps_its_need_and_its_range() -> None:
    field = FieldTable({"place": WithOwnWords}, (), ()).tables["place"]["top_k"]
    assert (field.description, field.need) == ("At most 128.", fields.Need.TOKENS)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"top_k": -2}, WithOwnWords)


def test_no_field_is_listed_that_a_wire_type_describes() -> None:
    for place in FieldScope:
        listed = [field.name for field in OTHERS if place in field.scopes]
        assert len(listed) == len(set(listed))
        assert set(SHAPES[place].__struct_fields__).isdisjoint(listed)


def test_few_fields_are_ignored_and_each_says_why():
    ignored = [field for field in OTHERS if field.support is FieldSupport.IGNORED]
    assert all(field.opaque for field in ignored)
    echoing = frozenset({FieldScope.MESSAGE, FieldScope.SPEECH, FieldScope.CALL, FieldScope.CALLED})
    assert all(field.scopes <= echoing for field in ignored)
    assert all(len(field.description) > 20 for field in ignored)


@pytest.mark.parametrize(("place", "field"), REFUSED, ids=lambda value: getattr(value, "name", str(value)))
def test_unbuilt_fields_are_refused_except_at_their_default(place, field):
    for value in ({"x": 1}, [1], "surprising", 17, -0.5):
        with pytest.raises(UnsupportedParameter) as caught:
            filter_fields({field.name: value}, place)
        assert caught.value.param == field.name and field.description in caught.value.message
    for value in (None, *field.accepted_values):
        assert filter_fields({field.name: value}, place) == {}


def test_true_is_not_one_and_zero_is_zero():
    for name, value in (
        ("length_penalty", True),
        ("store", 0),
    ):
        with pytest.raises(UnsupportedParameter):
            filter_fields({name: value}, FieldScope.CHAT)
    assert filter_fields({"length_penalty": 1.0}, FieldScope.CHAT) == {}


def test_null_means_absent():
    assert filter_fields({"temperature": None, "n": 2}, FieldScope.CHAT) == {"n": 2}


def test_ignored_fields_are_named():
    given, report = {"id": "m-1", "content": "a"}, FieldReport()
    assert filter_fields(given, FieldScope.MESSAGE, "messages[0].", report) == {"content": "a"}
    assert report.names == ("messages[].id",)


ECHOES = [
    (place, field)
    for place in (FieldScope.MESSAGE, FieldScope.CALL, FieldScope.CALLED)
    for field in TABLES[place].values()
    if field.opaque
]


@pytest.mark.parametrize(("place", "field"), ECHOES, ids=lambda value: getattr(value, "name", str(value)))
@pytest.mark.parametrize("value", [{"x": [1]}, [], "a", 17, False])
def test_a_field_that_repeats_an_answer_may_hold_anything(place, field, value):
    report = FieldReport()
    assert filter_fields({field.name: value}, place, "messages[3].", report) == {}
    assert report.names == (f"messages[].{field.name}",)
    assert filter_fields({field.name: None}, place, report=report) == {} and len(report.paths) == 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "; did you mean temperature?"),
        ("prompt", "; it belongs to /v1/completions"),
        ("zzz", ""),
        ("x" * 5000, ""),
        ("n_discard", ""),
        ("id_slot", ""),
        ("samplers", ""),
        ("grammar", ""),
        ("chat_parser", ""),
        ("api_base", ""),
    ],
)
def test_an_unknown_field_is_refused_with_a_hint(name, hint):
    with pytest.raises(UnknownParameter) as caught:
        filter_fields({name: None}, FieldScope.CHAT)
    assert caught.value.message.endswith(hint) and len(caught.value.message) < 120
    assert (caught.value.param or "").startswith(name[:60])
