"""Requests of the Messages API: blocks, turns, tools, reasoning, and what is ignored or refused."""

import json
from typing import Any

import pytest

from antiphon.dialects.messages.decode import ITEM_STATE, OPTIONAL, decode_count, decode_messages
from antiphon.domain.messages import (
    OWN_SIGNATURE,
    CacheControl,
    MediaContent,
    MediaKind,
    Role,
    TextContent,
    ToolChoice,
)
from antiphon.domain.request import ConstraintKind, Overflow
from antiphon.domain.vendor_fields import require_local
from antiphon.errors import InvalidValue, MissingParameter, RequestError, UnsupportedParameter

HELLO = [{"role": "user", "content": "Hello!"}]
TOOL = {
    "name": "get_weather",
    "description": "w",
    "input_schema": {"type": "object", "properties": {"city": {}}},
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln"}}


def call(**fields: Any):
    return decode_messages(json.dumps({"model": "m", "max_tokens": 9, "messages": HELLO} | fields).encode())


def asked(**fields: Any):
    return call(**fields).request


def conversation(**fields: Any):
    return asked(**fields).prompts[0]


def refused(**fields: Any):
    with pytest.raises(RequestError) as refusal:
        asked(**fields)
    return refusal.value


def talk(*turns: tuple[str, Any]):
    return [{"role": role, "content": content} for role, content in turns]


def result(call_id: str = "toolu_1", **fields: Any):
    return {"type": "tool_result", "tool_use_id": call_id, "content": "rain"} | fields


def test_the_options_are_those_of_the_caller():
    request = asked(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a", "b"], stream=True)
    sampling, output = request.sampling, request.output
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (output.max_tokens, output.stop, output.overflow) == (9, ("a", "b"), Overflow.SHORTEN)
    assert not request.is_buffered and request.optional == OPTIONAL


def test_max_tokens_is_required():
    body = json.dumps({"model": "m", "messages": HELLO}).encode()
    with pytest.raises(MissingParameter) as refusal:
        decode_messages(body)
    assert refusal.value.param == "max_tokens"
    model, conversation, ignored = decode_count(body)
    assert (model, conversation.messages[0].text, ignored) == ("m", "Hello!", ())


def test_a_text_and_a_list_of_one_block_are_the_same_prompt():
    block = [{"type": "text", "text": "Hello!", "cache_control": {"type": "ephemeral"}}]
    plain, marked = conversation(), conversation(messages=talk(("user", block)), system=block)
    assert [message.text for message in marked.messages] == ["Hello!", *(m.text for m in plain.messages)]
    assert marked.messages[1].content == (TextContent("Hello!", CacheControl()),)


def test_several_texts_are_paragraphs():
    blocks = [{"type": "text", "text": text} for text in ("One.", "", "Two.")]
    assert conversation(messages=talk(("user", blocks))).messages[0].text == "One.\n\nTwo."


def test_messages_of_one_role_in_a_row_are_one_turn():
    messages = conversation(messages=talk(("user", "One."), ("user", "Two."))).messages
    assert [(message.role, message.text) for message in messages] == [(Role.USER, "One.\n\nTwo.")]


def test_a_system_message_stays_where_it_is():
    messages = conversation(
        system="First.",
        messages=talk(("user", "Q"), ("system", "Second."), ("assistant", "A"), ("user", "R")),
    ).messages
    assert [message.role for message in messages] == [
        Role.SYSTEM, Role.USER, Role.SYSTEM, Role.ASSISTANT, Role.USER,
    ]  # fmt: skip


def test_the_accounting_line_of_claude_code_is_left_out():
    """Its version would change the beginning of each prompt (ggml-org/llama.cpp#20623)."""
    line = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.0b8; cch=1;"}
    rest = {"type": "text", "text": "You are an agent."}
    assert conversation(system=[line, rest]).messages[0].text == "You are an agent."
    assert conversation(system=[line]).messages[0].role is Role.USER


def test_calls_and_their_results_keep_their_ids_and_order():
    other = CALL | {"id": "toolu_2"}
    results = [result("toolu_2", is_error=True), result(), {"type": "text", "text": "And now?"}]
    messages = conversation(
        tools=[TOOL], messages=talk(("user", "Q"), ("assistant", [CALL, other]), ("user", results))
    ).messages
    assistant, second, first, rest = messages[1:]
    assert [(each.id, json.loads(each.arguments)) for each in assistant.tool_calls] == [
        ("toolu_1", {"city": "Köln"}), ("toolu_2", {"city": "Köln"}),
    ]  # fmt: skip
    assert (second.role, second.tool_call_id, second.is_error, second.text) == (
        Role.TOOL,
        "toolu_2",
        True,
        "rain",
    )
    assert (first.tool_call_id, first.is_error) == ("toolu_1", False)
    assert (rest.role, rest.text) == (Role.USER, "And now?")


def test_a_result_without_its_call_is_refused_in_the_words_that_clients_know():
    error = refused(messages=talk(("user", [result()])))
    assert error.param == "messages[0].content[0].tool_use_id"
    assert "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1" in error.message
    late = talk(
        ("user", "Q"), ("assistant", [CALL]), ("user", "no"), ("assistant", "A"), ("user", [result()])
    )
    assert "unexpected" in refused(messages=late).message


def test_results_hold_text_images_and_definitions_of_tools():
    content = [
        {"type": "text", "text": "seen"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "tool_reference", "tool_name": "get_weather"},
    ]
    message = conversation(
        tools=[TOOL | {"defer_loading": True}],
        messages=talk(("user", "Q"), ("assistant", [CALL]), ("user", [result(content=content)])),
    ).messages[2]
    text, image, definition = message.content
    assert (
        isinstance(text, TextContent) and isinstance(image, MediaContent) and image.media_type == "image/png"
    )
    assert definition.text.startswith('<functions><function>{"description": "w", "name": "get_weather"')


def test_a_deferred_tool_is_seen_once_a_result_refers_to_it():
    deferred = TOOL | {"defer_loading": True}
    assert conversation(tools=[deferred]).tools is None
    reference = result(content=[{"type": "tool_reference", "tool_name": "get_weather"}])
    found = conversation(
        tools=[deferred], messages=talk(("user", "Q"), ("assistant", [CALL]), ("user", [reference]))
    )
    assert [tool.name for tool in found.tools.callable] == ["get_weather"] and found.tools.shown == ()


def test_many_references_to_a_long_definition_fill_no_memory():
    """A body of 200 KB stood for 20 MB, and one of 32 MB for more than any machine has."""
    tool = TOOL | {"description": "x" * 200_000}
    for count in (1, 100):
        references = result(content=[{"type": "tool_reference", "tool_name": "get_weather"}] * count)
        body: dict[str, Any] = {
            "tools": [tool],
            "messages": talk(("user", "Q"), ("assistant", [CALL]), ("user", [references])),
        }
        if count == 1:
            assert len(conversation(**body).messages[2].text) > 200_000
        else:
            assert "more than 16,777,216 characters" in refused(**body).message


def test_documents_and_search_results_are_text():
    blocks = [
        {"type": "document", "title": "Book", "context": "old", "source": {"type": "text", "data": "Text."}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Part."}]}},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "hit"}]},
    ]
    text = conversation(messages=talk(("user", blocks))).messages[0].text
    assert text == "[Book]\n\nold\n\nText.\n\nPart.\n\n[t](s)\n\nhit"
    pdf: Any = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
    }
    (part,) = conversation(messages=talk(("user", [pdf]))).messages[0].content
    assert part.kind is MediaKind.DOCUMENT and part.field == "messages[0].content[0].source"
    for source in ({"type": "url", "url": "https://a/b.pdf"}, pdf["source"] | {"media_type": "text/rtf"}):
        error = refused(messages=talk(("user", [pdf | {"source": source}])))
        assert error.param.startswith("messages[0].content[0].source")


def test_reasoning_of_this_server_goes_to_the_template_and_that_of_a_vendor_back_to_it():
    own = {"type": "thinking", "thinking": "hm", "signature": OWN_SIGNATURE}
    foreign = {"type": "thinking", "thinking": "so", "signature": "Eq=="}
    hidden = {"type": "redacted_thinking", "data": "x"}
    content = [own, {"type": "text", "text": "A"}, foreign, CALL, hidden]
    message = conversation(
        messages=talk(("user", "Q"), ("assistant", content), ("user", [result()]))
    ).messages[1]
    assert (message.text, message.reasoning) == ("A", "hmso")
    assert message.thinking_blocks == (
        {"type": "thinking", "thinking": "so", "signature": "Eq==", "after": {"text": 1, "calls": 0}},
        {"type": "redacted_thinking", "data": "x", "after": {"text": 1, "calls": 1}},
    )


def test_an_item_of_reasoning_that_cannot_be_read_is_named():
    kept = {"type": "reasoning", "id": "rs_1", "encrypted_content": "x", "provider": "open"}
    for text, ids in (
        (json.dumps(kept), ["rs_1"]),
        ("no JSON", []),
        ('{"type": "reasoning"}', []),
        ('{"x": ' + "[" * 100_000, []),
    ):
        thought = {"type": "thinking", "thinking": "Hm.", "signature": ITEM_STATE + text}
        content = [thought, {"type": "text", "text": "A"}]
        decoded = call(messages=talk(("user", "Q"), ("assistant", content), ("user", "R")))
        blocks = decoded.request.prompts[0].messages[1].thinking_blocks
        assert [block["id"] for block in blocks] == ids
        assert ("messages[].content[].signature" in decoded.ignored) is (not ids)


@pytest.mark.parametrize(
    ("thinking", "config", "effort", "budget", "omits"),
    [
        (None, None, None, None, False),
        ({"type": "enabled", "budget_tokens": 2048}, None, None, 2048, False),
        ({"type": "adaptive", "display": "omitted"}, {"effort": "high"}, "high", None, True),
        ({"type": "disabled"}, {"effort": "high"}, "none", None, False),
    ],
)
def test_reasoning_is_as_the_caller_says(thinking, config, effort, budget, omits):
    decoded = call(thinking=thinking, output_config=config, max_tokens=4096)
    reasoning = decoded.request.prompts[0].reasoning
    assert (reasoning.effort, reasoning.budget, decoded.omits_thinking) == (effort, budget, omits)


def test_a_wrong_budget_is_refused():
    enabled = {"type": "enabled", "budget_tokens": 2048}
    assert refused(thinking=enabled).message == "thinking.budget_tokens must be less than max_tokens"
    assert refused(thinking={"type": "enabled"}, max_tokens=4096).param == "thinking.budget_tokens"
    assert refused(thinking=enabled | {"budget_tokens": 9}).param == "thinking.budget_tokens"
    assert refused(thinking=enabled | {"type": "adaptive"}).param == "thinking.budget_tokens"


@pytest.mark.parametrize(
    ("choice", "expected", "parallel", "allowed"),
    [
        (None, ToolChoice.AUTO, True, None),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice.AUTO, False, None),
        ({"type": "any"}, ToolChoice.REQUIRED, True, None),
        ({"type": "tool", "name": "get_weather"}, ToolChoice.REQUIRED, False, {"get_weather"}),
        ({"type": "none"}, ToolChoice.NONE, True, None),
    ],
)
def test_tool_choices(choice, expected, parallel, allowed):
    tools = conversation(tools=[TOOL], tool_choice=choice).tools
    assert (tools.choice, tools.parallel, tools.allowed) == (expected, parallel, allowed)


def test_no_tools_take_any_choice_but_one_that_needs_them():
    assert conversation(tools=[], tool_choice={"type": "auto"}).tools is None
    assert refused(tools=[], tool_choice={"type": "any"}).param == "tool_choice"
    assert refused(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}).param == "tool_choice.name"
    assert refused(tools=[TOOL, TOOL]).param == "tools[1].name"


def test_examples_stand_in_the_description():
    tool = conversation(tools=[TOOL | {"input_examples": [{"city": "Bonn"}]}]).tools.tools[0]
    assert tool.description == 'w\n\nExamples:\n{"city": "Bonn"}'


def test_tools_that_anthropic_runs_or_knows_are_named_for_other_engines():
    search = {"type": "web_search_20250305", "name": "web_search"}
    asked_call = call(tools=[search, TOOL])
    assert [tool.name for tool in asked_call.request.prompts[0].tools.tools] == ["get_weather"]
    original = asked_call.request.prompts[0].original
    assert original.names == original.hosted_tools == ("tools[].web_search_20250305",)
    assert call(tools=[search], tool_choice={"type": "auto"}).request.prompts[0].tools is None
    assert (
        refused(tools=[search], tool_choice={"type": "tool", "name": "web_search"}).param
        == "tool_choice.name"
    )
    almost = conversation(tools=[TOOL | {"type": "custom\n"}])
    assert almost.tools is None and len(almost.original.hosted_tools) == 1, (
        "Anthropic's encoder leaves it out"
    )
    bash = asked(tools=[{"type": "bash_20250124", "name": "bash"}])
    assert bash.prompts[0].original.own_tools == ("tools[0].type bash_20250124",)
    with pytest.raises(UnsupportedParameter) as error:
        require_local(bash)
    assert error.value.param == "tools[0].type"
    body = {"model": "m", "messages": HELLO, "tools": [{"type": "bash_20250124", "name": "bash"}]}
    with pytest.raises(UnsupportedParameter, match="input_schema"):
        decode_count(json.dumps(body).encode())


def test_the_form_of_the_answer_is_a_constraint():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    answer_format = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": answer_format}}, {"output_format": answer_format}):
        constraint = asked(**fields).output.constraint
        assert constraint.kind is ConstraintKind.JSON_SCHEMA and json.loads(constraint.source) == schema
    both = refused(output_config={"format": answer_format}, output_format=answer_format)
    assert both.param == "output_format"


def test_a_last_message_of_the_assistant_is_continued():
    prompt = conversation(messages=talk(("user", "Q"), ("assistant", "It is")))
    assert (prompt.continues, prompt.generation_prompt) == (True, False)
    assert "whitespace" in refused(messages=talk(("user", "Q"), ("assistant", "It is "))).message
    assert "tool_use" in refused(messages=talk(("user", "Q"), ("assistant", [CALL]))).message
    paused = [
        {"type": "text", "text": "I search. "},
        {"type": "server_tool_use", "id": "s", "name": "web_search"},
    ]
    assert conversation(messages=talk(("user", "Q"), ("assistant", paused))).continues
    assert "whitespace" in refused(messages=talk(("user", "Q"), ("assistant", paused[::-1]))).message


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"new_field": 1}, "new_field"),
        ({"messages": [{"role": "user", "content": "Hi", "clear_at": 1}]}, "messages[].clear_at"),
        (
            {"messages": talk(("user", [{"type": "text", "text": "Hi", "new": 1}]))},
            "messages[].content[].new",
        ),
        (
            {
                "system": [
                    {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral", "scope": "g"}}
                ]
            },
            "system[].cache_control.scope",
        ),
        (
            {
                "messages": talk(
                    ("user", [{"type": "server_tool_use", "id": "x"}, {"type": "text", "text": "a"}])
                )
            },
            "messages[].content[].server_tool_use",
        ),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[]"),
        ({"output_config": {"task_budget": {"total": 9}}}, "output_config.task_budget"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"service_tier": "auto"}, "service_tier"),
        ({"betas": ["x"]}, "betas"),
        (
            {
                "messages": talk(
                    (
                        "user",
                        [
                            {
                                "type": "document",
                                "source": {"type": "text", "data": "T"},
                                "citations": {"enabled": True},
                            }
                        ],
                    )
                )
            },
            "messages[].content[].citations",
        ),
    ],
)
def test_what_has_no_effect_is_named(fields, ignored):
    """Parts of the conversation are named by the engines, since Anthropic uses them."""
    found = call(**fields)
    assert found.ignored + found.request.prompts[0].original.names == (ignored,)


def test_a_request_of_claude_code_is_taken_whole():
    """Its fields as version 2.1.332 sends them. None of them is ignored."""
    mark: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    decoded = call(
        system=[{"type": "text", "text": "You are a Claude agent."} | mark],
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "Q"}],
            },
            {"role": "system", "content": [{"type": "text", "text": "Environment."} | mark]},
        ],
        tools=[
            TOOL | {"eager_input_streaming": True},
            TOOL | {"name": "DeferredToolPlaceholder", "defer_loading": True},
        ],
        metadata={"user_id": json.dumps({"device_id": "f" * 64, "account_uuid": "", "session_id": "s" * 36})},
        max_tokens=32000,
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "high"},
        stream=True,
    )
    assert decoded.ignored == () and decoded.stream
    assert [tool.name for tool in decoded.request.prompts[0].tools.tools] == ["get_weather"]
    assert "device_id" in decoded.attribution.end_user


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        ({"messages": []}, "messages"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": talk(("tool", "x"))}, "messages[0].role"),
        ({"messages": talk(("user", [CALL]))}, "messages[0].content[0]"),
        ({"messages": talk(("user", [{"type": "text"}]))}, "messages[0].content[0].text"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a\n", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ],
)
def test_what_is_wrong_is_named(fields, param):
    error = refused(**fields)
    assert isinstance(error, InvalidValue | MissingParameter | UnsupportedParameter)
    assert error.param == param and error.message.startswith(param)


def test_a_mark_of_the_whole_request_is_at_the_end_of_the_prompt():
    message = conversation(cache_control={"type": "ephemeral", "ttl": "1h"}).messages[-1]
    assert message.content == (TextContent("Hello!", CacheControl("1h")),)


def test_marks_of_results_answers_and_calls_are_at_the_last_text():
    """Claude Code marks the newest result. Without its mark Anthropic would cache nothing of the turn."""
    mark: dict[str, Any] = {"cache_control": {"type": "ephemeral"}}
    messages = conversation(
        messages=talk(
            ("user", "Q"),
            ("assistant", [{"type": "text", "text": "A"}, CALL | mark]),
            ("user", [result(**mark)]),
            ("assistant", [{"type": "text", "text": "B"} | mark]),
            ("user", "Q"),
        )
    ).messages
    assert [message.content for message in messages] == [
        (),
        (TextContent("A", CacheControl()),),
        (TextContent("rain", CacheControl()),),
        (TextContent("B", CacheControl()),),
        (),
    ]


def test_empty_instructions_are_no_message():
    empty = [{"type": "text", "text": ""}]
    messages = talk(("user", "Q"), ("system", empty), ("system", ""))
    for system in ("", [], empty):
        assert [each.role for each in conversation(system=system, messages=messages).messages] == [Role.USER]


def test_arguments_stay_json():
    body = json.dumps(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": talk(("assistant", [CALL | {"input": {"n": 0}}]), ("user", "Q")),
        }
    )
    with pytest.raises(InvalidValue) as refusal:
        decode_messages(body.replace('"n": 0', '"n": 1e999').encode())
    assert refusal.value.param == "messages[0].content[0].input"
