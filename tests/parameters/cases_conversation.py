"""Messages, their parts, tools and calls."""

from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import (
    CALL,
    CALLED,
    CALLED_FUNCTION,
    CHAT,
    CHATS,
    FUNCTION,
    MESSAGES,
    PART,
    REFUSAL,
    TOOL,
    USER,
    WEATHER,
)

ASKED = {"messages": [USER], "max_tokens": 60}
HELLO: Any = [{"role": "user", "content": "Who are you?"}]
TIME: Any = {"type": "object", "properties": {"time": {"type": "string"}}, "required": ["time"]}
ALARM = {"type": "function", "function": {"name": "set_alarm", "parameters": TIME}}
TWO = ASKED | {"tools": [WEATHER, ALARM]}
FORCED = {"tool_choice": "required", "messages": HELLO, "max_tokens": 60}


def prompt(answer: Answer) -> tuple[int, ...]:
    """The prompt that a recorded engine got."""
    (request,) = answer.asked
    return request.prompt.ids


@case(CHATS, "messages", {}, HELLO, [{"role": "user", "content": "What is two plus two?"}])
def another_question_has_another_answer(one: Answer, other: Answer) -> None:
    assert one.text != other.text


@case(CHATS, "tools", ASKED, OUT, [WEATHER])
def a_tool_is_called(without: Answer, called: Answer) -> None:
    assert called.calls == [("get_weather", '{"city": "Berlin"}')] and called.finish == "tool_calls"
    assert not without.calls and without.text


@case(CHATS, "tool_choice", TWO, "auto", "none", {"type": "function", "function": {"name": "set_alarm"}})
def who_chooses_decides(auto: Answer, none: Answer, named: Answer) -> None:
    assert [each.calls[0][0] for each in (auto, named)] == ["get_weather", "set_alarm"]
    assert not none.calls and none.text


@case(CHATS, "tool_choice", TWO | {"messages": HELLO}, "auto", "required")
def one_that_has_to_call_calls(auto: Answer, required: Answer) -> None:
    assert required.calls and auto.text and not auto.calls


ABOUT: Any = {"messages": [HELLO[0], {"role": "assistant", "content": "I am cantor."}, USER]}


@case(CHATS, "memory_strategy", ABOUT, OUT, {"k": 1}, {"name": "last_k", "params": {"k": 1}}, recorded=True)
def the_model_sees_the_last_messages(whole: Answer, beside: Answer, inside: Answer) -> None:
    assert prompt(beside) == prompt(inside) and len(prompt(beside)) < len(prompt(whole))
    assert beside.headers["x-antiphon-memory"] == "kept=1, dropped=2, summarised=0"
    assert "x-antiphon-memory" not in whole.headers


SEA = {"table_id": "sea", "search_query": "harbour boat", "k": 1}


@case(CHATS, "rag_params", {"max_tokens": 4}, OUT, SEA, SEA | {"search_query": "tower", "k": 2})
def the_model_answers_from_a_table(plain: Answer, boat: Answer, tower: Answer) -> None:
    found = [answer.json["references"]["chunks"] for answer in (boat, tower)]
    assert [len(chunks) for chunks in found] == [1, 1] and "references" not in plain.json
    assert "boat" in found[0][0]["text"] and "tower" in found[1][0]["text"]
    assert plain.json["usage"]["prompt_tokens"] < boat.json["usage"]["prompt_tokens"]


LONGER = {"messages": [USER], "tools": [WEATHER], "tool_choice": "required", "max_tokens": 120}


@case(CHAT, "parallel_tool_calls", LONGER | {"min_tokens": 30}, True, False)
def there_is_no_second_call_where_none_may_be(several: Answer, single: Answer) -> None:
    assert len(several.calls) > 1
    assert single.status == 400 and "no token is left" in single.refusal


@case(CHATS, "parallel_tool_calls", FORCED | {"tools": [WEATHER]}, True, False, recorded=True)
def the_engine_is_held_to_one_call(several: Answer, single: Answer) -> None:
    bounds = [each.asked[0].constraint for each in (several, single)]
    assert None not in bounds and bounds[0] != bounds[1]


@case(MESSAGES, "role", {}, "user", "assistant", recorded=True)
def who_speaks_matters(user: Answer, assistant: Answer) -> None:
    assert prompt(user) != prompt(assistant)


@case(MESSAGES, "role", {}, "user", "nobody")
def an_unknown_role_is_refused(user: Answer, nobody: Answer) -> None:
    assert user.status == 200 and nobody.status == 400 and "role" in nobody.refusal


@case(MESSAGES, "content", {}, "Who are you?", "What is two plus two?")
def what_is_said_matters(one: Answer, other: Answer) -> None:
    assert one.text != other.text


@case(MESSAGES, "name", {}, OUT, "Ada", recorded=True)
def a_template_sees_who_speaks(nameless: Answer, named: Answer) -> None:
    assert len(prompt(named)) > len(prompt(nameless))


@case(MESSAGES, "name", {}, OUT, "Ada")
def a_name_that_the_template_does_not_read_is_named(nameless: Answer, named: Answer) -> None:
    assert "x-antiphon-ignored" not in nameless.headers and nameless.text == named.text
    assert named.headers["x-antiphon-ignored"] == "messages[].name"


TURN: Any = [USER, {"role": "assistant", "content": "Look."}]


@case(MESSAGES, "tool_calls", {"messages": TURN}, OUT, [CALLED])
def the_model_sees_that_it_called(without: Answer, called: Answer) -> None:
    assert called.usage["prompt_tokens"] > without.usage["prompt_tokens"] + 10


RESULT: Any = [USER, {"role": "assistant", "tool_calls": [CALLED]}, {"role": "tool", "content": "rain"}]


@case(MESSAGES, "tool_call_id", {"messages": RESULT}, "call-1", "call-2", OUT)
def a_result_belongs_to_a_call(right: Answer, wrong: Answer, without: Answer) -> None:
    assert right.status == 200 and wrong.status == without.status == 400
    assert "tool_call_id" in wrong.refusal


@case(PART, "text", {}, "Who are you?", "What is two plus two?")
def a_part_is_read(one: Answer, other: Answer) -> None:
    assert one.text != other.text


SILENT: Any = [USER, {"role": "assistant", "content": None}]


@case(MESSAGES, "refusal", {"messages": SILENT}, OUT, "I will not say that.")
@case(REFUSAL, "refusal", {}, "No.", "I will not say that.")
def the_model_sees_that_it_refused(short: Answer, long: Answer) -> None:
    assert long.usage["prompt_tokens"] > short.usage["prompt_tokens"] + 2


@case(PART, "type", {}, "text", "video")
@case(REFUSAL, "type", {}, "refusal", "video")
@case(TOOL, "type", {}, "function", "custom")
@case(CALL, "type", {}, "function", "custom")
def other_types_are_refused(taken: Answer, refused: Answer) -> None:
    assert taken.status == 200 and refused.status == 400 and "type" in refused.refusal


@case(TOOL, "function", FORCED, WEATHER["function"], ALARM["function"])
def the_function_that_is_given_is_called(weather: Answer, alarm: Answer) -> None:
    assert (weather.calls[0][0], alarm.calls[0][0]) == ("get_weather", "set_alarm")


@case(FUNCTION, "name", FORCED, "get_weather", "look_up")
def a_call_bears_the_name(one: Answer, other: Answer) -> None:
    assert (one.calls[0][0], other.calls[0][0]) == ("get_weather", "look_up")


@case(FUNCTION, "description", {}, OUT, "Get the weather of a city, which has to be named by the caller.")
def the_description_is_shown(without: Answer, described: Answer) -> None:
    assert described.usage["prompt_tokens"] > without.usage["prompt_tokens"] + 5


@case(FUNCTION, "parameters", FORCED, WEATHER["function"]["parameters"], TIME)
def arguments_satisfy_the_schema(city: Answer, time: Answer) -> None:
    assert city.calls[0][1].startswith('{"city": ') and time.calls[0][1].startswith('{"time": ')


@case(FUNCTION, "strict", FORCED | {"tools": [
    {"type": "function", "function": {"name": "f", "parameters": {
        "properties": {"a": {"type": "array", "uniqueItems": True}}}}}]}, False, True)  # fmt: skip
def what_cannot_be_kept_is_refused(relaxed: Answer, strict: Answer) -> None:
    assert relaxed.status == 200 and relaxed.headers["x-antiphon-relaxed"]
    assert strict.status == 400 and strict.refusal


@case(CALL, "id", {}, "call-1", "call-2")
def a_result_finds_its_call(right: Answer, wrong: Answer) -> None:
    assert right.status == 200 and wrong.status == 400 and "call" in wrong.refusal


@case(CALL, "index", {}, OUT, 0, 1)
def an_index_is_its_place(without: Answer, right: Answer, wrong: Answer) -> None:
    assert without.text == right.text and wrong.status == 400 and "index" in wrong.refusal


@case(
    CALL,
    "function",
    {},
    {"name": "get_weather", "arguments": '{"city": "Berlin"}'},
    {"name": "get_weather", "arguments": '{"city": "Berlin", "day": "next Sunday"}'},
)
@case(CALLED_FUNCTION, "name", {}, "get_weather", "get_the_weather_of_some_town")
@case(CALLED_FUNCTION, "arguments", {}, '{"city": "Berlin"}', '{"city": "Berlin", "day": "next Sunday"}')
def the_model_sees_what_was_called(short: Answer, long: Answer) -> None:
    assert long.usage["prompt_tokens"] > short.usage["prompt_tokens"] + 2
