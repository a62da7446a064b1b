"""POST /v1/embeddings: bodies in, bodies out."""

import json
from array import array
from base64 import b64decode
from typing import Any

import pytest

from antiphon.dialects.calls import EmbeddingCall
from antiphon.dialects.common.embeddings import MAX_INPUTS
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings
from antiphon.domain.request import EmbeddingRequest, Embeddings, RawPrompt
from antiphon.errors import AntiphonError, InvalidValue, UnknownParameter, UnsupportedParameter

EMBEDDINGS = OpenAIEmbeddings()
MADE = Embeddings(array("f", [0.6, -0.8, 0.28, 0.96]).tobytes(), 2, 7)


def decoded(**body: Any) -> EmbeddingCall:
    return EMBEDDINGS.decode(json.dumps({"model": "m"} | body).encode())


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("a text", [RawPrompt("a text")]),
        (["a", "b"], [RawPrompt("a"), RawPrompt("b")]),
        ([5, 6, 7], [RawPrompt(tokens=(5, 6, 7))]),
        ([[5, 6], [7]], [RawPrompt(tokens=(5, 6)), RawPrompt(tokens=(7,))]),
        (["a"] * MAX_INPUTS, [RawPrompt("a")] * MAX_INPUTS),
    ],
)
def test_inputs_come_in_four_forms(given: Any, inputs: list[RawPrompt]) -> None:
    assert decoded(input=given) == EmbeddingCall(EmbeddingRequest("m", tuple(inputs)))


def test_form_dimensions_and_user_are_taken() -> None:
    call = decoded(input="a", encoding_format="base64", dimensions=64, user="somebody")
    assert (call.as_base64, call.request.dimensions, call.ignored) == (True, 64, ())
    assert (call.attribution.end_user, call.attribution.fields) == ("somebody", ("user",))
    assert not decoded(input="a", encoding_format="float").as_base64
    assert not decoded(input="a", encoding_format=None).as_base64


@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        ({}, AntiphonError, "input"),
        ({"input": None}, AntiphonError, "input"),
        ({"input": ""}, InvalidValue, "input"),
        ({"input": []}, InvalidValue, "input"),
        ({"input": ["a", ""]}, InvalidValue, "input[1]"),
        ({"input": [[5], []]}, InvalidValue, "input[1]"),
        ({"input": ["a", 5]}, InvalidValue, "input"),
        ({"input": [5, [5]]}, InvalidValue, "input"),
        ({"input": [-1]}, InvalidValue, "input[0]"),
        ({"input": [1.5]}, InvalidValue, "input[0]"),
        ({"input": {"text": "a"}}, InvalidValue, "input"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, InvalidValue, "input"),
        ({"input": "a", "encoding_format": "int8"}, InvalidValue, "encoding_format"),
        ({"input": "a", "encoding_format": 1}, InvalidValue, "encoding_format"),
        ({"input": "a", "dimensions": 0}, InvalidValue, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 5}, UnsupportedParameter, "truncate_prompt_tokens"),
        ({"input": "a", "normalize": False}, UnsupportedParameter, "normalize"),
        ({"inputs": "a", "input": "a"}, UnknownParameter, "inputs"),
    ],
)
def test_what_is_not_taken_is_refused_by_name(
    body: dict[str, Any], error: type[AntiphonError], param: str
) -> None:
    with pytest.raises(error) as caught:
        decoded(**body)
    assert caught.value.param == param


def test_the_values_of_a_form_are_named() -> None:
    with pytest.raises(InvalidValue, match="float or base64"):
        decoded(input="a", encoding_format="int8")


def test_unknown_fields_are_named_where_that_is_the_setting() -> None:
    call = OpenAIEmbeddings(report_unknown=True).decode(
        b'{"model": "m", "input": "a", "extra": 1, "user": "u"}'
    )
    assert call.ignored == ("extra",)


def test_an_answer_holds_a_vector_for_each_input_in_order() -> None:
    answer = json.loads(EMBEDDINGS.encode_answer(decoded(input=["a", "b"]), MADE))
    assert (answer["object"], answer["model"]) == ("list", "m")
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert [(each["object"], each["index"]) for each in answer["data"]] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    numbers = [each["embedding"] for each in answer["data"]]
    assert array("f", numbers[0] + numbers[1]).tobytes() == MADE.vectors


def test_packed_vectors_are_the_same_numbers() -> None:
    answer = json.loads(EMBEDDINGS.encode_answer(decoded(input=["a", "b"], encoding_format="base64"), MADE))
    assert b"".join(b64decode(each["embedding"]) for each in answer["data"]) == MADE.vectors
