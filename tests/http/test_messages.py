"""The Messages API over the wire: streams, errors in its form, silence, and what a vendor gets."""

import asyncio
from typing import Any

from antiphon.errors import EngineBusy
from antiphon_testing import Script, ScriptedAnswer, scripted_info
from tests.support.calling_engine import CallingEngine
from tests.support.http_server import request_bytes, serving, serving_tokens

HELLO: dict[str, Any] = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]}


async def test_an_answer_and_its_stream():
    async with serving() as served:
        whole = await served.ask("/v1/messages?beta=true", HELLO)
        assert whole.status == 200 and whole.json()["content"][0]["text"] == "Hello world!"
        assert whole.headers["request-id"] == whole.headers["x-request-id"]
        streamed = await served.ask("/v1/messages", HELLO | {"stream": True})
        assert streamed.headers["request-id"] == streamed.headers["x-request-id"]
        names = [line for line in streamed.body.decode().split("\n") if line.startswith("event: ")]
        assert names == [
            "event: message_start",
            "event: content_block_start",
            *["event: content_block_delta"] * 3,
            "event: content_block_stop",
            "event: message_delta",
            "event: message_stop",
        ]


async def test_errors_have_the_form_of_the_product():
    async with serving(key="sk-key-of-the-test-000000000000") as served:
        refused = await served.ask("/v1/messages", HELLO)
        assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert refused.headers["request-id"] == refused.json()["request_id"]
    async with serving() as served:
        for body, kind, status in (
            (HELLO | {"model": "nobody"}, "not_found_error", 404),
            (HELLO | {"max_tokens": 0}, "invalid_request_error", 400),
        ):
            reply = await served.ask("/v1/messages", body)
            assert reply.status == status and reply.json()["type"] == "error"
            assert reply.error["type"] == kind
            assert reply.headers["request-id"] == reply.json()["request_id"] == reply.headers["x-request-id"]
        unknown = await served.ask("/v1/messages/batches", HELLO)
        assert (unknown.status, unknown.error["type"]) == (404, "not_found_error")


async def test_a_busy_engine_is_overloaded():
    async with serving(ScriptedAnswer(error=EngineBusy("all places are taken"))) as served:
        reply = await served.ask("/v1/messages", HELLO)
        assert (reply.status, reply.error["type"]) == (503, "overloaded_error")
        assert int(reply.headers["retry-after"]) > 0


async def test_a_stream_that_breaks_ends_with_an_error_and_no_stop():
    broken = ScriptedAnswer(error=EngineBusy("gone"), error_after=1)
    async with serving(broken) as served:
        reply = await served.ask("/v1/messages", HELLO | {"stream": True})
        events = reply.events()
        assert events[-1]["error"]["type"] == "overloaded_error"
        assert "message_stop" not in [event["type"] for event in events]


async def test_pings_are_sent_while_the_answer_is_awaited():
    """Claude Code sends a request again if no byte comes for some minutes."""
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate), keep_alive_interval=0.05) as served, served.line() as line:
        await line.send(request_bytes("/v1/messages", HELLO | {"stream": True}))
        head = await line.until(b"event: ping")
        assert b"200 OK" in head and b"message_start" not in head
        gate.set()
        assert b"message_start" in await line.until(b"message_stop")


async def test_unknown_fields_are_named_and_not_refused():
    async with serving() as served:
        reply = await served.ask("/v1/messages", HELLO | {"a_field_of_tomorrow": 1})
        assert reply.status == 200 and reply.headers["x-antiphon-ignored"] == "a_field_of_tomorrow"


async def test_models_have_the_form_of_the_product_for_its_clients():
    version = {"anthropic-version": "2023-06-01"}
    async with serving() as served:
        listed = await served.ask("/v1/models?limit=1000", headers=version)
        (model,) = listed.json()["data"]
        assert listed.json() == {"data": [model], "has_more": False, "first_id": "m", "last_id": "m"}
        assert (model["type"], model["id"], model["lifecycle"]) == ("model", "m", "active")
        assert model["max_input_tokens"] > 0 and model["created_at"].endswith("Z")
        assert (await served.ask("/v1/models/", headers=version)).json() == listed.json()
        assert (await served.ask("/v1/models/m", headers=version)).json() == model
        assert (await served.ask("/v1/models/nobody", headers=version)).status == 404
        for query in ("limit=0", "limit=1001", "limit=x", "after_id=nobody", "before_id=nobody"):
            assert (await served.ask(f"/v1/models?{query}", headers=version)).status == 400
        assert (await served.ask("/v1/models")).json()["object"] == "list"


SEARCH = {"name": "ToolSearch", "description": "Finds tools.", "input_schema": {"type": "object"}}
FETCH = {
    "name": "WebFetch",
    "description": "Fetches a page.",
    "input_schema": {"type": "object", "properties": {"url": {"type": "string"}}},
    "defer_loading": True,
}
PLACEHOLDER = {
    "name": "DeferredToolPlaceholder",
    "input_schema": {"type": "object", "properties": {}},
    "defer_loading": True,
}
WRITE = {"name": "Write", "description": "Writes a file.", "input_schema": {"type": "object"}}
FETCH_CALL = '<tool_call>\n{"name": "WebFetch", "arguments": {"url": "a"}}\n</tool_call>'


async def test_a_found_tool_is_described_where_it_was_found_and_the_prompt_before_stays():
    """Claude Code's ToolSearch. Elsewhere the model never learns of the tool, or the whole prompt is computed
    again at each search."""
    engine = CallingEngine(Script(FETCH_CALL), info=scripted_info(16384))
    found = {"type": "tool_reference", "tool_name": "WebFetch"}
    turns = [
        *HELLO["messages"],
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [found]}]},
    ]
    async with serving_tokens(m=engine) as served:
        before = HELLO | {"max_tokens": 99, "tools": [PLACEHOLDER, SEARCH, WRITE]}
        assert (await served.ask("/v1/messages", before)).status == 200
        after = before | {"messages": turns, "tools": [PLACEHOLDER, SEARCH, FETCH, WRITE]}
        reply = await served.ask("/v1/messages", after)
    first, second = engine.list_prompts()
    head = first.removesuffix("<|im_start|>assistant\n")
    assert second.startswith(head) and "WebFetch" not in head and '"name": "WebFetch"' in second
    assert "DeferredToolPlaceholder" not in second
    assert ["WebFetch" in source for source in engine.constraints] == [False, True]
    (block,) = reply.json()["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "WebFetch", {"url": "a"})
    assert reply.json()["stop_reason"] == "tool_use"
