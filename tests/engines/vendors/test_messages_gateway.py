"""The Messages API in front of each vendor: turns with tools and signed reasoning, and what Anthropic
gets."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from antiphon.domain.values import replace
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import UpstreamDialect, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.engines.vendors.responses.dialect import ResponsesUpstream
from tests.support.http_server import Reply
from tests.support.vendors import anthropic_server, gemini_server, openai_server, responses_server
from tests.support.vendors.conversations import BY_NAME, PIXEL
from tests.support.vendors.vendor_gateway import serve_gateway
from tests.support.vendors.vendor_http import VendorCall, VendorReply, VendorServer, serve_vendor

CONVERSATION = BY_NAME["reasoning between calls"]
PROFILE = VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True)
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
TOOLS: list[Any] = [
    {"name": name, "input_schema": {"type": "object", "properties": {}}}
    for name in ("weather", "clock", "camera")
]
MODES = pytest.mark.parametrize("stream", [False, True], ids=["buffered", "streamed"])

Answer = Callable[[VendorCall], VendorReply]
VENDORS: dict[str, tuple[Callable[[], UpstreamDialect], str, str, Answer]] = {
    "anthropic": (AnthropicUpstream, "/v1", anthropic_server.KEY, anthropic_server.answer_call),
    "gemini": (GeminiUpstream, "/v1beta", gemini_server.KEY, gemini_server.answer_call),
    "openai": (OpenAIUpstream, "/v1", openai_server.KEY, openai_server.answer_call),
    "responses": (ResponsesUpstream, "/v1", responses_server.KEY, responses_server.answer_call),
}


def rebuild(reply: Reply) -> Any:
    """The message of an answer; of a stream, as clients put it together."""
    assert reply.status == 200, reply.body
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return reply.json()
    start, *events = reply.events()
    message = start["message"]
    for event in events:
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"] | {"parts": []})
        elif event["type"] == "content_block_delta" and "partial_json" in event["delta"]:
            message["content"][-1]["parts"].append(event["delta"]["partial_json"])
        elif event["type"] == "content_block_delta":
            name = event["delta"]["type"].removesuffix("_delta")
            message["content"][-1][name] += event["delta"][name]
        elif event["type"] == "content_block_stop":
            if parts := message["content"][-1].pop("parts"):
                message["content"][-1]["input"] = json.loads("".join(parts) or "{}")
        elif event["type"] == "message_delta":
            message |= event["delta"] | {"usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    return message


@MODES
@pytest.mark.parametrize("name", VENDORS)
async def test_turns_with_tools_and_signed_reasoning_reach_each_vendor(name: str, stream: bool):
    """Each vendor here refuses a turn without the signatures that it gave."""
    create, path, key, answer = VENDORS[name]
    messages: list[Any] = [{"role": "user", "content": f"[{CONVERSATION.name}] Plan my day."}]
    results: list[Any] = ["9:00", "sun", "snow", [{"type": "text", "text": "Here."}, IMAGE]]
    body = {"model": "m", "max_tokens": 4000, "tools": TOOLS, "stream": stream}
    body |= {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    model = VendorModel("m", name, PROFILE, reasoning_field="reasoning")
    texts = []
    with serve_vendor(answer) as vendor:
        async with serve_gateway(create(), vendor.url + path, key, [model]) as served:
            for _ in CONVERSATION.turns:
                message = rebuild(await served.ask("/v1/messages", body | {"messages": messages}))
                content = message["content"]
                texts.append("".join(block["text"] for block in content if block["type"] == "text"))
                calls = [block for block in content if block["type"] == "tool_use"]
                assert message["stop_reason"] == ("tool_use" if calls else "end_turn")
                messages.append({"role": "assistant", "content": content})
                answers = [
                    {"type": "tool_result", "tool_use_id": call["id"], "content": results.pop(0)}
                    for call in calls
                ]
                messages.append({"role": "user", "content": answers or "Thanks."})
    assert texts == [turn.reply.text for turn in CONVERSATION.turns]


# --- Anthropic ----------------------------------------------------------------------------------------------

MARK = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.332; cch=1;"
THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCk+/sig=="}
SEARCH: list[Any] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
TURNS: list[Any] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"} | MARK, IMAGE | MARK],
    },
    {
        "role": "assistant",
        "content": [
            THINKING,
            *SEARCH,
            {"type": "text", "text": "C", "citations": [{"cited_text": "x"}]},
            {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"a": 1.50}} | MARK,
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_1",
                "content": [{"type": "tool_reference", "tool_name": "clock"}],
            }
            | MARK,
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}} | MARK,
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
            },
        ],
    },
    {"role": "system", "content": "E", "a_field_of_tomorrow": 1},
]
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 64_000,
    "system": [{"type": "text", "text": BILLING}, {"type": "text", "text": "S"} | MARK],
    "messages": TURNS,
    "tools": [
        TOOLS[0] | MARK,
        TOOLS[1] | {"defer_loading": True, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "cache_control": {"type": "ephemeral"},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "max", "task_budget": {"type": "tokens", "total": 20_000}},
    "context_management": {"edits": [{"type": "compact_20260112"}]},
    "a_field_of_tomorrow": True,
}
BETAS = "context-management-2025-06-27,effort-2025-11-24"


def answer_shortly(call: VendorCall) -> VendorReply:
    """Answers with a signed thought that is not shown, and a text."""
    content = [THINKING | {"thinking": ""}, {"type": "text", "text": "Yes."}]
    usage = anthropic_server.USAGE | {"output_tokens": 9}
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    message["usage"] = usage
    message |= {"content": content, "stop_reason": "end_turn", "stop_sequence": None}
    events = anthropic_server.iterate_events(message)
    if not json.loads(call.body).get("stream"):
        return VendorReply((json.dumps(message).encode(),))
    return VendorReply(tuple(map(anthropic_server.write_event, events)), content_type="text/event-stream")


@contextmanager
def serve_anthropic() -> Iterator[VendorServer]:
    with serve_vendor(answer_shortly) as vendor:
        yield vendor


async def ask_anthropic(vendor: VendorServer, body: Any, profile: VendorProfile = PROFILE) -> Reply:
    models = [VendorModel("m", "anthropic", profile)]
    async with serve_gateway(AnthropicUpstream(), f"{vendor.url}/v1", "k", models) as served:
        return await served.ask("/v1/messages", body, headers={"anthropic-beta": BETAS})


async def test_anthropic_gets_the_conversation_byte_for_byte():
    """Its cache finds only equal prompts, and a changed block makes its signature invalid."""
    with serve_anthropic() as vendor:
        reply = await ask_anthropic(vendor, BODY | {"stream": True})
    (call,) = vendor.calls
    for name in ("system", "messages", "thinking", "output_config", "context_management", "cache_control"):
        assert f'"{name}":{json.dumps(BODY[name])}'.encode() in call.body
    sent = json.loads(call.body)
    assert sent["tools"] == BODY["tools"][:2] and sent["max_tokens"] == 8000
    assert call.headers["anthropic-beta"] == BETAS
    assert "a_field_of_tomorrow" not in sent
    named = ["tools[].web_search_20250305", "a_field_of_tomorrow"]
    assert sorted(reply.headers["x-antiphon-ignored"].split(", ")) == sorted(named)
    start = reply.events()[0]["message"]["usage"]
    counts = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert [start[name] for name in counts] == [20, 5, 100]
    message = rebuild(reply)
    assert message["content"][0] == THINKING | {"thinking": ""}
    assert [message["usage"][name] for name in counts] == [20, 5, 100]


async def test_the_reasoning_of_other_models_does_not_reach_anthropic():
    """It refuses a block whose signature is not its own, and the whole turn with it."""
    foreign = [THINKING | {"signature": signature} for signature in ("antiphon", "antiphon-call:x", "")]
    turns: list[Any] = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "content": [*foreign, THINKING, {"type": "text", "text": "B"}]},
        {"role": "user", "content": "C"},
        {"role": "assistant", "content": foreign},
        {"role": "user", "content": "D"},
    ]
    with serve_anthropic() as vendor:
        reply = await ask_anthropic(vendor, BODY | {"messages": turns})
    sent = json.loads(vendor.calls[0].body)["messages"]
    assert sent == [turns[0], turns[1] | {"content": turns[1]["content"][3:]}, turns[2], turns[4]]
    assert "messages[].content[].thinking" in reply.headers["x-antiphon-ignored"].split(", ")


async def test_a_model_of_anthropics_that_does_not_reason_is_not_asked_to():
    with serve_anthropic() as vendor:
        reply = await ask_anthropic(vendor, BODY, replace(PROFILE, reasoning=False))
    assert reply.status == 200, reply.body
    sent = json.loads(vendor.calls[0].body)
    assert not sent.keys() & {"thinking", "output_config"}
    assert "output_config.effort" in reply.headers["x-antiphon-ignored"]


FOUND: list[Any] = [
    {"type": "text", "text": "I look it up."},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a b"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [
            {"type": "web_search_result", "url": "https://a.example", "encrypted_content": "EqQ/+=="}
        ],
    },
    {"type": "block_of_tomorrow", "number": 1.50},
    {
        "type": "text",
        "text": "It rains",
        "citations": [{"type": "web_search_result_location", "cited_text": "x"}],
    },
    {"type": "text", "text": " in Rome."},
]
TOOL_USAGE = {"web_search_requests": 1, "web_fetch_requests": 0}
HOSTED: list[Any] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 2},
    {"type": "bash_20250124", "name": "bash"},
    TOOLS[0],
]


def answer_by_searching(call: VendorCall) -> VendorReply:
    """Answers as Anthropic's own tools do, and pauses."""
    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
    usage = anthropic_server.USAGE | {"output_tokens": 9, "server_tool_use": TOOL_USAGE}
    message |= {"content": FOUND, "stop_reason": "pause_turn", "stop_sequence": None, "usage": usage}
    message["container"] = {"id": "container_1"}
    if not json.loads(call.body).get("stream"):
        return VendorReply((json.dumps(message).encode(),))
    events = map(anthropic_server.write_event, anthropic_server.iterate_events(message))
    return VendorReply(tuple(events), content_type="text/event-stream")


def list_block_events(body: bytes) -> list[bytes]:
    """The data of the events of blocks, without the blanks of the vendor's JSON."""
    data = [line.removeprefix("data: ") for line in body.decode().split("\n") if "data: {" in line]
    return [
        json.dumps(event, separators=(",", ":")).encode()
        for event in map(json.loads, data)
        if event["type"] in ("content_block_start", "content_block_delta", "content_block_stop")
    ]


@pytest.mark.parametrize("max_tokens", [4000, 64_000], ids=["read whole", "read from a stream"])
@MODES
async def test_what_anthropics_own_tools_did_reaches_a_caller_of_its_api(stream: bool, max_tokens: int):
    """Elsewhere an unknown block ended the answer, and its results were lost for the next turn."""
    model = VendorModel("m", "anthropic", replace(PROFILE, max_output=64_000), passes_hosted_tools=True)
    body = {"model": "m", "max_tokens": max_tokens, "messages": TURNS[:1], "tools": HOSTED, "stream": stream}
    with serve_vendor(answer_by_searching) as vendor:
        async with serve_gateway(AnthropicUpstream(), f"{vendor.url}/v1", "k", [model]) as served:
            reply = await served.ask("/v1/messages", body)
    assert reply.status == 200, reply.body
    (call,) = vendor.calls
    assert json.loads(call.body)["tools"] == HOSTED and "x-antiphon-ignored" not in reply.headers
    if stream:
        sent = b"".join(answer_by_searching(call).parts)
        assert list_block_events(reply.body) == list_block_events(sent)
        message = reply.events()[-2]
        message |= message["delta"]
    else:
        message = reply.json()
        assert message["content"] == FOUND
    assert (message["stop_reason"], message["container"]) == ("pause_turn", {"id": "container_1"})
    assert message["usage"]["server_tool_use"] == TOOL_USAGE
    assert message["usage"]["output_tokens"] == 9


@MODES
async def test_other_apis_get_the_text_between_the_vendors_own_tools(stream: bool):
    """The operator turned the tools on, in the provider's body."""
    model = VendorModel("m", "anthropic", PROFILE, body={"tools": HOSTED[:1]})
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": stream}
    answer = replace_reply(
        answer_by_searching, b"pause_turn", b"end_turn", b"block_of_tomorrow", b"web_tool_result"
    )
    with serve_vendor(answer) as vendor:
        async with serve_gateway(AnthropicUpstream(), f"{vendor.url}/v1", "k", [model]) as served:
            reply = await served.ask("/v1/chat/completions", body)
    assert reply.status == 200, reply.body
    if stream:
        text = "".join(
            choice["delta"].get("content") or ""
            for event in reply.events()[:-1]
            for choice in event["choices"]
        )
    else:
        text = reply.json()["choices"][0]["message"]["content"]
    assert text == "I look it up.It rains in Rome."


def replace_reply(answer: Answer, *pairs: bytes) -> Answer:
    """Replaces texts of an answer: each by the one after it."""

    def replaced(call: VendorCall) -> VendorReply:
        reply = answer(call)
        body = b"".join(reply.parts)
        for old, new in zip(pairs[::2], pairs[1::2], strict=True):
            body = body.replace(old, new)
        return VendorReply((body,), content_type=reply.content_type)

    return replaced


@pytest.mark.parametrize("name", ["openai", "gemini"])
async def test_other_vendors_refuse_tools_whose_schemas_only_anthropic_knows(name: str):
    create, path, key, answer = VENDORS[name]
    with serve_vendor(answer) as vendor:
        async with serve_gateway(
            create(), vendor.url + path, key, [VendorModel("m", name, PROFILE)]
        ) as served:
            body = {"model": "m", "max_tokens": 9, "messages": TURNS[:1], "tools": HOSTED[1:]}
            reply = await served.ask("/v1/messages", body)
    assert not vendor.calls
    assert reply.status == 400 and "tools[0].type bash_20250124" in reply.error["message"]


@pytest.mark.parametrize("name", ["openai", "gemini"])
async def test_other_vendors_get_no_billing_line_and_name_what_only_anthropic_uses(name: str):
    create, path, key, _ = VENDORS[name]
    with serve_vendor(lambda call: VendorReply((b"{}",), 400)) as vendor:
        async with serve_gateway(
            create(), vendor.url + path, key, [VendorModel("m", name, PROFILE)]
        ) as served:
            body = BODY | {"messages": TURNS[:1] + TURNS[3:], "output_config": {"effort": "high"}}
            reply = await served.ask("/v1/messages", body)
    assert vendor.calls, reply.body
    (call,) = vendor.calls
    sent = call.body.decode()
    assert "billing" not in sent and "weather" in sent and "clock" not in sent
