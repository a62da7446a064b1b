"""Schemas of tools that agents send in each turn: kept once, with what was built from them."""

import json
from typing import Any

import pytest

from antiphon.constraints.shared_schemas import LONGEST_SCHEMA, MOST_BYTES, share_schema
from antiphon.dialects.messages.decode import decode_count
from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.messages import MOST_BUILT, Message, Role, Tool, Tools
from antiphon.domain.request import Conversation
from antiphon.errors import InvalidValue
from antiphon.rendering.tagged_calls import list_tool_types
from antiphon.rendering.template.chat_template import ChatTemplate, SpecialTokens
from antiphon.rendering.template.messages import build_tools
from antiphon.rendering.template.shield import Shield
from antiphon_testing.scripted_engine import FakeClock
from tests.support.responses_call import call
from tests.support.tool_templates import HERMES

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "A <|im_end|> path."},
        "lines": {"type": "integer"},
    },
    "required": ["path"],
}
OTHER = {"name": "first", "parameters": {"type": "object", "properties": {}}}


def copy(schema: Any) -> Any:
    return json.loads(json.dumps(schema))


def read_tools() -> list[Tool]:
    """The same tool in three dialects, each time in another place."""
    turn = [{"role": "user", "content": "Hi"}]
    functions = [OTHER, {"name": "read", "parameters": SCHEMA}]
    chat = {"model": "m", "messages": turn, "tools": [{"type": "function", "function": f} for f in functions]}
    tools = [{"name": "read", "input_schema": SCHEMA}, {"name": "last", "input_schema": {"type": "object"}}]
    counted = {"model": "m", "messages": turn, "tools": tools}
    listed = [{"type": "function", "name": "read", "strict": False, "parameters": copy(SCHEMA)}]
    conversations = [
        decode_chat(json.dumps(chat).encode()).request.prompts[0],
        decode_count(json.dumps(counted).encode(), unseal=lambda text: text)[1],
        call(tools=listed).request.prompts[0],
    ]
    return [
        next(tool for tool in conversation.tools.tools if tool.name == "read")
        for conversation in conversations
        if isinstance(conversation, Conversation) and conversation.tools is not None
    ]


def test_a_tool_is_built_once_for_all_turns_and_dialects():
    first, *others = [*read_tools(), *read_tools()]
    assert len(others) == 5 and first.parameters == SCHEMA
    for tool in others:
        assert tool.parameters is first.parameters
        assert tool.supported_schema is first.supported_schema
        assert list_tool_types(tool) is list_tool_types(first)


def test_a_template_sees_a_shared_tool_as_any_other():
    shared = read_tools()[0]
    plain = Tool(shared.name, shared.description, SCHEMA)
    shield = Shield(("<|im_start|>", "<|im_end|>"))
    usual, unusual = shield.cover(()), shield.cover(("\ue000",))
    built = [build_tools((tool,), cover) for cover in (usual, unusual) for tool in (shared, shared, plain)]
    assert built[0] == built[1] == built[2] != built[3] == built[4] == built[5]
    parameters: list[Any] = [each[0]["function"] for each in built]
    assert parameters[0]["parameters"] is parameters[1]["parameters"]
    assert parameters[3]["parameters"] is not parameters[4]["parameters"], "such covers are too many to keep"


def test_a_prompt_has_the_same_text_with_and_without_shared_tools():
    template = ChatTemplate(HERMES, SpecialTokens(("<|im_start|>", "<|im_end|>"), "", ""))
    message = Message(Role.USER, "Hi")
    shared = read_tools()[0]
    prompts = [
        template.render(Conversation((message,), tools=tools), FakeClock())
        for tools in (Tools((shared,)), Tools((shared,)), Tools((Tool(shared.name, None, SCHEMA),)))
    ]
    assert prompts[0] == prompts[1] == prompts[2]
    assert '"lines"' in prompts[0][0].text


def test_what_json_writes_alike_and_is_not_equal_is_not_shared():
    infinite, empty = ({"type": "object", "default": value} for value in (float("inf"), None))
    shared = share_schema(infinite)
    assert share_schema(empty).schema is empty
    assert share_schema(copy(infinite)) is shared
    true, one = ({"type": "object", "const": value} for value in (True, 1))
    assert share_schema(true) is not share_schema(one)


def test_a_refused_schema_is_refused_again():
    deep: Any = {}
    for _ in range(60):
        deep = {"type": "object", "properties": {"a": deep}}
    for _ in range(2):
        with pytest.raises(InvalidValue, match="deep"):
            call(tools=[{"type": "function", "name": "f", "strict": False, "parameters": copy(deep)}])


def test_kept_schemas_have_a_bound():
    schema = {"description": "x" * LONGEST_SCHEMA}
    assert share_schema(schema) is not share_schema(copy(schema))
    first: Any = {"description": "first", "type": "object"}
    shared = share_schema(first)
    assert share_schema(copy(first)) is shared
    for number in range(2 * MOST_BYTES // 60_000):
        for _ in range(2):
            share_schema({"description": f"{number}" + "x" * 60_000})
    assert share_schema(copy(first)) is not shared
    for number in range(2 * MOST_BUILT):
        assert shared.remember(number, lambda: [number]) == [number]  # noqa: B023 - called at once
    assert len(shared._built) <= MOST_BUILT
