"""The Messages API."""

from typing import Any

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import ANTHROPIC, ANTHROPIC_COUNT, CITY

BOTH = (*ANTHROPIC, *ANTHROPIC_COUNT)
WEATHER = {"name": "get_weather", "description": "Get the weather of a city.", "input_schema": CITY}
TOOLED = {"tools": [WEATHER], "max_tokens": 60}
DIGITS = {"type": "json_schema", "schema": {"type": "integer", "minimum": 10, "maximum": 99}}
MARK = {"type": "ephemeral"}
THINKING: Any = {"max_tokens": 1200, "output_config": {"format": DIGITS}}


def said(answer: Answer) -> str:
    """The text of an answer."""
    assert answer.status == 200, answer.body
    return "".join(block.get("text", "") for block in answer.json["content"])


def blocks(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [block["type"] for block in answer.json["content"]]


def read(answer: Answer) -> int:
    """Tokens of the prompt, counted or answered."""
    assert answer.status == 200, answer.body
    if "input_tokens" in answer.json:
        counted: int = answer.json["input_tokens"]
        return counted
    usage = answer.json["usage"]
    prompt: int = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return prompt


@case(BOTH, "model", {}, "cantor", "nobody")
def the_model_is_the_one_that_is_named(found: Answer, missing: Answer) -> None:
    assert found.status == 200
    assert missing.status == 404 and missing.json["error"]["type"] == "not_found_error"


@case(BOTH, "messages", {}, [{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Hi, " * 20}])
@case(BOTH, "system", {}, "Be kind.", "Be kind and friendly and helpful, and answer with few words.")
@case(BOTH, "tools", {}, [], [WEATHER])
def a_longer_prompt_has_more_tokens(short: Answer, long: Answer) -> None:
    assert read(long) > read(short) + 5


@case(ANTHROPIC, "tool_choice", TOOLED, {"type": "none"}, {"type": "any"})
def any_has_to_call(quiet: Answer, called: Answer) -> None:
    assert "tool_use" not in blocks(quiet)
    assert blocks(called) == ["tool_use"] and called.json["stop_reason"] == "tool_use"


@case(
    ANTHROPIC_COUNT, "tool_choice", {"tools": [WEATHER]}, {"type": "any"}, {"type": "tool", "name": "other"}
)
def a_tool_that_is_not_there_is_refused(counted: Answer, refused: Answer) -> None:
    assert counted.status == 200 and "tool_choice.name" in refused.refusal


@case(
    ANTHROPIC,
    "thinking",
    THINKING,
    {"type": "disabled"},
    {"type": "enabled", "budget_tokens": 1024},
    thinks=True,
)
def reasoning_is_a_block(none: Answer, some: Answer) -> None:
    assert blocks(none) == ["text"] and blocks(some) == ["thinking", "text"]
    assert some.json["content"][0]["signature"]


@case(ANTHROPIC_COUNT, "thinking", {}, {"type": "adaptive"}, {"type": "enabled", "budget_tokens": 9})
def a_budget_below_the_least_is_refused(counted: Answer, refused: Answer) -> None:
    assert counted.status == 200 and "thinking.budget_tokens" in refused.refusal


@case(ANTHROPIC, "output_config", {}, OUT, {"format": DIGITS})
@case(ANTHROPIC, "output_format", {}, OUT, DIGITS)
def the_text_has_the_form_of_the_schema(free: Answer, held: Answer) -> None:
    assert said(held).isdecimal() and not said(free).isdecimal()


@case(ANTHROPIC_COUNT, "output_config", {}, {"format": DIGITS}, {"format": {"type": "xml"}})
@case(ANTHROPIC_COUNT, "output_format", {}, DIGITS, {"type": "xml"})
def another_form_is_refused(counted: Answer, refused: Answer) -> None:
    assert counted.status == 200 and refused.status == 400 and "json_schema" in refused.refusal


@case(BOTH, "cache_control", {}, MARK, {"type": "other"})
def a_mark_has_one_type(taken: Answer, refused: Answer) -> None:
    assert taken.status == 200 and refused.status == 400 and "cache_control" in refused.refusal


@case(BOTH, "context_management", {}, OUT, {"edits": [{"type": "compact_20260112"}]})
def an_edit_without_effect_is_named(plain: Answer, named: Answer) -> None:
    assert plain.status == named.status == 200
    assert named.headers["x-antiphon-ignored"] == "context_management.edits[]"
    assert "x-antiphon-ignored" not in plain.headers


@case(ANTHROPIC, "max_tokens", {}, 2, 5)
def the_answer_is_as_long_as_the_limit(short: Answer, long: Answer) -> None:
    assert [each.json["usage"]["output_tokens"] for each in (short, long)] == [2, 5]
    assert short.json["stop_reason"] == "max_tokens"


@case(ANTHROPIC, "stream", {}, False, True)
def a_stream_is_events(whole: Answer, streamed: Answer) -> None:
    assert whole.json["type"] == "message" and not whole.events
    assert [streamed.events[0]["type"], streamed.events[-1]["type"]] == ["message_start", "message_stop"]


@case(
    ANTHROPIC,
    "temperature",
    {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 40},
    0,
    1,
)
@case(
    ANTHROPIC,
    "top_p",
    {"temperature": 1, "messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 40},
    0,
    1,
)
@case(ANTHROPIC, "top_k", {"temperature": 1, "messages": [{"role": "user", "content": "Tell a story."}],
      "max_tokens": 40}, 1, 0)  # fmt: skip
def the_likeliest_tokens_are_another_text(greedy: Answer, drawn: Answer) -> None:
    assert said(greedy) != said(drawn)


@case(ANTHROPIC, "stop_sequences", {"max_tokens": 30}, [], [" "])
def a_stop_sequence_is_told(free: Answer, stopped: Answer) -> None:
    assert " " in said(free) and " " not in said(stopped)
    assert (stopped.json["stop_reason"], stopped.json["stop_sequence"]) == ("stop_sequence", " ")


@case(ANTHROPIC, "metadata", {}, OUT, {"user_id": "ada"}, ledgered=True)
def the_end_user_is_in_the_ledger(nobody: Answer, ada: Answer) -> None:
    assert [each.entry["end_user"] for each in (nobody, ada) if each.entry] == [None, "ada"]


@case(
    ANTHROPIC_COUNT,
    "output_config",
    {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    OUT,
    {"effort": "high"},
)
def what_a_model_without_reasoning_lacks_is_named_and_not_refused(plain: Answer, named: Answer) -> None:
    assert plain.status == named.status == 200 and plain.json == named.json
    assert named.headers["x-antiphon-ignored"] == "output_config.effort"
    assert "output_config.effort" not in plain.headers.get("x-antiphon-ignored", "")
