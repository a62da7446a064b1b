"""How tokens are drawn."""

from typing import Any

from tests.parameters.registry import OUT, Answer, Asker, case
from tests.parameters.spots import CHATS, GENERATING, SEEDED, TEXTS, UNENDED

MANY = {"n": 4, "max_tokens": 8, "temperature": 1.5, "seed": 1}
"""A wide distribution, drawn from several times; alike for all values of a field."""


def varied(answer: Answer) -> int:
    """How many different texts there are among the choices."""
    return len(set(answer.texts))


@case(SEEDED, "temperature", {"n": 3, "max_tokens": 8, "seed": 1}, 0, 2)
def zero_is_greedy_and_two_is_not(cold: Answer, hot: Answer) -> None:
    assert varied(cold) == 1 < varied(hot)


@case(SEEDED, "top_p", MANY, 0.0001, 1)
@case(GENERATING, "top_k", MANY, 1, 128)
@case(GENERATING, "min_p", MANY, 1, 0)
@case(GENERATING, "mirostat_target", MANY | {"mirostat_lr": 0}, 0.001, 9)
def a_narrow_cut_leaves_one_text(narrow: Answer, wide: Answer) -> None:
    assert varied(narrow) == 1 < varied(wide)


@case(GENERATING, "typical_p", MANY, 0.02, 1)
@case(GENERATING, "mirostat_lr", MANY | {"mirostat_target": 3}, 0, 1)
@case(GENERATING, "seed", MANY, 1, 2)
def the_draws_are_others(one: Answer, other: Answer) -> None:
    assert one.texts != other.texts


@case(GENERATING, "seed", MANY, 1, 2, 1)
def the_same_seed_draws_the_same(one: Answer, other: Answer, again: Answer) -> None:
    assert one.texts == again.texts != other.texts


LONG = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


def repeated(answer: Answer) -> float:
    """Share of the pairs of letters that have been there before."""
    pairs = [text[at : at + 2] for text in answer.texts for at in range(len(text) - 1)]
    return 1 - len(set(pairs)) / len(pairs)


@case(UNENDED, "presence_penalty", LONG, 2, -2)
@case(UNENDED, "frequency_penalty", LONG, 2, -2)
@case(GENERATING, "repetition_penalty", LONG, 2, 0.2)
def punished_tokens_repeat_less(punished: Answer, courted: Answer) -> None:
    assert repeated(punished) < repeated(courted) - 0.05


def biased(weight: int) -> Any:
    return lambda asker: {str(asker.ids(" hen")[-1]): weight}


@case(GENERATING, "logit_bias", {"max_tokens": 4}, OUT, biased(100))
def a_bias_forces_a_token(free: Answer, forced: Answer) -> None:
    assert forced.text == "enenenen" != free.text


@case(GENERATING, "allowed_token_ids", {"max_tokens": 6}, OUT, lambda asker: asker.ids(" hen")[-1:])
def nothing_else_is_drawn(free: Answer, bound: Answer) -> None:
    assert bound.text == "en" * 6 != free.text


def ending(asker: Asker) -> dict[str, Any]:
    """What ends at once."""
    ends = asker.client.post("/tokenize", json={"prompt": "</s>", "model": "cantor"}).json()["tokens"]
    return {"logit_bias": {str(ends[-1]): 100}, "max_tokens": 6}


@case(GENERATING, "min_tokens", ending, 0, 5)
def the_end_waits(at_once: Answer, later: Answer) -> None:
    assert (at_once.usage["completion_tokens"], later.usage["completion_tokens"]) == (1, 6)


TURN = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"


@case(CHATS, "ignore_eos", {"max_tokens": 40}, False, True)
@case(TEXTS, "ignore_eos", {"prompt": TURN, "max_tokens": 40}, False, True)
def the_end_ends_nothing(ended: Answer, went_on: Answer) -> None:
    assert (ended.finish, went_on.finish) == ("stop", "length")
    assert went_on.usage["completion_tokens"] == 40


def told(answer: Answer) -> int:
    """How often cantor's own words are there."""
    return answer.text.count("small") + answer.text.count("called")


@case(GENERATING, "bad_words", {"max_tokens": 16, "temperature": 0}, OUT, ["small", " called"])
def the_words_are_not_said(free: Answer, bound: Answer) -> None:
    assert told(free) == 1 and told(bound) == 0 and bound.finish in ("stop", "length")


@case(GENERATING, "priority", {}, OUT, 7, recorded=True)
def the_engine_is_told_what_comes_first(usual: Answer, later: Answer) -> None:
    assert [one.priority for one in (*usual.asked, *later.asked)] == [0, 7]
