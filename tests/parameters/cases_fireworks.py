"""Fields that only Fireworks has, or has otherwise."""

from typing import Any

from tests.parameters.cases_output import cached
from tests.parameters.cases_reasoning import thought
from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import FIREWORKS_CHAT, FIREWORKS_TEXT

MUCH = {"max_tokens": 100_000, "stop": "e"}
FOUR = {"type": "grammar", "grammar": "root ::= [a-c] [a-c] [a-c] [a-c]"}
HELD: Any = {
    "messages": [{"role": "user", "content": "What is two plus two?"}],
    "response_format": FOUR,
    "max_tokens": 60,
}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
LONG_TALK = {"messages": [{"role": "user", "content": "Say the word. " * 40}], "max_tokens": 1}
CALLING: Any = {
    "messages": [{"role": "user", "content": "What is the weather in Berlin?"}],
    "tools": [{"type": "function", "function": {"name": "look"}}],
    "tool_choice": "any",
    "max_tokens": 60,
}


def unending(asker: Asker) -> dict[str, Any]:
    """Calls of a model that does not like to end: it goes on with another where it may."""
    (end,) = asker.ids("<|im_end|>")
    return {**CALLING, "logit_bias": {str(end): -100}}


@case((*FIREWORKS_CHAT, *FIREWORKS_TEXT), "context_length_exceeded_behavior", MUCH, OUT, "truncate", "error")
def too_many_tokens_are_lowered_or_refused(silent: Answer, lowered: Answer, refused: Answer) -> None:
    assert silent.text == lowered.text != ""
    assert refused.status == 400 and "100000 in the completion" in refused.refusal


@case(FIREWORKS_TEXT, "max_completion_tokens", {"max_tokens": None, "ignore_eos": True}, OUT, 3, 9)
def so_many_tokens_are_made(usual: Answer, short: Answer, long: Answer) -> None:
    assert [each.usage["completion_tokens"] for each in (usual, short, long)] == [16, 3, 9]


@case(FIREWORKS_TEXT, "top_logprobs", {"logprobs": True}, OUT, 2)
def each_place_has_its_likeliest(none: Answer, two: Answer) -> None:
    found = [
        {len(place["top_logprobs"]) for place in each.choices[0]["logprobs"]["content"]}
        for each in (none, two)
    ]
    assert found == [{0}, {2}]


@case(FIREWORKS_TEXT, "logprobs", {}, 2, True)
def a_number_gives_arrays_and_true_entries(arrays: Answer, entries: Answer) -> None:
    assert len(arrays.choices[0]["logprobs"]["token_ids"]) == arrays.usage["completion_tokens"]
    assert "".join(each["token"] for each in entries.choices[0]["logprobs"]["content"]) == entries.text


@case(FIREWORKS_TEXT, "images", {"prompt": "What is <image>?"}, OUT, [], [IMAGE])
def images_are_counted_and_then_refused(without: Answer, none: Answer, one: Answer) -> None:
    assert without.status == 200
    assert "one image for each <image>" in none.refusal
    assert "images[0]" in one.refusal, "no local model sees images"


@case(
    FIREWORKS_TEXT,
    "prompt_cache_isolation_key",
    {"prompt": "Say the word. " * 40, "max_tokens": 1},
    "mine",
    "mine",
    "yours",
)
@case(FIREWORKS_CHAT, "prompt_cache_isolation_key", LONG_TALK, "mine", "mine", "yours")  # fmt: skip
def only_the_same_key_finds_what_is_kept(first: Answer, again: Answer, other: Answer) -> None:
    assert cached(again) > 50 and cached(other) < 20
    assert first.status == 200


@case(FIREWORKS_CHAT, "parallel_tool_calls", unending, True, False)
def there_is_no_second_call_where_none_may_be(several: Answer, single: Answer) -> None:
    assert len(several.calls) > 1 == len(single.calls)


@case(FIREWORKS_CHAT, "reasoning_effort", HELD, False, 3, 9, thinks=True)
def a_number_is_the_most_tokens_of_reasoning(none: Answer, three: Answer, nine: Answer) -> None:
    assert not none.message.get("reasoning_content") and thought(none) == 0
    assert nine.message["reasoning_content"] and thought(nine) - thought(three) == 6
    assert {len(each.text) for each in (none, three, nine)} == {4}


@case(FIREWORKS_CHAT, "thinking", HELD, {"type": "disabled"}, {"type": "enabled"}, thinks=True)
def thinking_is_switched_on_and_off(disabled: Answer, enabled: Answer) -> None:
    assert not disabled.message.get("reasoning_content") and len(disabled.text) == 4
    assert enabled.message["reasoning_content"] and thought(enabled) > thought(disabled)
