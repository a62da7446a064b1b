"""The table of fields: complete against OpenAI's own client, at one with the wire types, and obeyed."""

import typing

import msgspec
import pytest
from openai.types import completion_create_params as text_reference
from openai.types import embedding_create_params as embedding_reference
from openai.types.chat import completion_create_params as chat_reference

from antiphon.dialects.common import request_types
from antiphon.dialects.common.field_table import FieldReport, FieldSupport
from antiphon.dialects.common.fields import FIELDS, TABLES, FieldScope, filter_fields
from antiphon.dialects.openai import dialect, embeddings, tokens
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
SHAPES: dict[FieldScope, type[msgspec.Struct]] = {
    FieldScope.CHAT: request_types.ChatCompletionRequest,
    FieldScope.TEXT: request_types.CompletionRequest,
    FieldScope.MESSAGE: request_types.ChatMessage,
    FieldScope.PART: request_types.TextPart,
    FieldScope.REFUSAL: request_types.RefusalPart,
    FieldScope.IMAGE: request_types.ImageUrlPart,
    FieldScope.IMAGE_URL: request_types.ImageUrlShape,
    FieldScope.AUDIO: request_types.InputAudioPart,
    FieldScope.INPUT_AUDIO: request_types.InputAudioShape,
    FieldScope.TOOL: request_types.ToolShape,
    FieldScope.FUNCTION: request_types.Function,
    FieldScope.CALL: request_types.MessageToolCall,
    FieldScope.CALLED: request_types.CalledFunction,
    FieldScope.STREAM: request_types.StreamOptions,
    FieldScope.EMBEDDINGS: embeddings.EmbeddingsRequest,
    FieldScope.TOKENIZE: tokens.TokenizeRequest,
    FieldScope.DETOKENIZE: tokens.DetokenizeRequest,
    FieldScope.LOAD: dialect.LoadAdapterRequest,
    FieldScope.UNLOAD: dialect.UnloadAdapterRequest,
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


@pytest.mark.parametrize("place", SHAPES)
def test_the_wire_type_takes_what_the_table_takes(place):
    shape = SHAPES[place]
    taken = {field.name for field in msgspec.structs.fields(shape)}
    taken |= {tag} if (tag := shape.__struct_config__.tag_field) else set()
    opaque = {field.name for field in TABLES[place].values() if field.opaque}
    assert not taken & opaque
    assert taken | opaque == names(place, FieldSupport.SUPPORTED, FieldSupport.IGNORED)


def test_no_field_stands_twice_in_one_place():
    for place in FieldScope:
        assert len([field for field in FIELDS if place in field.scopes]) == len(TABLES[place])


def test_few_fields_are_ignored_and_each_says_why():
    ignored = [field for field in FIELDS if field.support is FieldSupport.IGNORED]
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
