"""What /v1 reads of reasoning, in requests and in messages of earlier turns."""

import json

import pytest

from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.request import Conversation, Reasoning
from antiphon.errors import InvalidValue, UnsupportedParameter

HELLO = {"role": "user", "content": "hi"}


def conversation(*messages, **fields) -> Conversation:
    body = {"model": "m", "messages": [HELLO, *messages, *([HELLO] if messages else [])], **fields}
    (prompt,) = decode_chat(json.dumps(body).encode()).request.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def said(**fields):
    return conversation({"role": "assistant", "content": "Four.", **fields}).messages[1].reasoning


def test_what_is_asked_of_reasoning():
    assert conversation().reasoning == Reasoning()
    asked = conversation(reasoning_effort="low", include_reasoning=False, thinking_token_budget=7)
    assert asked.reasoning == Reasoning("low", 7, shown=False)
    assert conversation(include_reasoning=True).reasoning.shown
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        assert conversation(reasoning_effort=effort).reasoning.effort == effort


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reasoning_effort", "hardest"),
        ("reasoning_effort", 3),
        ("include_reasoning", "yes"),
        ("thinking_token_budget", -1),
        ("thinking_token_budget", 1.5),
    ],
)
def test_another_value_is_refused_by_name(field, value):
    with pytest.raises(InvalidValue) as caught:
        conversation(**{field: value})
    assert caught.value.param == field


def test_the_object_of_another_api_is_refused_by_name():
    with pytest.raises(UnsupportedParameter, match="reasoning_effort") as caught:
        conversation(reasoning={"effort": "low"})
    assert caught.value.param == "reasoning"


def test_both_names_say_what_was_thought():
    assert said() is None and said(reasoning=None, reasoning_content=None) is None
    assert said(reasoning="Hm.") == said(reasoning_content="Hm.") == "Hm."
    assert said(reasoning="Hm.", reasoning_content="Hm.") == "Hm."
    with pytest.raises(InvalidValue, match="differ") as caught:
        said(reasoning="Hm.", reasoning_content="Well.")
    assert caught.value.param == "messages[1].reasoning"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_only_an_assistant_thought(name, role):
    with pytest.raises(InvalidValue, match="role assistant") as caught:
        conversation({"role": role, "content": "hi", name: "Hm."})
    assert caught.value.param == f"messages[1].{name}"
