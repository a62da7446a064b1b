"""Requests of Empower's page: defaults, ranges, the three forms of messages, tools, and what is refused."""

import json

import pytest

from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.fields import OTHERS, TABLES, EmpowerScope
from antiphon.domain.messages import Role, ToolChoice
from antiphon.domain.request import ConstraintKind
from antiphon.errors import (
    InvalidValue,
    MissingParameter,
    RequestError,
    UnknownParameter,
    UnsupportedParameter,
)

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def asked(report=False, **fields):
    return decode_chat(json.dumps({"model": "m", "messages": "hi"} | fields).encode(), report)


def refused(**fields):
    with pytest.raises(RequestError) as refusal:
        asked(**fields)
    return refusal.value


def test_what_is_left_out_is_what_the_page_says():
    call = asked()
    sampling, output = call.request.sampling, call.request.output
    assert (output.max_tokens, output.choices, call.stream) == (256, 1, False)
    assert (sampling.temperature, sampling.top_p) == (1.0, 1.0)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.0, 0.0)
    assert not sampling.ignore_eos


def test_null_is_the_default_too():
    names = ("n", "max_tokens", "temperature", "top_p", "frequency_penalty", "ignore_eos", "stream", "tools")
    assert asked(**dict.fromkeys(names)) == asked()


@pytest.mark.parametrize(
    ("name", "least", "most", "below", "above"),
    [
        ("temperature", 0, 2, -0.01, 2.01),
        ("top_p", 0, 1, -0.01, 1.01),
        ("frequency_penalty", -2, 2, -2.01, 2.01),
        ("presence_penalty", -2, 2, -2.01, 2.01),
    ],
)
def test_ranges_hold_both_of_their_ends(name, least, most, below, above):
    assert getattr(asked(**{name: least}).request.sampling, name) == least
    assert getattr(asked(**{name: most}).request.sampling, name) == most
    for value in (below, above):
        error = refused(**{name: value})
        assert isinstance(error, InvalidValue) and error.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 0), ("n", 129), ("n", 1.5), ("n", "2"), ("n", True),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "8"),
        ("ignore_eos", 1), ("stream", "yes"), ("temperature", "0"), ("model", ""), ("model", 3),
        ("include_thinking", "no"), ("tools", {}), ("tools", [TOOL] * 129), ("messages", {}),
    ],
)  # fmt: skip
def test_what_is_of_another_type_or_range_is_refused_by_its_name(name, value):
    error = refused(**{name: value})
    assert (error.status, error.param) == (400, name)


def test_model_and_messages_are_required():
    for name in ("model", "messages"):
        body = {"model": "m", "messages": "hi"}
        del body[name]
        with pytest.raises(MissingParameter) as missing:
            decode_chat(json.dumps(body).encode())
        assert missing.value.param == name


# --- messages -----------------------------------------------------------------------------------------------


def words(call):
    return [[(message.role, message.text) for message in prompt.messages] for prompt in call.request.prompts]


def test_a_text_is_one_message_of_the_user():
    assert words(asked(messages="Hello!")) == [[(Role.USER, "Hello!")]]
    assert asked(messages="Hello!") == asked(messages=[{"role": "user", "content": "Hello!"}])


def test_a_list_of_texts_is_a_user_message_per_prompt():
    call = asked(messages=["one", "two"], n=3)
    assert words(call) == [[(Role.USER, "one")], [(Role.USER, "two")]]
    assert call.request.output.choices == 3


def test_a_list_of_objects_is_one_conversation():
    talk = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]
    assert words(asked(messages=talk)) == [[(Role.SYSTEM, "Be short."), (Role.USER, "Hi")]]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("", "messages"),
        ([], "messages"),
        (["one", ""], "messages[1]"),
        (["one", {"role": "user", "content": "two"}], "messages"),
        (["one", None], "messages[1]"),
        ([3], "messages[0]"),
        ([["one"]], "messages[0]"),
        ([{"role": "wizard", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "mood": "good"}], "messages[0].mood"),
        ([{"role": "user"}], "messages[0].content"),
        (["x"] * 257, "messages"),
    ],
)
def test_messages_of_no_known_form_are_refused(messages, param):
    error = refused(messages=messages)
    assert (error.status, error.param) == (400, param)


def test_prompts_times_choices_have_a_bound():
    assert refused(messages=["x"] * 3, n=100).param == "messages"
    assert len(asked(messages=["x"] * 2, n=128).request.prompts) == 2


# --- tools --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice.AUTO),
        ("auto", ToolChoice.AUTO),
        ("none", ToolChoice.NONE),
        ("any", ToolChoice.REQUIRED),
        ("required", ToolChoice.REQUIRED),
        ({"type": "function", "function": {"name": "get_weather"}}, ToolChoice.REQUIRED),
    ],
    ids=str,
)
def test_tool_choice_any_has_to_call(choice, expected):
    (prompt,) = asked(tools=[TOOL], tool_choice=choice).request.prompts
    assert prompt.tools.choice is expected


def test_every_prompt_of_several_is_shown_the_tools():
    assert all(prompt.tools.tools for prompt in asked(messages=["a", "b"], tools=[TOOL]).request.prompts)


def test_128_tools_are_taken():
    tools = [TOOL | {"function": {"name": f"tool_{at}"}} for at in range(128)]
    (prompt,) = asked(tools=tools).request.prompts
    assert len(prompt.tools.tools) == 128


def test_a_choice_without_tools_or_of_an_unknown_one_is_refused():
    assert refused(tool_choice="any").param == "tool_choice"
    named = {"type": "function", "function": {"name": "other"}}
    assert refused(tools=[TOOL], tool_choice=named).param == "tool_choice.function.name"


# --- the rest -----------------------------------------------------------------------------------------------


def test_biases_are_refused_in_the_pages_words_and_none_is_fine():
    error = refused(logit_bias={"5": 1})
    assert isinstance(error, UnsupportedParameter)
    assert (error.message, error.param) == ("logit_bias is not currently supported", "logit_bias")
    assert refused(logit_bias=[]).param == "logit_bias"
    assert asked(logit_bias={}) == asked()


@pytest.mark.parametrize(
    "field", [field for field in OTHERS if field.support is FieldSupport.REFUSED], ids=str
)
def test_table_refusals_name_the_field_unless_it_changes_nothing(field):
    error = refused(**{field.name: "surprise"})
    assert isinstance(error, UnsupportedParameter) and error.param == field.name
    for harmless in field.accepted_values:
        assert asked(**{field.name: harmless}) == asked()


def test_json_mode_is_a_constraint():
    constraint = asked(response_format={"type": "json_object"}).request.output.constraint
    assert constraint.kind is ConstraintKind.JSON_OBJECT


def test_thinking_is_shown_only_when_asked_for():
    (quiet,), (loud,) = (asked(include_thinking=said).request.prompts for said in (False, True))
    assert (quiet.reasoning.shown, loud.reasoning.shown) == (False, True)
    assert (quiet.reasoning.is_required, loud.reasoning.is_required) == (False, True), (
        "and refused where there is none"
    )
    assert loud.reasoning.field_names.effort == "include_thinking"


def test_fields_of_other_or_no_endpoints_are_refused_or_reported():
    assert isinstance(refused(surprise=1), UnknownParameter)
    for name in ("guided_regex", "mirostat_target", "cache_salt", "best_friend"):
        assert refused(**{name: "x"}).code == "unknown_parameter", "the shape can hold it, the table says no"
    assert asked(report=True, surprise=1).ignored == ("surprise",)


def test_what_the_table_says_is_supported_reaches_the_request():
    said = {
        "n": 2, "max_tokens": 7, "temperature": 0.5, "top_p": 0.5, "frequency_penalty": 0.5,
        "presence_penalty": 0.5, "ignore_eos": True, "stream": True, "tools": [TOOL], "tool_choice": "any",
        "include_thinking": True, "response_format": {"type": "json_object"}, "stop": "x",
        "stop_token_ids": [3], "seed": 5, "top_k": 4, "min_p": 0.5, "repetition_penalty": 1.5,
        "messages": "other", "model": "other", "parallel_tool_calls": False, "user": "ada",
    }  # fmt: skip
    supported = {
        name for name, field in TABLES[EmpowerScope.CHAT].items() if field.support is FieldSupport.SUPPORTED
    }
    assert said.keys() == supported
    for name, value in said.items():
        tools = {"tools": [TOOL]} if name in ("tool_choice", "parallel_tool_calls") else {}
        assert asked(**tools, **{name: value}) != asked(**tools), name
