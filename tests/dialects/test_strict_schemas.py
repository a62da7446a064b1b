"""Strict schemas, by their own word or by the setting: an engine refuses by name what it cannot keep."""

import json
from typing import Any

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.dialects.empower.dialect import EmpowerChatCompletions
from antiphon.dialects.fireworks.dialect import FireworksChatCompletions
from antiphon.dialects.openai.dialect import OpenAIChatCompletions
from antiphon.errors import UnsupportedParameter
from tests.support.constraint_texts import vocabulary

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "x"}]}


def body(**more: Any) -> bytes:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **more}}
    return json.dumps(HELLO | {"response_format": form}).encode()


@pytest.mark.parametrize("chat", [OpenAIChatCompletions, FireworksChatCompletions, EmpowerChatCompletions])
def test_a_strict_schema_refusal_names_the_keyword_and_its_place(chat: Any):
    loose = chat(report_unknown=False).decode(body())
    assert loose.relaxed == ("response_format.json_schema.schema: uniqueItems",)
    assert loose.request.output.constraint is not None
    check_constraint(loose.request.output.constraint, vocabulary())
    for strict in (
        chat(report_unknown=False).decode(body(strict=True)),
        chat(report_unknown=False, strict=True).decode(body()),
    ):
        assert strict.relaxed == () and strict.request.output.constraint is not None
        with pytest.raises(UnsupportedParameter, match="uniqueItems at #/properties/a of response_format"):
            check_constraint(strict.request.output.constraint, vocabulary())


def test_the_setting_makes_tools_strict_too():
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    sent = json.dumps(HELLO | {"tools": [tool]}).encode()
    call = OpenAIChatCompletions(report_unknown=False, strict=True).decode(sent)
    (only,) = call.request.prompts[0].tools.tools  # type: ignore[union-attr]
    assert only.supported_schema == SCHEMA and call.relaxed == ()
    assert not only.strict, "a vendor would be told what the caller did not say"
