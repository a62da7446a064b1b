"""Marks for a vendor's cache reach the vendors that have them, and are named elsewhere."""

import json
from typing import Any

import pytest

from antiphon.domain.messages import (
    CacheControl,
    MediaContent,
    MediaKind,
    Message,
    Role,
    TextContent,
    Tool,
    ToolCall,
    Tools,
)
from antiphon.domain.request import Conversation, GenerationRequest, Output
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import NO_ATTRIBUTES, UpstreamDialect, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile

MODEL = VendorModel("m", "p", VendorProfile(modalities=("text", "image")))
KEPT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
TOOLS = Tools((Tool("look"), Tool("wait", cache_control=CacheControl("1h"))))
RULES = (TextContent("Rules.", CacheControl()), TextContent(" More."))
CALL = ToolCall("c", "look", "{}")
TALK = (
    Message(Role.SYSTEM, "Rules. More.", content=RULES),
    Message(Role.USER, "Hi", content=(TextContent("Hi", CacheControl()),)),
    Message(Role.ASSISTANT, "Well", tool_calls=(CALL,), content=(TextContent("Well", CacheControl("5m")),)),
    Message(Role.TOOL, "4", tool_call_id="c", content=(TextContent("4", CacheControl()),)),
)
NAMES = ("tools[].cache_control", "messages[].content[].cache_control")


def request_of(*messages: Message, tools: Tools | None = None) -> GenerationRequest:
    prompt = Conversation(messages, tools=tools)
    return GenerationRequest("m", (prompt,), output=Output(max_tokens=9))


def test_anthropic_gets_marks_of_tools_and_texts():
    call = AnthropicUpstream().encode(request_of(*TALK, tools=TOOLS), MODEL, NO_ATTRIBUTES)
    body: Any = json.loads(call.body)
    assert call.ignored == ()
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, LONG]
    first, second = body["system"]
    assert first == {"type": "text", "text": "Rules.", "cache_control": KEPT}
    assert second == {"type": "text", "text": " More."}
    user, assistant, result = [message["content"] for message in body["messages"]]
    assert user == [{"type": "text", "text": "Hi", "cache_control": KEPT}]
    assert assistant[0] == {"type": "text", "text": "Well", "cache_control": KEPT | {"ttl": "5m"}}
    assert "cache_control" not in assistant[1]
    assert result[0]["content"] == [{"type": "text", "text": "4", "cache_control": KEPT}]


def test_a_server_of_openais_format_can_take_marks():
    model = VendorModel("m", "p", MODEL.profile, extra_parameters=frozenset({"cache_control"}))
    call = OpenAIUpstream().encode(request_of(*TALK, tools=TOOLS), model, NO_ATTRIBUTES)
    body: Any = json.loads(call.body)
    assert call.ignored == ()
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, LONG]
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Rules.", "cache_control": KEPT},
        {"type": "text", "text": " More."},
    ]


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), GeminiUpstream()])
def test_other_vendors_get_the_same_as_without_marks(upstream: UpstreamDialect):
    plain = tuple(
        Message(each.role, each.text, tool_calls=each.tool_calls, tool_call_id=each.tool_call_id)
        for each in TALK
    )
    marked = upstream.encode(request_of(*TALK, tools=TOOLS), MODEL, NO_ATTRIBUTES)
    bare = upstream.encode(
        request_of(*plain, tools=Tools((Tool("look"), Tool("wait")))), MODEL, NO_ATTRIBUTES
    )
    assert (marked.body, marked.ignored, bare.ignored) == (bare.body, NAMES, ())


def test_a_marked_text_beside_an_image_is_named_too():
    image = MediaContent(MediaKind.IMAGE, "image/png", "AAAA")
    message = Message(Role.USER, "Hi", content=(TextContent("Hi", CacheControl()), image))
    for upstream in (OpenAIUpstream(), GeminiUpstream()):
        call = upstream.encode(request_of(message), MODEL, NO_ATTRIBUTES)
        assert call.ignored == NAMES[1:] and b"cache_control" not in call.body
