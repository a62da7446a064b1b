"""Fields that only JamAI Base's dialect has, or has otherwise."""

from typing import Any

from tests.parameters.cases_conversation import prompt
from tests.parameters.cases_others import (
    an_unknown_model_is_refused,
    every_text_has_its_vector,
    other_texts_have_other_scores,
    the_same_numbers_as_bytes,
    vector,
)
from tests.parameters.cases_reasoning import thought
from tests.parameters.cases_sampling import punished_tokens_repeat_less
from tests.parameters.cases_sgp import (
    endless,
    endless_long,
    endless_story,
    so_many_tokens_are_made,
    the_newer_name_wins_and_the_other_is_named,
)
from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import JAMAI_CHAT, JAMAI_EMBEDDINGS, JAMAI_MESSAGE, JAMAI_RERANK

THINKING: Any = {"messages": [{"role": "user", "content": "Is it free?"}], "max_tokens": 60}

case(JAMAI_CHAT, "presence_penalty", endless_story, 2, -2)(punished_tokens_repeat_less)
case(JAMAI_CHAT, "frequency_penalty", endless_long, 2, -2)(punished_tokens_repeat_less)
case(JAMAI_CHAT, "max_tokens", endless, 3, 9)(so_many_tokens_are_made)
case(JAMAI_CHAT, "max_completion_tokens", endless, 3, 9)(so_many_tokens_are_made)
case(JAMAI_EMBEDDINGS, "model", {}, "encoder", "nobody")(an_unknown_model_is_refused)
case(JAMAI_RERANK, "model", {}, "reranker", "nobody")(an_unknown_model_is_refused)
case(JAMAI_EMBEDDINGS, "input", {}, "the cat", "a far island", ["a far island", "the cat"])(
    every_text_has_its_vector
)
case(JAMAI_EMBEDDINGS, "encoding_format", {}, "float", "base64")(the_same_numbers_as_bytes)
case(JAMAI_RERANK, "query", {}, "the book", "a man and a woman")(other_texts_have_other_scores)
case(JAMAI_RERANK, "documents", {}, ["a", "fire"], ["a", "water"])(other_texts_have_other_scores)


def endless_nine(asker: Asker) -> dict[str, Any]:
    return endless(asker) | {"max_tokens": 9}


case(JAMAI_CHAT, "max_completion_tokens", endless_nine, OUT, 3)(the_newer_name_wins_and_the_other_is_named)


@case(JAMAI_CHAT, "max_tokens", {"temperature": 0}, 4, 2_000_000_000)
def more_tokens_than_fit_are_lowered(few: Answer, many: Answer) -> None:
    assert few.finish == "length" and many.finish == "stop" and many.text.startswith(few.text)


@case(JAMAI_CHAT, "model", {}, "", "antiphon/cantor", "antiphon/mood")
def an_empty_name_has_the_server_choose(chosen: Answer, named: Answer, other: Answer) -> None:
    assert chosen.json["model"] == named.json["model"] == "antiphon/cantor"
    assert chosen.text == named.text != other.text


@case(JAMAI_CHAT, "stream", {}, False, True)
def a_stream_ends_with_the_usage_and_a_mark(whole: Answer, streamed: Answer) -> None:
    *chunks, last, mark = streamed.events
    said = [each["choices"][0]["delta"].get("content") or "" for each in chunks]
    assert "".join(said) == whole.text and mark == "[DONE]"
    assert last["choices"] == [] and last["usage"]["total_tokens"] == whole.usage["total_tokens"]


@case(JAMAI_CHAT, "temperature", {"n": 16}, -0.1, 0, 2, 2.1)
def temperatures_of_0_to_2_are_taken(low: Answer, zero: Answer, two: Answer, high: Answer) -> None:
    assert [each.status for each in (low, zero, two, high)] == [422, 200, 200, 422]
    assert len(set(zero.texts)) == 1 < len(set(two.texts))


@case(JAMAI_CHAT, "top_p", {"n": 16, "temperature": 1.5, "max_tokens": 10}, 0.001, 1, 0.0001)
def a_narrow_cut_leaves_one_text(narrow: Answer, wide: Answer, refused: Answer) -> None:
    assert len(set(narrow.texts)) == 1 < len(set(wide.texts))
    assert refused.status == 422 and "top_p" in refused.refusal


@case(JAMAI_CHAT, "stop", {}, [" a"], " a", [])
def stop_is_a_list_with_something_in_it(texts: Answer, text: Answer, none: Answer) -> None:
    assert texts.status == 200 and text.status == none.status == 422


@case(JAMAI_CHAT, "tools", {}, OUT, [])
def tools_are_a_list_with_something_in_it(without: Answer, none: Answer) -> None:
    assert without.status == 200 and none.status == 422 and "tools" in none.refusal


@case(JAMAI_CHAT, "id", {}, OUT, "chat-7", ledgered=True)
def the_entry_has_the_id_as_a_tag(without: Answer, tagged: Answer) -> None:
    assert without.entry is not None and tagged.entry is not None
    assert (without.entry["tags"], tagged.entry["tags"]) == ({}, {"id": "chat-7"})


@case(JAMAI_CHAT, "thinking_budget", THINKING, 0, 9, 61, thinks=True)
def reasoning_ends_with_its_budget(none: Answer, some: Answer, more: Answer) -> None:
    assert not none.message.get("reasoning_content") and some.message["reasoning_content"]
    assert thought(some) - thought(none) == 9
    assert more.status == 422 and "at most max_tokens, which is 60" in more.refusal


@case(JAMAI_CHAT, "reasoning_effort", THINKING | {"thinking_budget": 6}, "disable", "medium", thinks=True)
def no_effort_is_no_reasoning(none: Answer, some: Answer) -> None:
    assert not none.message.get("reasoning_content") and thought(none) == 0
    assert some.message["reasoning_content"] and thought(some) > 5


@case(JAMAI_CHAT, "reasoning_effort", {}, OUT, "high")
@case(JAMAI_CHAT, "thinking_budget", {}, OUT, 9)
def a_model_that_does_not_reason_ignores_and_names_it(without: Answer, named: Answer) -> None:
    assert "x-antiphon-ignored" not in without.headers and without.text == named.text
    assert named.headers["x-antiphon-ignored"] in ("reasoning_effort", "thinking_budget")


@case(JAMAI_MESSAGE, "content", {}, None, "", [], "Who are you?", recorded=True)
def null_is_an_empty_text(null: Answer, empty: Answer, none: Answer, some: Answer) -> None:
    assert prompt(null) == prompt(empty) == prompt(none) != prompt(some)


@case(JAMAI_MESSAGE, "name", {}, OUT, "Ada Lovelace", "Ada_Lovelace", recorded=True)
def strange_characters_of_a_name_become_lines(none: Answer, spaced: Answer, plain: Answer) -> None:
    assert prompt(spaced) == prompt(plain) != prompt(none)


@case(JAMAI_EMBEDDINGS, "dimensions", {}, 64, 32)
def only_what_the_model_makes(own: Answer, other: Answer) -> None:
    assert len(vector(own)) == 64 and other.status == 422 and "dimensions" in other.refusal
