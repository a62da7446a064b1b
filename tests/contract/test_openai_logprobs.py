"""The openai client asks for log-probabilities, the prompt said again, and the best of several: in both
shapes, streamed as buffered."""

import math
from typing import Any

import openai
import pytest

from tests.contract.conftest import Target

HELLO: Any = [{"role": "user", "content": "Hello! Tell me about 😀"}]
PROMPT = "Once upon a time, naïve 😀"
SAME: Any = {"max_tokens": 12, "temperature": 0.8, "seed": 11}
CONTROL = ("<|im_start|>", "<|im_end|>", "</s>")
"""Names under which tokens are told that show as nothing; a small model makes one in the middle at times."""
COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def test_a_chat_tells_each_tokens_log_probability(client: openai.OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "messages": HELLO, "logprobs": True, "top_logprobs": 20} | SAME
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.logprobs is not None and choice.logprobs.content and choice.logprobs.refusal is None
    said = b""
    for entry in choice.logprobs.content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 20
        values = [other.logprob for other in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and math.fsum(map(math.exp, values)) < 1.8
        said += b"" if entry.token in CONTROL else bytes(entry.bytes or ())
        assert "\ufffd" not in entry.token
        assert entry.token.startswith("bytes:") or entry.token.encode() == bytes(entry.bytes or ())
    assert said.decode(errors="replace") == choice.message.content
    parts = [part for chunk in client.chat.completions.create(stream=True, **asked) for part in chunk.choices]
    streamed = [entry for part in parts if part.logprobs for entry in part.logprobs.content or ()]
    assert streamed == choice.logprobs.content


def test_no_log_probabilities_come_unasked(client: openai.OpenAI, target: Target) -> None:
    answer = client.chat.completions.create(model=target.model, messages=HELLO, logprobs=False, **SAME)
    assert answer.choices[0].logprobs is None
    text = client.completions.create(model=target.model, prompt=PROMPT, **SAME)
    assert text.choices[0].logprobs is None


@pytest.mark.parametrize("width", [0, 5])
def test_a_text_is_scored_with_its_prompt(client: openai.OpenAI, target: Target, width: int) -> None:
    asked: Any = {"model": target.model, "prompt": PROMPT, "echo": True, "logprobs": width, "n": 2} | SAME
    whole = client.completions.create(**asked)
    for choice in whole.choices:
        found = choice.logprobs
        assert choice.text.startswith(PROMPT) and found is not None
        tokens, values, offsets = found.tokens or [], found.token_logprobs or [], found.text_offset or []
        assert len(tokens) == len(values) == len(offsets)
        assert values[0] is None and all(value <= 0 for value in values[1:])
        assert offsets == sorted(offsets)
        assert offsets[-1] < len(choice.text) + (tokens[-1] in CONTROL)
        for token, offset in zip(tokens[1:], offsets[1:], strict=True):
            shown = token if offset else token.removeprefix(" ")  # which a tokenizer may put before a text
            shown = "" if token in CONTROL else shown
            assert token.startswith("bytes:") or choice.text[offset:].startswith(shown)
        if not width:
            assert found.top_logprobs is None
        else:
            assert found.top_logprobs is not None and found.top_logprobs[0] is None
            for token, value, row in zip(tokens[1:], values[1:], found.top_logprobs[1:], strict=True):
                assert width <= len(row) <= width + 1 and row[token] >= value
    parts: Any = [part for chunk in client.completions.create(stream=True, **asked) for part in chunk.choices]
    for choice in whole.choices:
        mine = [part for part in parts if part.index == choice.index]
        assert "".join(part.text for part in mine) == choice.text and mine[0].text == PROMPT
        for column in COLUMNS if width else ("tokens", "token_logprobs", "text_offset"):
            joined = [value for part in mine if part.logprobs for value in getattr(part.logprobs, column)]
            assert joined == getattr(choice.logprobs, column)


def test_a_prompt_alone_is_scored(client: openai.OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "prompt": PROMPT, "echo": True, "logprobs": 1, "max_tokens": 0}
    answer = client.completions.create(**asked)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (PROMPT, "length")
    assert answer.usage is not None and answer.usage.completion_tokens == 0
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None and len(choice.logprobs.token_logprobs) > 5
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=target.model, prompt=PROMPT, max_tokens=0)
    assert refused.value.param == "max_tokens"


def test_the_best_of_eight_are_given_and_all_are_counted(client: openai.OpenAI, target: Target) -> None:
    asked: Any = {"model": target.model, "prompt": ["Once upon", "The end"], "logprobs": 0} | SAME
    best = client.completions.create(n=2, best_of=8, **asked)
    every = client.completions.create(n=8, **asked)
    assert best.usage is not None and every.usage is not None
    assert best.usage.completion_tokens == every.usage.completion_tokens
    assert best.usage.prompt_tokens == every.usage.prompt_tokens
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    for prompt in (0, 1):
        texts = [choice.text for choice in every.choices[prompt * 8 : prompt * 8 + 8]]
        assert all(choice.text in texts for choice in best.choices[prompt * 2 : prompt * 2 + 2])


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("best_of", {"n": 3, "best_of": 2}),
    ("best_of", {"best_of": 2, "stream": True}),
    ("best_of", {"best_of": 21}),
    ("logprobs", {"logprobs": 21}),
    ("logit_bias", {"logit_bias": {"999999": 1}}),
    ("logit_bias.cat", {"logit_bias": {"cat": 1}}),
    ("presence_penalty", {"presence_penalty": 2.1}),
]


@pytest.mark.parametrize(("param", "fields"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(cantor: Target, param: str, fields: dict[str, Any]) -> None:
    client = openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60)
    with client, pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=cantor.model, prompt="a", **fields)
    assert refused.value.param == param
