"""Scale's list of models: pages, filters and order."""

import json
from typing import Any

import msgspec
import pytest

from antiphon.dialects.services import ModelEntry
from antiphon.dialects.sgp.dialect import build_model, build_model_page, read_query
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.models import Profile
from antiphon.domain.request import EmbeddingFacts, Pooling
from antiphon.domain.values import replace
from antiphon.errors import RequestError

PROFILE = Profile("llama", 1, 2, "F16", 4096, 300, True, True, 8, "x")
ENTRIES = (
    ModelEntry("chat", 1_700_000_000, "ready", PROFILE),
    ModelEntry("text", 1_800_000_000, "ready", replace(PROFILE, chat=False)),
    ModelEntry(
        "org/vectors", 1_600_000_000, "ready", replace(PROFILE, embedding=EmbeddingFacts(3, Pooling.CLS))
    ),
    ModelEntry("away", 1_500_000_000, "down"),
    ModelEntry("adapter", 1_900_000_000, "ready", PROFILE, parent="chat", alias="vendor/adapter"),
)


def page(**query: str) -> Any:
    models = [build_model(entry, LOCAL_ANONYMOUS) for entry in ENTRIES]
    return json.loads(msgspec.json.encode(build_model_page(models, read_query(query.items()))))


def names(**query: str) -> list[str]:
    return [model["id"] for model in page(**query)["items"]]


def refusal(*query: tuple[str, str]) -> tuple[str, str | None]:
    with pytest.raises(RequestError) as refused:
        read_query(query)
    return refused.value.code, refused.value.param


def test_a_model_says_what_it_is() -> None:
    chat, text, vectors, away, adapter = page()["items"]
    assert chat == {
        "id": "chat", "name": "chat", "display_name": "chat", "account_id": "default",
        "created_at": "2023-11-14T22:13:20Z", "created_by_user_id": "antiphon", "deployment_count": 1,
        "model_type": "CHAT_COMPLETION", "supports_multi_turn": True, "base_model_id": None,
        "request_schema": {"$ref": "/openapi.json#/components/schemas/SgpLegacyChatRequest"},
        "response_schema": {"$ref": "/openapi.json#/components/schemas/SgpLegacyChatAnswer"},
        "model_group_id": None,
    }  # fmt: skip
    kinds = [each["model_type"] for each in (text, vectors, away)]
    assert kinds == ["COMPLETION", "EMBEDDING", "GENERIC"]
    assert [each["supports_multi_turn"] for each in (text, vectors, away)] == [False] * 3
    assert vectors["request_schema"] == away["request_schema"] == {}
    assert (adapter["id"], adapter["base_model_id"]) == ("vendor/adapter", "chat")


def test_pages_hold_each_model_once_in_order() -> None:
    everything = names()
    assert everything == ["chat", "text", "org/vectors", "away", "vendor/adapter"]
    pages = [page(limit="2", page=str(number)) for number in (1, 2, 3, 4)]
    assert [[model["id"] for model in each["items"]] for each in pages] == [
        everything[:2], everything[2:4], everything[4:], [],
    ]  # fmt: skip
    assert [each["current_page"] for each in pages] == [1, 2, 3, 4]
    assert {(each["items_per_page"], each["total_item_count"]) for each in pages} == {(2, 5)}
    assert page()["items_per_page"] == 100


def test_filters_choose_and_count() -> None:
    assert names(model_type="CHAT_COMPLETION") == ["chat", "vendor/adapter"]
    assert page(model_type="CHAT_COMPLETION", limit="1")["total_item_count"] == 2
    assert names(account_id="default") == names() == names(account_id="")
    assert names(account_id="other") == names(model_group_id="g") == names(model_type="AGENT") == []


def test_models_are_sorted_by_several_fields() -> None:
    assert names(sort_by="created_at:desc") == ["vendor/adapter", "text", "chat", "org/vectors", "away"]
    assert names(sort_by="supports_multi_turn:desc,name:asc")[:3] == ["chat", "vendor/adapter", "away"]
    assert names(sort_by="base_model_id:desc")[0] == "vendor/adapter"
    assert names(sort_by="") == names()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("page", "0", "invalid_value"),
        ("page", "-1", "invalid_value"),
        ("page", "1.5", "invalid_value"),
        ("page", "²", "invalid_value"),
        ("page", "9" * 5000, "invalid_value"),
        ("limit", "10001", "invalid_value"),
        ("sort_by", "name", "invalid_value"),
        ("sort_by", "name:up", "invalid_value"),
        ("sort_by", "model_card:asc", "invalid_value"),
        ("view", "Deployments", "unsupported_parameter"),
        ("colour", "red", "unknown_parameter"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(name: str, value: str, code: str) -> None:
    assert refusal((name, value)) == (code, f"query.{name}")


def test_a_parameter_that_stands_twice_is_refused() -> None:
    assert refusal(("page", "1"), ("page", "2")) == ("invalid_value", "query.page")
