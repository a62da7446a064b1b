"""Unknown fields: refused by name, or where an operator wants it ignored and named."""

import json
from typing import Any

import pytest

from antiphon.dialects.openai.dialect import OpenAIChatCompletions, OpenAICompletions
from antiphon.errors import UnknownParameter, UnsupportedParameter

PART = {"type": "text", "text": "a", "colour": 1}
MESSAGE = {"role": "user", "content": [PART], "mood": "x"}
CHAT: dict[str, Any] = {"model": "m", "messages": [MESSAGE, MESSAGE], "temprature": 1}
TEXT: dict[str, Any] = {
    "model": "m",
    "prompt": "a",
    "stream": True,
    "stream_options": {"pace": 2},
    "user": "u",
}


def decoded(index: int, body: dict[str, Any], report: bool):
    return (OpenAIChatCompletions, OpenAICompletions)[index](report).decode(json.dumps(body).encode())


def test_every_unknown_field_is_named_once_wherever_it_stands():
    call = decoded(0, CHAT, True)
    assert call.ignored == ("temprature", "messages[].mood", "messages[].content[].colour")
    assert [message.text for message in call.request.prompts[0].messages] == ["a", "a"]
    assert decoded(1, TEXT, True).ignored == ("stream_options.pace",)


@pytest.mark.parametrize(("index", "body"), [(0, CHAT), (1, TEXT)])
def test_they_are_refused_by_default(index: int, body: dict[str, Any]):
    with pytest.raises(UnknownParameter):
        decoded(index, body, False)


def test_a_known_unbuilt_field_is_always_refused():
    with pytest.raises(UnsupportedParameter):
        decoded(1, {"model": "m", "prompt": "a", "use_beam_search": True}, True)


def test_many_and_strange_names_fit_a_header():
    names = {f"é\r\n\x00{index}" + "x" * 1000: 1 for index in range(5000)}
    ignored = decoded(1, {"model": "m", "prompt": "a"} | names, True).ignored
    assert ignored[-1] == "and 4968 more" and len(ignored) == 33
    value = ", ".join(ignored)
    assert len(value) < 4096 and value.isascii() and value.isprintable()
