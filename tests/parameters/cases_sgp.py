"""Fields that only Scale's dialect has, or has otherwise."""

from typing import Any

from tests.parameters.cases_constraints import AGE, HOT, is_age
from tests.parameters.cases_conversation import prompt
from tests.parameters.cases_fireworks import unending
from tests.parameters.cases_reasoning import HELD, thought
from tests.parameters.cases_sampling import MANY, punished_tokens_repeat_less
from tests.parameters.cases_vendors import told
from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import CITY, SGP_CHAT, SGP_IMAGE_URL, SGP_MESSAGE, SGP_TEXT, SHOWN, USER

SGP = (*SGP_CHAT, *SGP_TEXT)


def endless(asker: Asker) -> dict[str, Any]:
    """A request whose choices do not end by themselves."""
    return {"logit_bias": unending(asker)["logit_bias"], "max_tokens": None}


def endless_long(asker: Asker) -> dict[str, Any]:
    return endless(asker) | {"max_tokens": 60}


def endless_story(asker: Asker) -> dict[str, Any]:
    """cantor is sure of its facts: there a penalty of 2 changes too little."""
    return endless_long(asker) | {"messages": [{"role": "user", "content": "Tell me a story."}]}


case(SGP_CHAT, "presence_penalty", endless_story, 2, -2)(punished_tokens_repeat_less)
case(SGP_TEXT, "presence_penalty", endless_long, 2, -2)(punished_tokens_repeat_less)
case(SGP, "frequency_penalty", endless_long, 2, -2)(punished_tokens_repeat_less)


@case(SGP, "max_tokens", endless, 3, 9)
@case(SGP, "max_completion_tokens", endless, 3, 9)
@case(SGP_TEXT, "max_new_tokens", endless, 3, 9)
def so_many_tokens_are_made(short: Answer, long: Answer) -> None:
    assert [each.usage["completion_tokens"] for each in (short, long)] == [3, 9]
    assert short.finish == long.finish == "length"


def endless_nine(asker: Asker) -> dict[str, Any]:
    return endless(asker) | {"max_tokens": 9}


@case(SGP, "max_completion_tokens", endless_nine, OUT, 3)
def the_newer_name_wins_and_the_other_is_named(older: Answer, newer: Answer) -> None:
    assert [each.usage["completion_tokens"] for each in (older, newer)] == [9, 3]
    assert newer.headers["x-antiphon-ignored"] == "max_tokens"


@case(SGP, "stream", {}, False, True)
def a_stream_has_no_mark_at_its_end(whole: Answer, streamed: Answer) -> None:
    assert whole.json and not whole.events and streamed.headers["content-type"].startswith("text/event")
    parts = [each["choices"][0] for each in streamed.events]
    said = [each["text"] if "text" in each else each["delta"].get("content") or "" for each in parts]
    assert "".join(said) == whole.text and b"event:" not in streamed.body


@case(SGP, "stream_options", {"stream": True}, OUT, {"include_usage": True})
def the_last_chunk_brings_the_usage(without: Answer, counted: Answer) -> None:
    assert counted.events[-1]["choices"] == [] and counted.events[-1]["usage"]["completion_tokens"] > 0
    assert not any(each.get("usage") for each in without.events)


@case(SGP_TEXT, "logprobs", {}, False, True)
@case(SGP_TEXT, "return_token_log_probs", {}, False, True)
def each_token_of_a_text_is_scored(without: Answer, scored: Answer) -> None:
    assert without.choices[0]["logprobs"] is None
    entries = scored.choices[0]["logprobs"]["content"]
    assert "".join(each["token"] for each in entries) == scored.text
    assert all(each["logprob"] <= 0 for each in entries)


@case(SGP_TEXT, "top_logprobs", {"logprobs": True}, 0, 2)
def each_place_has_its_likeliest(none: Answer, two: Answer) -> None:
    found = [
        {len(place["top_logprobs"]) for place in each.choices[0]["logprobs"]["content"]}
        for each in (none, two)
    ]
    assert found == [{0}, {2}]


@case(SGP, "top_logprobs", {}, OUT, 2)
def the_likeliest_need_logprobs(without: Answer, refused: Answer) -> None:
    assert without.status == 200 and refused.status == 422 and "together with logprobs" in refused.refusal


@case(SGP_TEXT, "best_of", {"temperature": 1.5, "seed": 5, "logprobs": True}, OUT, 6)
def the_likeliest_candidate_is_given(first: Answer, best: Answer) -> None:
    def mean(answer: Answer) -> float:
        values: list[float] = [each["logprob"] for each in answer.choices[0]["logprobs"]["content"]]
        return sum(values) / len(values)

    assert mean(best) > mean(first)
    assert best.usage["completion_tokens"] > 2 * first.usage["completion_tokens"]


@case(SGP_TEXT, "stop_sequences", {"max_tokens": 40, "stop": ["the"]}, OUT, [" a"])
def both_fields_stop(one: Answer, both: Answer) -> None:
    assert both.finish == "stop" and len(both.text) < len(one.text)
    assert one.text.startswith(both.text)


@case(SGP, "response_format", HOT, OUT, AGE)
def an_object_is_itself_a_schema(free: Answer, bound: Answer) -> None:
    assert is_age(bound.text) and not is_age(free.text)


@case(SGP, "guided_json", HOT | {"guided_regex": "[a-c]{3}"}, OUT, AGE)
def one_guided_field_is_taken(one: Answer, two: Answer) -> None:
    assert one.status == 200 and two.status == 422
    assert two.refusal.startswith("Only one of guided_json, guided_choice, guided_regex, guided_grammar can")


@case(SGP_CHAT, "reasoning_effort", HELD, "none", "medium", thinks=True)
def no_effort_is_no_reasoning(none: Answer, some: Answer) -> None:
    assert not none.message.get("reasoning") and thought(none) == 0
    assert thought(some) > 6


LOOK = {"type": "function", "function": {"name": "look", "parameters": CITY}}
CALLING: dict[str, Any] = {"messages": [USER], "tools": [LOOK], "tool_choice": "required"}


def unending_calls(asker: Asker) -> dict[str, Any]:
    return CALLING | endless_long(asker)


@case(SGP_CHAT, "parallel_tool_calls", unending_calls, True, False)
def there_is_no_second_call_where_none_may_be(several: Answer, single: Answer) -> None:
    assert len(several.calls) > 1 == len(single.calls)


@case(SGP_MESSAGE, "role", {}, OUT, "user", "assistant", recorded=True)
def a_bare_text_is_the_users(left_out: Answer, user: Answer, assistant: Answer) -> None:
    assert prompt(left_out) == prompt(user) != prompt(assistant)


@case(
    SGP_MESSAGE, "content", {}, {"type": "text", "text": "Who are you?"}, [{"type": "text", "text": "Hello."}]
)
def one_part_is_taken_without_a_list(one: Answer, several: Answer) -> None:
    assert one.status == several.status == 200 and one.text != several.text


CALLED = {"role": "assistant"}
LOOKED = {"name": "get_weather", "arguments": "{}"}


@case(SGP_MESSAGE, "function_call", {"messages": [USER, CALLED]}, OUT, LOOKED)
def the_older_form_of_a_call_is_shown_to_the_model(without: Answer, called: Answer) -> None:
    assert called.usage["prompt_tokens"] > without.usage["prompt_tokens"] + 3


BARE: dict[str, Any] = {
    "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "AAAA"}}]}]
}


@case(SGP_IMAGE_URL, "media_type", BARE, OUT, "image/gif", "image/png", hosted=True)
def the_media_type_completes_base64(without: Answer, one: Answer, other: Answer) -> None:
    assert without.status == 422
    assert [told(each)["parts"][0][:2] for each in (one, other)] == [
        ["image/gif", "AAAA"],
        ["image/png", "AAAA"],
    ]


@case(SGP_IMAGE_URL, "media_type", SHOWN, "image/png", "image/gif", hosted=True)
def another_media_type_than_the_urls_is_refused(same: Answer, other: Answer) -> None:
    assert same.status == 200 and other.status == 422 and "send one of them" in other.refusal


@case(SGP, "inference_timeout", {}, OUT, "1e-6")
def what_takes_longer_ends_with_an_error(done: Answer, late: Answer) -> None:
    assert done.status == 200 and late.status == 504


EXTRA = {"provider": {"sort": "price"}}


@case(SGP, "inference_extra_params", {}, OUT, EXTRA, hosted=True)
@case(SGP, "inference_extra_headers", {}, OUT, {"X-Trace": "7"}, hosted=True)
def what_is_added_reaches_the_vendor(without: Answer, sent: Answer) -> None:
    assert told(without)["extras"] == [{}, {}]
    assert told(sent)["extras"] in ([EXTRA, {}], [{}, {"x-trace": "7"}])


@case(SGP, "inference_extra_params", MANY, {"min_p": 1}, {"min_p": 0}, EXTRA)
def a_known_field_acts_and_another_is_refused(narrow: Answer, wide: Answer, other: Answer) -> None:
    assert len(set(narrow.texts)) == 1 < len(set(wide.texts))
    assert other.status == 422 and "inference_extra_params.provider" in other.refusal


@case(SGP, "inference_extra_headers", {}, OUT, {"X-Trace": "7"}, recorded=True)
def a_model_of_this_server_names_the_headers(without: Answer, named: Answer) -> None:
    assert "x-antiphon-ignored" not in without.headers
    assert named.headers["x-antiphon-ignored"] == "inference_extra_headers"
