"""Tools of a request, and the calls and results in its messages: what they become, and what is refused."""

import json

import pytest

from antiphon.dialects.openai import tokens
from antiphon.dialects.openai.dialect import decode_chat
from antiphon.domain.messages import Message, Role, Tool, ToolCall, ToolChoice, Tools
from antiphon.domain.request import Conversation
from antiphon.errors import AntiphonError

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
HELLO = {"role": "user", "content": "hi"}


def tool(name="weather", **more):
    return {"type": "function", "function": {"name": name, "parameters": CITY} | more}


def call(identity="c1", name="weather", arguments='{"city": "Bern"}', **more):
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}} | more


def called(*calls, **more):
    return {"role": "assistant", "tool_calls": list(calls)} | more


def result(identity="c1", **more):
    return {"role": "tool", "content": "rain", "tool_call_id": identity} | more


def chat(**fields):
    return decode_chat(json.dumps({"model": "m", "messages": [HELLO]} | fields).encode())


def tools_of(**fields):
    return chat(**fields).request.prompts[0].tools


def test_a_tool_is_taken_as_it_is_described():
    made = tools_of(
        tools=[tool(description="Tells.", strict=True), {"type": "function", "function": {"name": "f"}}]
    )
    assert made == Tools((Tool("weather", "Tells.", CITY, strict=True), Tool("f")))
    assert made.tools[0].schema == CITY | {"additionalProperties": False}
    assert made.tools[1].schema == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("choice", "kind", "names", "parallel"),
    [
        (None, ToolChoice.AUTO, ["weather", "time"], True),
        ("auto", ToolChoice.AUTO, ["weather", "time"], True),
        ("none", ToolChoice.NONE, [], True),
        ("required", ToolChoice.REQUIRED, ["weather", "time"], True),
        ({"type": "function", "function": {"name": "time"}}, ToolChoice.REQUIRED, ["time"], False),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "time"}}],
                },
            },
            ToolChoice.AUTO,
            ["time"],
            True,
        ),
    ],
)
def test_the_choice_says_which_may_be_called(choice, kind, names, parallel):
    made = tools_of(tools=[tool(), tool("time")], tool_choice=choice)
    assert (made.choice, [each.name for each in made.callable], made.parallel) == (
        kind,
        names,
        parallel,
    )
    assert [each.name for each in made.tools] == ["weather", "time"]


def test_one_call_at_a_time_is_asked_for_by_name():
    assert not tools_of(tools=[tool()], parallel_tool_calls=False).parallel


def test_no_tools_are_no_tools():
    assert tools_of(tools=[], tool_choice="auto", parallel_tool_calls=None) is None


def test_calls_and_results_become_messages():
    messages = [HELLO, called(call(), call("c2", index=1), content=None), result(), result("c2")]
    conversation = chat(messages=messages).request.prompts[0]
    calls = tuple(ToolCall(identity, "weather", '{"city": "Bern"}') for identity in ("c1", "c2"))
    assert conversation.messages[1:] == (
        Message(Role.ASSISTANT, "", tool_calls=calls),
        Message(Role.TOOL, "rain", tool_call_id="c1"),
        Message(Role.TOOL, "rain", tool_call_id="c2"),
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        *((text, text) for text in ("", "{", '{"a": "b', "[]", "not JSON", '{"a": 1, "a": 2}', '{"a": NaN}',
                                    '{"a": "\\ud800"}', '{"a": 1e999}', "[" * 100_000)),
        ({"a": ["ö"]}, '{"a": ["ö"]}'),
        ({}, "{}"),
        (None, ""),
    ],
)  # fmt: skip
def test_arguments_are_what_the_model_wrote(given, text):
    made = chat(messages=[HELLO, called(call(arguments=given)), result()]).request.prompts[0].messages[1]
    assert made.tool_calls == (ToolCall("c1", "weather", text),)


def test_arguments_may_be_missing():
    bare = {"id": "c1", "function": {"name": "weather"}}
    assert (
        chat(messages=[called(bare), result()]).request.prompts[0].messages[0].tool_calls[0].arguments == ""
    )


def test_an_object_of_arguments_holds_finite_numbers():
    body = json.dumps({"model": "m", "messages": [called(call(arguments={"a": 7}))]})
    with pytest.raises(AntiphonError) as caught:
        decode_chat(body.replace("7", "1e999").encode())
    assert (caught.value.code, caught.value.param) == ("invalid_value", ARGUMENTS)


def test_what_cannot_be_kept_is_left_out_and_named():
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}, "b": {"pattern": "(?=x)", "maximun": 3}},
        "not": {"pattern": "y"},
    }
    made = chat(tools=[tool(parameters=parameters)])
    where = "tools[0].function.parameters"
    named = ("pattern", "maximun", "not", "uniqueItems")
    assert made.relaxed == tuple(f"{where}: {name}" for name in named)
    (only,) = made.request.prompts[0].tools.tools
    assert only.parameters == parameters
    kept = {"type": "object", "properties": {"a": {"type": "array"}, "b": {}}}
    assert only.schema == kept | {"additionalProperties": False}


@pytest.mark.parametrize("opening", [{"additionalProperties": True}, {"allOf": [{}]}, {"$ref": "#/$defs/a"}])
def test_undeclared_arguments_need_a_schema_that_mentions_them(opening):
    parameters = CITY | {"$defs": {"a": {}}} | opening
    (only,) = tools_of(tools=[tool(parameters=parameters, strict=True)]).tools
    assert only.schema == parameters


EMPTY: tuple[dict[str, object] | None, ...] = (
    None,
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {
        "type": "object",
        "properties": {},
        "required": [],
        "description": "None.",
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("parameters", EMPTY)
def test_a_tool_that_declares_no_properties_takes_none(parameters, strict):
    (only,) = tools_of(tools=[tool(parameters=parameters, strict=strict)]).tools
    assert only.schema["additionalProperties"] is False and only.schema["type"] == "object"


@pytest.mark.parametrize(
    "opening",
    [
        {"additionalProperties": True},
        {"additionalProperties": {"type": "integer"}},
        {"required": ["a"]},
        {"minProperties": 1},
        {"const": {"a": 1}},
        {"allOf": [{}]},
    ],
)
def test_a_schema_that_asks_for_properties_stays_open(opening):
    for given in ({"type": "object"} | opening, {"type": "object", "properties": {}} | opening):
        (only,) = tools_of(tools=[tool(parameters=given, strict=True)]).tools
        assert only.schema == given


def test_a_strict_schema_is_left_as_it_is():
    given = {"type": "object", "not": {"type": "string"}}
    made = chat(tools=[tool(parameters=given, strict=True)])
    assert made.relaxed == ()
    assert made.request.prompts[0].tools.tools[0].schema == given


def test_tokenize_takes_tools_with_messages():
    body = {"messages": [HELLO], "tools": [tool()]}
    prompt = tokens.decode_tokenize(json.dumps(body).encode()).prompt
    assert isinstance(prompt, Conversation) and prompt.tools == Tools((Tool("weather", None, CITY),))


DEEP: dict[str, object] = {}
for _ in range(60):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

ARGUMENTS = "messages[0].tool_calls[0].function.arguments"

WRONG = [
    ({"tools": {}}, "invalid_value", "tools"),
    ({"tools": [tool()] * 2}, "invalid_value", "tools[1].function.name"),
    ({"tools": [tool(f"f{at}") for at in range(129)]}, "invalid_value", "tools"),
    ({"tools": [tool("")]}, "invalid_value", "tools[0].function.name"),
    ({"tools": [tool("a b")]}, "invalid_value", "tools[0].function.name"),
    ({"tools": [tool("a" * 65)]}, "invalid_value", "tools[0].function.name"),
    ({"tools": [tool("a\n")]}, "invalid_value", "tools[0].function.name"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [tool(colour="red")]}, "unknown_parameter", "tools[0].function.colour"),
    ({"tools": [tool() | {"colour": 1}]}, "unknown_parameter", "tools[0].colour"),
    ({"tools": [tool(parameters=[])]}, "invalid_value", "tools[0].function.parameters"),
    ({"tools": [tool(parameters={"type": "array"})]}, "invalid_value", "tools[0].function.parameters.type"),
    ({"tools": [tool(parameters=DEEP)]}, "invalid_value", "tools[0].function.parameters"),
    (
        {"tools": [tool(parameters={"type": "object", "properties": []})]},
        "invalid_value",
        "tools[0].function.parameters",
    ),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"parallel_tool_calls": True}, "invalid_value", "parallel_tool_calls"),
    ({"tools": [], "parallel_tool_calls": False}, "invalid_value", "parallel_tool_calls"),
    ({"tools": [tool()], "tool_choice": "any"}, "invalid_value", "tool_choice"),
    (
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "x"}}},
        "invalid_value",
        "tool_choice.function.name",
    ),
    (
        {"tools": [tool()], "tool_choice": {"type": "function"}},
        "missing_required_parameter",
        "tool_choice.function",
    ),
    (
        {"tools": [tool()], "tool_choice": {"type": "allowed_tools"}},
        "missing_required_parameter",
        "tool_choice.allowed_tools",
    ),
    ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
    ({"function_call": {"name": "f"}}, "unsupported_parameter", "function_call"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [HELLO | {"tool_calls": [call()]}]}, "invalid_value", "messages[0].tool_calls"),
    ({"messages": [HELLO | {"tool_call_id": "c"}]}, "invalid_value", "messages[0].tool_call_id"),
    ({"messages": [result()]}, "invalid_value", "messages[0].tool_call_id"),
    (
        {"messages": [called(call()), {"role": "tool", "content": "a"}]},
        "missing_required_parameter",
        "messages[1].tool_call_id",
    ),
    ({"messages": [called(call(arguments=["a"]))]}, "invalid_value", ARGUMENTS),
    ({"messages": [called(call(arguments=3))]}, "invalid_value", ARGUMENTS),
    ({"messages": [called(call(arguments=DEEP))]}, "invalid_value", ARGUMENTS),
    ({"messages": [called(call(name="a b"))]}, "invalid_value", "messages[0].tool_calls[0].function.name"),
    ({"messages": [called(call(index=3))]}, "invalid_value", "messages[0].tool_calls[0].index"),
    (
        {"messages": [called(call() | {"type": "custom"})]},
        "unsupported_parameter",
        "messages[0].tool_calls[0].type",
    ),
    ({"messages": [{"role": "function", "content": "a"}]}, "unsupported_parameter", "messages[0].role"),
]


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("any", "tool_choice must be auto, none or required"),
        ({"type": "x"}, "tool_choice.type must be allowed_tools or function"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}},
            "tool_choice.allowed_tools.mode must be auto or required",
        ),
    ],
)
def test_a_choice_that_is_none_is_told_which_there_are(choice, says):
    with pytest.raises(AntiphonError) as caught:
        chat(tools=[tool()], tool_choice=choice)
    assert caught.value.message.startswith(says)


@pytest.mark.parametrize(("fields", "code", "param"), WRONG, ids=[str(at) for at in range(len(WRONG))])
def test_what_is_wrong_is_refused_with_its_place(fields, code, param):
    with pytest.raises(AntiphonError) as caught:
        chat(**fields)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, code, param)
    assert param in error.message
