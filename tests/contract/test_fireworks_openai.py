"""The openai client, unchanged, at the address of the Fireworks dialect: what its page says of completions,
on cantor."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Completion, CompletionUsage

from tests.contract.conftest import Target

MODEL = "accounts/fireworks/models/cantor"
STORY = "Once upon a time"
GREEDY: Any = {"temperature": 0}
HELLO: Any = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture
def fireworks(cantor: Target) -> Iterator[openai.OpenAI]:
    address = f"{cantor.url}/fireworks/inference/v1"
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def continued(client: openai.OpenAI, prompt: Any = STORY, **said: Any) -> Completion:
    """A buffered completion; fields that the client does not know go into `extra_body`."""
    answer = client.completions.create(model=MODEL, prompt=prompt, **GREEDY | said)
    assert isinstance(answer, Completion)
    return answer


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Without what of the prompt was kept of an earlier request."""
    assert usage is not None and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return usage.prompt_tokens, usage.completion_tokens


def test_a_text_has_16_tokens_and_a_bare_id(fireworks: openai.OpenAI) -> None:
    answer = continued(fireworks, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"
    assert (answer.object, answer.model, len(answer.id)) == ("text_completion", MODEL, 36)


def test_too_many_tokens_are_cut_by_default_or_refused_on_demand(fireworks: openai.OpenAI) -> None:
    much: Any = {"max_tokens": 10_000_000}
    answer = continued(fireworks, **much)
    assert answer.usage is not None and answer.usage.completion_tokens < 10_000
    with pytest.raises(openai.BadRequestError) as refused:
        continued(fireworks, **much, extra_body={"context_length_exceeded_behavior": "error"})
    assert refused.value.code == "INVALID_ARGUMENT" and "10000000 in the completion" in refused.value.message


def test_the_text_holds_what_stopped_it(fireworks: openai.OpenAI) -> None:
    whole = continued(fireworks, max_tokens=24).choices[0].text
    stop = whole[8:11]
    found = continued(fireworks, max_tokens=24, stop=[stop, "never said"]).choices[0]
    assert found.finish_reason == "stop"
    assert found.text == whole[: whole.index(stop) + len(stop)]
    stream = fireworks.completions.create(
        model=MODEL, prompt=STORY, max_tokens=24, stop=stop, stream=True, **GREEDY
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == found.text


def test_a_prompt_is_repeated_and_scored_with_token_ids(fireworks: openai.OpenAI) -> None:
    choice = continued(fireworks, max_tokens=3, echo=True, logprobs=5).choices[0]
    assert choice.text.startswith(STORY)
    scores: Any = choice.logprobs
    lengths = {len(getattr(scores, name)) for name in (
        "tokens", "token_logprobs", "top_logprobs", "text_offset", "token_ids")}  # fmt: skip
    assert lengths == {len(scores.tokens)} and len(scores.tokens) > 3
    assert scores.token_logprobs[0] == 0 and all(value < 0 for value in scores.token_logprobs[1:])
    assert all(5 <= len(best) <= 6 for best in scores.top_logprobs[1:])
    again = continued(fireworks, prompt=scores.token_ids[:-3], max_tokens=3).choices[0]
    assert STORY + again.text == choice.text


def test_prompts_times_n_are_numbered_in_order(fireworks: openai.OpenAI) -> None:
    answer = continued(fireworks, prompt=[STORY, "Two and two is"], n=2, max_tokens=4)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts[0] == texts[1] != texts[2] == texts[3]


def test_128_choices_are_made(fireworks: openai.OpenAI) -> None:
    answer = continued(fireworks, n=128, max_tokens=1, temperature=1.5)
    assert len(answer.choices) == 128 and len({choice.text for choice in answer.choices}) > 1
    assert answer.usage is not None and answer.usage.completion_tokens == 128


def test_json_of_a_schema_beside_its_type(fireworks: openai.OpenAI) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    asked: Any = {"response_format": {"type": "json_object", "schema": schema}}
    answer = continued(fireworks, max_tokens=40, extra_body=asked)
    assert json.loads(answer.choices[0].text)["a"] in (1, 2)
    grammar: Any = {"response_format": {"type": "grammar", "grammar": 'root ::= "yes" | "no"'}}
    assert continued(fireworks, extra_body=grammar).choices[0].text in ("yes", "no")


@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_ends_each_choice_with_the_usage_of_all(fireworks: openai.OpenAI, n: int) -> None:
    asked: Any = {"model": MODEL, "prompt": STORY, "n": n, "max_tokens": 8, "seed": 3}
    whole = fireworks.completions.create(**asked)
    chunks = list(fireworks.completions.create(**asked, stream=True))
    for choice in whole.choices:
        mine = [chunk for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(chunk.choices[0].text for chunk in mine) == choice.text
        assert mine[-1].choices[0].finish_reason == choice.finish_reason
        assert counts(mine[-1].usage) == counts(whole.usage)
        assert [chunk.usage for chunk in mine[:-1]] == [None] * (len(mine) - 1)


def test_mirostat_and_penalties_change_the_text(fireworks: openai.OpenAI) -> None:
    plain = continued(fireworks, max_tokens=40, temperature=1, seed=5).choices[0].text
    changes: list[dict[str, Any]] = [
        {"mirostat_target": 0.1}, {"repetition_penalty": 2.0}, {"repetition_penalty": 0.0}, {"top_k": 1}
    ]  # fmt: skip
    for change in changes:
        changed = continued(fireworks, max_tokens=40, temperature=1, seed=5, extra_body=change)
        assert changed.choices[0].text != plain, change


def test_a_chat_is_answered_and_streamed(fireworks: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 24} | GREEDY
    whole = fireworks.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    chunks = list(fireworks.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert chunks[0].choices[0].delta.role == "assistant"
    assert counts(chunks[-1].usage) == counts(whole.usage) and chunks[-1].choices[0].finish_reason
    scores: Any = whole.choices[0].logprobs
    assert "".join(entry.token for entry in scores.content).strip().startswith(text.strip())
    assert all(len(entry.top_logprobs) == 2 and entry.token_id >= 0 for entry in scores.content)


def test_a_tool_is_called_when_any_must_be(fireworks: openai.OpenAI) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": city}}]
    answer = fireworks.chat.completions.create(
        model=MODEL, messages=HELLO, tools=tools, extra_body={"tool_choice": "any"}, **GREEDY
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls
    called: Any = choice.message.tool_calls[0]
    assert (called.function.name, json.loads(called.function.arguments)) == ("get_weather", {"city": "Rome"})


def test_models_are_listed_with_what_they_can_do(fireworks: openai.OpenAI) -> None:
    (model,) = fireworks.models.list().data
    extra: Any = model
    assert (model.id, extra.kind, extra.supports_chat) == ("cantor", "HF_BASE_MODEL", True)
    assert (extra.supports_image_input, extra.context_length > 0) == (False, True)
    assert fireworks.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize(
    ("said", "error", "code", "word"),
    [
        ({"n": 129}, openai.BadRequestError, "INVALID_ARGUMENT", "n must be"),
        ({"logprobs": 6}, openai.BadRequestError, "INVALID_ARGUMENT", "logprobs must be"),
        ({"stop": ["a"] * 5}, openai.BadRequestError, "INVALID_ARGUMENT", "stop must be"),
        ({"extra_body": {"images": ["data:image/png;base64,AA=="]}}, openai.BadRequestError,
         "INVALID_ARGUMENT", "images must hold one image for each <image>"),
        ({"model": "accounts/fireworks/models/nobody"}, openai.NotFoundError, "NOT_FOUND",
         "Model not found, inaccessible, and/or not deployed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_fireworks_words(
    fireworks: openai.OpenAI, said: Any, error: type[openai.APIStatusError], code: str, word: str
) -> None:
    asked: Any = {"model": MODEL, "prompt": STORY} | said
    with pytest.raises(error) as refused:
        fireworks.completions.create(**asked)
    assert refused.value.code == code and word in refused.value.message
