"""Every field of sampling that the client sends changes what cantor says, in the way its name promises."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.conftest import Target

PROMPT = "Once upon a time there was a"
END = "</s>"


@pytest.fixture(scope="module")
def fox(cantor: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def said(client: openai.OpenAI, **fields: Any) -> Any:
    """One choice, with each token's text; what OpenAI does not know goes in the extra body."""
    known = ("n", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "temperature", "max_tokens")
    plain = {name: value for name, value in fields.items() if name in known}
    extra = {name: value for name, value in fields.items() if name not in known}
    asked: Any = {"model": "cantor", "prompt": PROMPT, "logprobs": 0, "seed": 3, "temperature": 0} | plain
    return client.completions.create(**asked, extra_body=extra).choices[0]


def words(client: openai.OpenAI, text: str) -> dict[str, int]:
    """The tokens of a text by their own texts."""
    body = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    found = client.post("/../tokenize", cast_to=dict[str, Any], body=body)
    return dict(zip(found["token_strs"], found["tokens"], strict=True))


def test_a_bias_bans_and_forces(fox: openai.OpenAI) -> None:
    (likeliest, *_) = said(fox).logprobs.tokens
    token = words(fox, "a" + likeliest)[likeliest]
    assert said(fox, logit_bias={str(token): -100}, min_tokens=1).logprobs.tokens[0] != likeliest
    assert set(said(fox, logit_bias={str(token): 100}, temperature=1).logprobs.tokens) == {likeliest}


def test_allowed_tokens_are_the_only_ones(fox: openai.OpenAI) -> None:
    allowed = words(fox, "the fox and hen")
    drawn = said(fox, allowed_token_ids=list(allowed.values()), temperature=1.5).logprobs.tokens
    assert set(drawn) <= set(allowed) and len(drawn) == 16


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_penalties_make_words_rarer(fox: openai.OpenAI, penalty: str) -> None:
    allowed = [token for text, token in words(fox, "the fox and hen saw cat by day").items() if text != " "]
    asked = {"allowed_token_ids": allowed, "temperature": 2, "max_tokens": 8}

    def said_again(value: float) -> int:
        drawn = [said(fox, **asked, **{penalty: value, "seed": seed}).logprobs.tokens for seed in range(8)]
        return sum(len(tokens) - len(set(tokens)) for tokens in drawn)

    assert said_again(2) < said_again(0) < said_again(-2)


def test_repetition_counts_the_prompt_too(fox: openai.OpenAI) -> None:
    """Between a word of the prompt and another, made equally likely."""
    here, away = words(fox, "time")["time"], words(fox, "and")["and"]
    texts = [PROMPT + word for word in (" time", " and")]
    scored = fox.completions.create(model="cantor", prompt=texts, echo=True, logprobs=0, max_tokens=0)
    values: list[Any] = [
        (choice.logprobs.token_logprobs or [0.0])[-1] for choice in scored.choices if choice.logprobs
    ]
    asked: Any = {
        # and both above nothing, where a factor would change nothing
        "logit_bias": {str(here): min(max(values[1] - values[0] + 20, -100), 100), str(away): 20},
        "temperature": 1,
        "max_tokens": 1,
        "seed": 3,
        "n": 64,
    }

    def share(penalty: float) -> int:
        extra = {"allowed_token_ids": [here, away], "repetition_penalty": penalty}
        answer = fox.completions.create(model="cantor", prompt=PROMPT + " ", extra_body=extra, **asked)
        return [choice.text for choice in answer.choices].count("time")

    punished, free, courted = share(2), share(1), share(0.5)
    assert punished < free < courted and 16 < free < 48


def test_the_end_waits_for_the_least_tokens_and_may_be_ignored(fox: openai.OpenAI) -> None:
    bias = {"logit_bias": {str(words(fox, END)[END]): 100}}
    assert said(fox, **bias).text == "" and said(fox, **bias).finish_reason == "stop"
    *made, end = said(fox, **bias, min_tokens=5).logprobs.tokens
    assert (len(made), end) == (5, END)
    ignoring = said(fox, **bias, ignore_eos=True, max_tokens=6)
    assert (ignoring.logprobs.tokens, ignoring.finish_reason) == ([END] * 6, "length")


def test_narrow_distributions_are_greedy_and_wide_ones_are_not(fox: openai.OpenAI) -> None:
    greedy = said(fox).text
    assert said(fox, temperature=1.5, mirostat_target=0.001, mirostat_lr=0).text == greedy
    assert said(fox, temperature=1.5, mirostat_target=9).text != greedy
    texts = {said(fox, temperature=1.5, typical_p=share).text for share in (0.02, 1)}
    assert len(texts) == 2


def test_a_prompt_is_found_again_under_its_own_salt(fox: openai.OpenAI) -> None:
    asked: Any = {
        "model": "cantor",
        "prompt": "The hen saw the fox near the old mill. " * 12,
        "max_tokens": 1,
    }

    def cached(**fields: Any) -> int:
        usage = fox.completions.create(**asked, extra_body=fields).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert cached(cache_salt="one") == 0
    assert cached(cache_salt="one") > 50
    assert cached(cache_salt="two") == cached() == 0
