"""To whom a request is ascribed: the end user and the tags, in OpenAI's words and bounds."""

import json
from typing import Any

import pytest

from antiphon.dialects.calls import NO_ATTRIBUTION, Attribution
from antiphon.dialects.empower.dialect import EmpowerChatCompletions
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.errors import AntiphonError, InvalidValue

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SIXTEEN = {f"{place}": "x" * 512 for place in range(16)}


def chat(**fields: Any) -> Attribution:
    return decode_chat(json.dumps(HELLO | fields).encode()).attribution


def refused(**fields: Any) -> AntiphonError:
    with pytest.raises(InvalidValue) as refusal:
        chat(**fields)
    return refusal.value


def test_nothing_is_said_by_default_nor_by_what_is_empty() -> None:
    assert chat() is chat(metadata={}) is chat(metadata=None, user=None) is NO_ATTRIBUTION
    assert chat(user="").end_user is None


def test_the_end_user_has_two_names() -> None:
    assert chat(user="ada") == Attribution("ada", {}, ("user",))
    assert chat(safety_identifier="ada") == Attribution("ada", {}, ("safety_identifier",))
    assert chat(user="ada", safety_identifier="ada").fields == ("user", "safety_identifier")
    assert refused(user="ada", safety_identifier="grace").param == "safety_identifier"


def test_tags_are_at_most_sixteen_pairs_of_bounded_texts() -> None:
    assert chat(metadata=SIXTEEN).tags == SIXTEEN
    wrongs: tuple[Any, ...] = (
        {"k" * 65: "v"},
        {"": "v"},
        {"k": "v" * 513},
        SIXTEEN | {"more": "v"},
        {"k": 5},
        {"k": None},
        [],
    )
    for wrong in wrongs:
        assert refused(metadata=wrong).param == "metadata"


@pytest.mark.parametrize(
    ("field", "value"),
    [("user", "a\0b"), ("safety_identifier", "\0"), ("metadata", {"a\0": "b"}), ("metadata", {"a": "\0"})],
)
def test_what_no_record_holds_is_refused(field: str, value: Any) -> None:
    assert refused(**{field: value}).param == field


def test_an_end_user_is_as_long_as_a_record_holds() -> None:
    assert chat(user="u" * 512).end_user == "u" * 512
    assert refused(user="u" * 513).param == "user"


def test_text_completions_and_empower_say_it_too() -> None:
    body = {"model": "m", "prompt": "a", "user": "ada", "metadata": {"a": "b"}}
    said = decode_text(json.dumps(body).encode()).attribution
    assert said == Attribution("ada", {"a": "b"}, ("user", "metadata"))
    operation = EmpowerChatCompletions(report_unknown=False)
    assert operation.decode(json.dumps(HELLO | {"user": "ada"}).encode()).attribution.end_user == "ada"
