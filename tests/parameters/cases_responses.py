"""The Responses API."""

from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CITY, RESPONSES, RESPONSES_COUNT

BOTH = (*RESPONSES, *RESPONSES_COUNT)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": CITY,
}
ASKED: dict[str, Any] = {"input": "What is the weather in Berlin?", "max_output_tokens": 200}
TOOLED = ASKED | {"tools": [WEATHER]}
CALLING = TOOLED | {"tool_choice": "required"}
DIGITS = {
    "format": {
        "type": "json_schema",
        "name": "n",
        "schema": {"type": "integer", "minimum": 10, "maximum": 99},
    }
}
STORY: dict[str, Any] = {"input": "Tell a story.", "max_output_tokens": 80}
THINKING: Any = {"max_output_tokens": 40, "text": DIGITS}


def said(answer: Answer) -> str:
    """The text of an answer."""
    assert answer.status == 200, answer.body
    return "".join(
        part["text"]
        for item in answer.json["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def items(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [item["type"] for item in answer.json["output"]]


def read(answer: Answer) -> int:
    """Tokens of the prompt, counted or answered."""
    assert answer.status == 200, answer.body
    counted: int = (answer.json if "input_tokens" in answer.json else answer.json["usage"])["input_tokens"]
    return counted


@case(BOTH, "model", {}, "cantor", "nobody")
def the_model_is_the_one_that_is_named(found: Answer, missing: Answer) -> None:
    assert found.status == 200
    assert missing.status == 404 and missing.json["error"]["code"] == "model_not_found"


@case(BOTH, "input", {}, "Hi", [{"role": "user", "content": "Hi, " * 20}])
@case(BOTH, "instructions", {}, "Be kind.", "Be kind and friendly and helpful, and answer with few words.")
@case(BOTH, "tools", {}, [], [WEATHER])
def a_longer_prompt_has_more_tokens(short: Answer, long: Answer) -> None:
    assert read(long) > read(short) + 5


@case(RESPONSES, "tool_choice", TOOLED, "none", "required")
def required_has_to_call(quiet: Answer, called: Answer) -> None:
    assert "function_call" not in items(quiet) and {*items(called)} == {"function_call"}


@case(RESPONSES_COUNT, "tool_choice", {"tools": [WEATHER]}, "required", {"type": "function", "name": "other"})
def a_tool_that_is_not_there_is_refused(counted: Answer, refused: Answer) -> None:
    assert counted.status == 200 and "tool_choice.name" in refused.refusal


@case(BOTH, "parallel_tool_calls", {"tools": [WEATHER]}, False, "x")
@case(BOTH, "truncation", {}, "disabled", "sometimes")
@case(RESPONSES, "stream_options", {}, {"include_obfuscation": False}, {"include_obfuscation": 1})
@case(RESPONSES, "max_tool_calls", {}, 3, 0)
@case(RESPONSES, "client_metadata", {}, {"session_id": "s"}, "s")
@case(RESPONSES, "prompt_cache_retention", {}, "24h", "1h")
def a_wrong_value_is_refused(taken: Answer, refused: Answer) -> None:
    assert taken.status == 200 and "x-antiphon-ignored" not in taken.headers
    assert refused.status == 400


@case(BOTH, "previous_response_id", {}, OUT, "resp_unknown")
def a_response_that_is_not_there_is_refused(plain: Answer, refused: Answer) -> None:
    assert plain.status == 200
    assert (refused.status, refused.json["error"]["code"]) == (400, "previous_response_not_found")


@case(RESPONSES, "reasoning", THINKING, {"effort": "none"}, {"summary": "auto"}, thinks=True)
def reasoning_is_an_item(none: Answer, some: Answer) -> None:
    assert items(none) == ["message"] and items(some) == ["reasoning"]
    assert some.json["output"][0]["summary"][0]["text"]


@case(RESPONSES_COUNT, "reasoning", {}, OUT, {"effort": "high"})
def an_effort_that_a_model_lacks_is_named_and_not_refused(plain: Answer, named: Answer) -> None:
    assert plain.status == named.status == 200 and plain.json == named.json
    assert named.headers["x-antiphon-ignored"] == "reasoning.effort"
    assert "x-antiphon-ignored" not in plain.headers


@case(RESPONSES, "text", {}, OUT, DIGITS)
def the_text_has_the_form_of_the_schema(free: Answer, held: Answer) -> None:
    assert said(held).isdecimal() and not said(free).isdecimal()


@case(RESPONSES_COUNT, "text", {}, DIGITS, {"format": {"type": "xml"}})
def another_form_is_refused(counted: Answer, refused: Answer) -> None:
    assert counted.status == 200 and refused.status == 400 and "text.format.type" in refused.refusal


@case(RESPONSES, "max_output_tokens", {}, 2, 5)
def the_answer_is_as_long_as_the_limit(short: Answer, long: Answer) -> None:
    assert [each.json["usage"]["output_tokens"] for each in (short, long)] == [2, 5]
    assert short.json["incomplete_details"] == {"reason": "max_output_tokens"}


@case(RESPONSES, "temperature", STORY, 0, 2)
@case(RESPONSES, "top_p", STORY | {"temperature": 2}, 0, 1)
@case(RESPONSES, "presence_penalty", STORY, 2, -2)
@case(RESPONSES, "frequency_penalty", STORY, 2, -2)
def other_tokens_are_another_text(first: Answer, second: Answer) -> None:
    assert said(first) != said(second)


@case(RESPONSES, "top_logprobs", {}, OUT, 2)
@case(RESPONSES, "include", {}, [], ["message.output_text.logprobs"])
def the_text_has_its_log_probabilities(plain: Answer, scored: Answer) -> None:
    found = [answer.json["output"][0]["content"][0]["logprobs"] for answer in (plain, scored)]
    assert not found[0] and "".join(each["token"] for each in found[1]).startswith(said(scored))


@case(RESPONSES, "stream", {}, False, True)
def a_stream_is_events(whole: Answer, streamed: Answer) -> None:
    assert whole.json["object"] == "response" and not whole.events
    assert [streamed.events[0]["type"], streamed.events[-2]["type"]] == [
        "response.created",
        "response.incomplete",
    ]


@case(RESPONSES, "store", {}, OUT, False)
def the_answer_says_whether_it_is_stored(stored: Answer, not_stored: Answer) -> None:
    assert stored.json["store"] is True and not_stored.json["store"] is False


@case(RESPONSES, "metadata", {}, OUT, {"team": "red"}, ledgered=True)
def tags_are_in_the_ledger(nobody: Answer, red: Answer) -> None:
    assert [each.entry["tags"] for each in (nobody, red) if each.entry] == [{}, {"team": "red"}]


@case(RESPONSES, "user", {}, OUT, "ada", ledgered=True)
@case(RESPONSES, "safety_identifier", {}, OUT, "ada", ledgered=True)
def the_end_user_is_in_the_ledger(nobody: Answer, ada: Answer) -> None:
    assert [each.entry["end_user"] for each in (nobody, ada) if each.entry] == [None, "ada"]


@case(RESPONSES, "prompt_cache_key", {}, OUT, "k")
def a_hint_for_vendors_is_named(plain: Answer, named: Answer) -> None:
    assert "x-antiphon-ignored" not in plain.headers
    assert named.headers["x-antiphon-ignored"] == "prompt_cache_key"


@case(RESPONSES, "service_tier", {}, "auto", "flex")
def another_tier_is_refused(taken: Answer, refused: Answer) -> None:
    assert taken.status == 200 and "service_tier" in refused.refusal
