"""What comes back, and when it ends."""

from tests.parameters.registry import INFILL, OUT, Answer, case
from tests.parameters.spots import CHATS, GENERATING, MARKED, OPENAI_TEXTS, STREAM, TEXTS, UNENDED

TURN = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
LONG = {"prompt": "The hen saw the fox near the old mill. " * 12}


@case(GENERATING, "model", {}, "cantor", "mood")
def an_adapter_says_other_things(base: Answer, adapted: Answer) -> None:
    assert (base.json["model"], adapted.json["model"]) == ("cantor", "mood")
    assert base.text != adapted.text


@case(GENERATING, "model", {}, "cantor", "nobody")
def an_unknown_model_is_refused(known: Answer, unknown: Answer) -> None:
    assert known.status == 200 and unknown.status == 404 and "nobody" in unknown.refusal


@case(TEXTS, "prompt", {}, "Once upon a time", "The capital of France is")
def another_prompt_goes_on_otherwise(one: Answer, other: Answer) -> None:
    assert one.text != other.text


@case(OPENAI_TEXTS, "prompt", {}, ["Once", "Once upon"], [1, 300, 301], [[1, 300], [1, 301], [1, 302]])
def every_prompt_has_its_choice(texts: Answer, tokens: Answer, lists: Answer) -> None:
    assert [len(each.choices) for each in (texts, tokens, lists)] == [2, 1, 3]
    assert [each["index"] for each in lists.choices] == [0, 1, 2]


@case(UNENDED, "max_tokens", {"ignore_eos": True}, 3, 9)
@case(UNENDED, "max_completion_tokens", {"max_tokens": None, "ignore_eos": True}, 3, 9)
def so_many_tokens_are_made(short: Answer, long: Answer) -> None:
    assert [each.usage["completion_tokens"] for each in (short, long)] == [3, 9]
    assert long.text.startswith(short.text) and short.finish == long.finish == "length"


@case(GENERATING, "n", {}, OUT, 3)
def so_many_choices(one: Answer, three: Answer) -> None:
    assert [len(each.choices) for each in (one, three)] == [1, 3]


@case(TEXTS, "stop", {"max_tokens": 40}, OUT, [" a", "the"], " a")
def nothing_comes_after_a_stop_text(free: Answer, several: Answer, one: Answer) -> None:
    for stopped in (several, one):
        assert stopped.finish == "stop" and free.text.startswith(stopped.text)
        assert len(stopped.text) < len(free.text)


@case(CHATS, "stop", {"max_tokens": 40}, OUT, ["demo", "m "])
def a_chat_stops_too(free: Answer, stopped: Answer) -> None:
    assert free.text.startswith(stopped.text) and len(stopped.text) < len(free.text)


@case(TEXTS, "include_stop_str_in_output", {"stop": [" a"], "max_tokens": 40}, OUT, True)
@case(CHATS, "include_stop_str_in_output", {"stop": [" a"], "max_tokens": 40}, OUT, True)
def the_stop_text_stays(cut: Answer, kept: Answer) -> None:
    assert kept.text == cut.text + " a"


@case(CHATS, "skip_special_tokens", {"ignore_eos": True, "max_tokens": 40}, True, False)
@case(TEXTS, "skip_special_tokens", {"prompt": TURN, "ignore_eos": True, "max_tokens": 40}, True, False)
def control_tokens_show_their_names(hidden: Answer, shown: Answer) -> None:
    assert "<|im_end|>" in shown.text and "<|im_end|>" not in hidden.text


@case(GENERATING, "stop_token_ids", {"max_tokens": 30}, OUT, lambda asker: asker.ids(" a")[-1:])
def nothing_comes_after_a_stop_token(free: Answer, stopped: Answer) -> None:
    assert stopped.finish == "stop"
    assert free.text.startswith(stopped.text) and len(stopped.text) < len(free.text)


@case(MARKED, "stream", {}, False, True)
def a_stream_is_events(whole: Answer, streamed: Answer) -> None:
    assert whole.json and not whole.events and streamed.headers["content-type"].startswith("text/event")
    parts = [each["choices"][0] for each in streamed.events[:-1] if each["choices"]]
    said = [each["text"] if "text" in each else each["delta"].get("content") or "" for each in parts]
    assert streamed.events[-1] == "[DONE]" and "".join(said) == whole.text


@case(MARKED, "stream_options", {"stream": True}, OUT, {"include_usage": True})
@case(STREAM, "include_usage", {}, False, True)
def the_last_chunk_brings_the_usage(without: Answer, counted: Answer) -> None:
    last = counted.events[-2]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    assert not any(each.get("usage") for each in without.events[:-1])


@case(OPENAI_TEXTS, "logprobs", {}, OUT, 0, 3)
def so_many_alternatives(without: Answer, chosen: Answer, three: Answer) -> None:
    assert without.choices[0]["logprobs"] is None
    scores = [each.choices[0]["logprobs"] for each in (chosen, three)]
    assert all(len(each["tokens"]) == len(each["token_logprobs"]) > 0 for each in scores)
    assert not any(scores[0]["top_logprobs"] or ())
    assert all(len(each) in {3, 4} for each in scores[1]["top_logprobs"])


@case(CHATS, "logprobs", {"max_tokens": 16}, False, True)
def each_token_is_scored(without: Answer, scored: Answer) -> None:
    assert without.choices[0]["logprobs"] is None
    entries = scored.choices[0]["logprobs"]["content"]
    *said, end = [each["token"] for each in entries]
    assert "".join(said).strip() + ("" if end == "<|im_end|>" else end) == scored.text.strip()
    assert all(each["logprob"] <= 0 for each in entries)


@case(CHATS, "top_logprobs", {"logprobs": True}, 0, 2)
def each_place_has_its_likeliest(none: Answer, two: Answer) -> None:
    found = [{len(place["top_logprobs"]) for place in each.choices[0]["logprobs"]["content"]} for each in
             (none, two)]  # fmt: skip
    assert found == [{0}, {2}]


@case(TEXTS, "suffix", {}, OUT, " the end", recorded=True)
def what_follows_comes_before_the_middle(without: Answer, between: Answer) -> None:
    infill, plain = INFILL, without.asked[0].prompt.ids
    begin, first, *between_ids, last = between.asked[0].prompt.ids
    assert (begin, first, last) == (plain[0], infill.prefix, infill.middle)
    after = between_ids.index(infill.suffix)
    assert tuple(between_ids[:after]) == plain[1:] and len(between_ids) > after + 1


@case(TEXTS, "suffix", {}, "", " the end")
def a_model_without_the_tokens_refuses_it(none: Answer, after: Answer) -> None:
    assert none.status == 200 and "suffix is not supported: this model has no tokens" in after.refusal


@case(TEXTS, "echo", {}, False, True)
def the_text_begins_with_the_prompt(plain: Answer, echoed: Answer) -> None:
    assert echoed.text == "Once upon a time there was a" + plain.text


@case(OPENAI_TEXTS, "best_of", {"temperature": 1.5, "seed": 5, "logprobs": 0}, OUT, 6)
def the_likeliest_candidate_is_given(first: Answer, best: Answer) -> None:
    def mean(answer: Answer) -> float:
        values: list[float] = answer.choices[0]["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    assert mean(best) > mean(first)
    assert best.usage["completion_tokens"] > 2 * first.usage["completion_tokens"]


def cached(answer: Answer) -> int:
    found: int = answer.usage["prompt_tokens_details"]["cached_tokens"]
    return found


@case(TEXTS, "cache_salt", LONG | {"max_tokens": 1}, "salt", "salt", "pepper")
@case(CHATS, "cache_salt", {"messages": [{"role": "user", "content": "Say the word. " * 40}],
                            "max_tokens": 1}, "salt", "salt", "pepper")  # fmt: skip
def only_the_same_salt_finds_what_is_kept(first: Answer, again: Answer, other: Answer) -> None:
    assert cached(again) > 50 and cached(other) < 20
    assert first.status == 200
