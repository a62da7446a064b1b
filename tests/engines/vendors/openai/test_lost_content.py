"""What an answer of OpenAI's format contains and nobody here can pass on is an error, and no empty answer."""

import json
from typing import Any

import pytest

from antiphon.domain.events import TextDelta
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream

REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Say hello."),)),))
MODEL = VendorModel("m-1", "first")
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def call(name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"index": 0, "id": "call_1", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("message", "finish"),
    [
        ({"content": [IMAGE]}, "stop"),
        ({"content": None, "audio": {"id": "a", "data": "AA=="}}, "stop"),
        ({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call"),
        ({"content": ""}, "tool_calls"),
        ({"content": "", "images": [IMAGE]}, "stop"),
        ({"content": "A cat.", "images": [IMAGE]}, None),
    ],
)
def test_content_that_would_be_lost_is_an_error(message: dict[str, Any], finish: str | None):
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}).encode()
    with pytest.raises(ValueError, match="the answer"):
        list(OpenAIUpstream().decode_answer(REQUEST, MODEL, body))
    decoder = OpenAIUpstream().start_stream(REQUEST, MODEL)
    chunk = json.dumps({"choices": [{"index": 0, "delta": message, "finish_reason": finish}]}).encode()
    with pytest.raises(ValueError, match="the answer"):
        decoder.feed("", chunk)


def test_no_images_are_no_error():
    choice = {"index": 0, "message": {"content": "Hi", "images": []}, "finish_reason": "stop"}
    events = OpenAIUpstream().decode_answer(REQUEST, MODEL, json.dumps({"choices": [choice]}).encode())
    assert TextDelta(0, "Hi") in events


def test_a_call_whose_name_changes_is_an_error():
    decoder = OpenAIUpstream().start_stream(REQUEST, MODEL)
    decoder.feed("", json.dumps({"choices": [{"delta": {"tool_calls": [call("get_", "")]}}]}).encode())
    decoder.feed("", json.dumps({"choices": [{"delta": {"tool_calls": [call("get_", "")]}}]}).encode())
    with pytest.raises(ValueError, match="name of a call"):
        decoder.feed("", json.dumps({"choices": [{"delta": {"tool_calls": [call("weather", "")]}}]}).encode())
