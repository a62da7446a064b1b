"""POST /v1/rerank: bodies in, bodies out."""

import json
from typing import Any

import pytest

from antiphon.dialects.calls import RerankCall
from antiphon.dialects.common.request_types import MAX_RANKED
from antiphon.dialects.openai.rerank import Rerank
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.request import Ranking, RerankRequest
from antiphon.errors import (
    AntiphonError,
    InvalidValue,
    MissingParameter,
    UnknownParameter,
    UnsupportedParameter,
)

RERANK = Rerank()
META = ResponseMeta("0" * 32, 1, "m")
BODY = {"model": "m", "query": "who", "documents": ["a", "b"]}


def decode(**body: Any) -> RerankCall:
    return RERANK.decode(json.dumps(BODY | body).encode())


def answer(call: RerankCall, *scores: float) -> dict[str, Any]:
    answered: dict[str, Any] = json.loads(RERANK.encode_answer(META, call, Ranking(scores, 12)))
    return answered


def test_documents_are_texts_or_objects_of_text() -> None:
    call = decode(documents=["a", {"text": "b"}], max_tokens_per_doc=7, user="somebody")
    assert call.request == RerankRequest("m", "who", ("a", "b"), 7)
    assert call.attribution.end_user == "somebody"


def test_the_best_documents_come_first() -> None:
    answered = answer(decode(), 0.25, 0.75)
    assert answered["results"] == [
        {"index": 1, "relevance_score": 0.75},
        {"index": 0, "relevance_score": 0.25},
    ]
    assert answered["usage"] == {"prompt_tokens": 12, "total_tokens": 12}
    assert answered["meta"] == {"tokens": {"input_tokens": 12}}
    assert (answered["model"], answered["object"]) == ("m", "list")


def test_equal_scores_keep_the_order() -> None:
    answered = answer(decode(documents=list("abc")), 0.5, 0.5, 0.5)
    assert [each["index"] for each in answered["results"]] == [0, 1, 2]


def test_top_n_and_the_documents_texts_act() -> None:
    answered = answer(decode(top_n=1, return_documents=True), 0.25, 0.75)
    assert answered["results"] == [{"index": 1, "relevance_score": 0.75, "document": {"text": "b"}}]
    assert len(answer(decode(top_n=9), 0.25, 0.75)["results"]) == 2


@pytest.mark.parametrize(
    ("body", "error", "param"),
    [
        ({"query": None}, AntiphonError, "query"),
        ({"query": ""}, InvalidValue, "query"),
        ({"documents": []}, InvalidValue, "documents"),
        ({"documents": ["a", ""]}, InvalidValue, "documents[1]"),
        ({"documents": [{"text": ""}]}, InvalidValue, "documents[0]"),
        ({"documents": [{"title": "a"}]}, AntiphonError, None),
        ({"documents": ["a"] * (MAX_RANKED + 1)}, InvalidValue, "documents"),
        ({"top_n": 0}, InvalidValue, "top_n"),
        ({"max_tokens_per_doc": 0}, InvalidValue, "max_tokens_per_doc"),
        ({"rank_fields": ["title"]}, UnsupportedParameter, "rank_fields"),
        ({"priority": 3}, UnsupportedParameter, "priority"),
        ({"more": 1}, UnknownParameter, "more"),
    ],
)
def test_a_wrong_body_is_refused_by_name(body: Any, error: type[AntiphonError], param: str | None) -> None:
    with pytest.raises(error) as refused:
        decode(**body)
    assert param is None or refused.value.param == param


def test_what_is_missing_is_named() -> None:
    with pytest.raises(MissingParameter) as refused:
        RERANK.decode(b'{"model": "m", "query": "q"}')
    assert refused.value.param == "documents"
