"""Token ids, scores of prompts, and what of a prompt is used."""

from tests.parameters.registry import OUT, Answer, case
from tests.parameters.spots import CHATS, GENERATING, STREAM, TEXTS

STORY = {"messages": [{"role": "user", "content": "Tell me a story of a bell and two foxes."}]}


@case(GENERATING, "return_token_ids", {}, OUT, True)
def the_ids_of_prompt_and_choice_are_given(without: Answer, given: Answer) -> None:
    (choice,) = given.choices
    prompt = given.json.get("prompt_token_ids") or choice.get("prompt_token_ids")
    assert len(prompt) == given.usage["prompt_tokens"]
    assert len(choice["token_ids"]) == given.usage["completion_tokens"]
    assert "token_ids" not in without.choices[0] and "prompt_token_ids" not in without.json


@case(CHATS, "return_tokens_as_token_ids", {"logprobs": True, "top_logprobs": 1}, OUT, True)
def a_chats_tokens_are_named_by_their_ids(texts: Answer, ids: Answer) -> None:
    named, spelt = ids.choices[0]["logprobs"]["content"], texts.choices[0]["logprobs"]["content"]
    assert all(entry["token"].startswith("token_id:") for entry in named)
    assert all(entry["top_logprobs"][0]["token"].startswith("token_id:") for entry in named)
    assert [entry["bytes"] for entry in named] == [entry["bytes"] for entry in spelt]
    assert not any(entry["token"].startswith("token_id:") for entry in spelt)


@case(TEXTS, "return_tokens_as_token_ids", {"logprobs": 1}, OUT, True)
def tokens_are_named_by_their_ids(texts: Answer, ids: Answer) -> None:
    named, spelt = ids.choices[0]["logprobs"], texts.choices[0]["logprobs"]
    assert all(token.startswith("token_id:") for token in named["tokens"])
    assert all(token.startswith("token_id:") for row in named["top_logprobs"] for token in row)
    assert named["token_logprobs"] == spelt["token_logprobs"] and named["tokens"] != spelt["tokens"]


@case(GENERATING, "prompt_logprobs", {}, OUT, 0, 3)
def each_token_of_the_prompt_has_its_rank(without: Answer, alone: Answer, three: Answer) -> None:
    def scored(answer: Answer) -> list[dict[str, dict[str, float]] | None]:
        found: list[dict[str, dict[str, float]] | None] = (
            answer.json.get("prompt_logprobs") or answer.choices[0]["prompt_logprobs"]
        )
        return found

    assert "prompt_logprobs" not in without.json and "prompt_logprobs" not in without.choices[0]
    for answer, least, most in ((alone, 1, 1), (three, 3, 4)):
        first, *rest = scored(answer)
        assert first is None and len(rest) == answer.usage["prompt_tokens"] - 1
        for row in rest:
            assert row is not None and least <= len(row) <= most
            ranked = sorted(row.values(), key=lambda entry: entry["rank"])
            values = [entry["logprob"] for entry in ranked]
            assert values == sorted(values, reverse=True) and all(value <= 0 for value in values)
            assert [entry["rank"] for entry in ranked][:least] == [1, 2, 3][:least] or least == 1


@case(GENERATING, "truncate_prompt_tokens", {"return_token_ids": True}, OUT, 3)
def the_last_tokens_of_the_prompt_are_used(whole: Answer, cut: Answer) -> None:
    def prompt(answer: Answer) -> list[int]:
        found: list[int] = answer.json.get("prompt_token_ids") or answer.choices[0]["prompt_token_ids"]
        return found

    assert cut.usage["prompt_tokens"] == 3 < whole.usage["prompt_tokens"]
    assert prompt(cut) == prompt(whole)[-3:]


@case(
    GENERATING,
    "truncation_side",
    {"return_token_ids": True, "truncate_prompt_tokens": 3},
    OUT,
    "left",
    "right",
)
def the_first_or_the_last_tokens_are_kept(plain: Answer, left: Answer, right: Answer) -> None:
    def prompt(answer: Answer) -> list[int]:
        found: list[int] = answer.json.get("prompt_token_ids") or answer.choices[0]["prompt_token_ids"]
        return found

    assert prompt(plain) == prompt(left) != prompt(right)
    assert [len(prompt(each)) for each in (left, right)] == [3, 3]


@case(TEXTS, "logprob_token_ids", {"logprobs": 2, "return_tokens_as_token_ids": True}, OUT, [7], [300, 7])
def the_wanted_tokens_stand_beside_each(likeliest: Answer, one: Answer, two: Answer) -> None:
    rows = [each.choices[0]["logprobs"]["top_logprobs"] for each in (likeliest, one, two)]
    assert all("token_id:7" not in row for row in rows[0])
    assert all("token_id:7" in row and len(row) <= 2 for row in rows[1])
    assert all({"token_id:7", "token_id:300"} <= set(row) and len(row) <= 3 for row in rows[2])


@case(CHATS, "logprob_token_ids", {"logprobs": True, "return_tokens_as_token_ids": True}, OUT, [7], [300, 7])
def the_wanted_tokens_stand_beside_each_entry(none: Answer, one: Answer, two: Answer) -> None:
    rows = [
        [
            [other["token"] for other in entry["top_logprobs"]]
            for entry in each.choices[0]["logprobs"]["content"]
        ]
        for each in (none, one, two)
    ]
    assert not any(rows[0]) and all(row[1:] == ["token_id:7"] for row in rows[1])
    assert all(row[1:] == ["token_id:300", "token_id:7"] for row in rows[2])


@case(CHATS, "best_of", STORY | {"temperature": 2, "seed": 7, "logprobs": True}, OUT, 6)
def the_likeliest_answer_is_given(first: Answer, best: Answer) -> None:
    def mean(answer: Answer) -> float:
        values: list[float] = [each["logprob"] for each in answer.choices[0]["logprobs"]["content"]]
        return sum(values) / len(values)

    assert mean(best) > mean(first)
    assert best.usage["completion_tokens"] > 2 * first.usage["completion_tokens"]


@case(STREAM, "continuous_usage_stats", {"stream_options": {"include_usage": True}}, OUT, True)
def each_chunk_brings_the_usage_so_far(without: Answer, counted: Answer) -> None:
    made = [each["usage"]["completion_tokens"] for each in counted.events[:-1]]
    assert made == sorted(made) and made[0] > 0 and made[0] < made[-1] == made[-2]
    assert [each["usage"] is None for each in without.events[:-2]].count(False) == 0


OPEN = {
    "messages": [*STORY["messages"], {"role": "assistant", "content": "Once upon a"}],
    "continue_final_message": True,
    "add_generation_prompt": False,
}


@case(CHATS, "echo", OPEN, False, True)
def the_answer_begins_with_what_it_goes_on_with(plain: Answer, echoed: Answer) -> None:
    assert echoed.text == "Once upon a" + plain.text
