"""Predictions of answers, over the wire: of a model that always uses them. Also what log-probabilities tell
of them, and of tokens that a schema forces."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.clients import Client
from tests.support.server import Server, serving

TALK: Any = [{"role": "user", "content": "Tell me a story."}]
SETTINGS = """
[[models]]
name = "cantor"
path = "cantor"
drafts = "always"
context_length = 512

[[models]]
name = "charging"
path = "cantor"
drafts = "always"
charge_rejected_predictions = true
context_length = 512
"""
FIREWORKS = "/fireworks/inference/v1"

pytestmark = pytest.mark.timeout(480)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = tmp_path_factory.mktemp("predictions") / "antiphon.toml"
    settings.write_text(SETTINGS)
    with serving("--config", str(settings)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked: Any = {"model": "cantor", "messages": TALK, "max_tokens": 60, "temperature": 0.7, "seed": 3}
    return client.chat.completions.create(**asked | {"extra_body": {"ignore_eos": True}} | more)


def predict(content: Any) -> dict[str, Any]:
    return {"type": "content", "content": content}


def replace_words(text: str) -> str:
    """The text with every tenth word replaced."""
    return " ".join("other" if index % 10 == 5 else word for index, word in enumerate(text.split(" ")))


def read_steps(server: Server) -> int:
    with server.client() as plain:
        lines = plain.get("/metrics").text.splitlines()
    line = next(line for line in lines if line.startswith('antiphon_engine_steps_total{model="cantor"}'))
    return int(float(line.split()[-1]))


def test_a_prediction_makes_the_same_answer_in_fewer_steps(server: Server, client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    begun = read_steps(server)
    answer = chat(client, prediction=predict(text))
    steps, details = read_steps(server) - begun, answer.usage.completion_tokens_details
    assert answer.choices[0].message.content == text and answer.usage.completion_tokens == 60
    # The model does not always choose the tokens that the tokenizer makes of its text.
    assert details.accepted_prediction_tokens >= 40 and steps <= 25
    parts = [{"type": "text", "text": text[:40]}, {"type": "text", "text": text[40:]}]
    in_parts = chat(client, prediction=predict(parts))
    assert in_parts.choices[0].message.content == text
    assert in_parts.usage.completion_tokens_details == details


def test_rejected_tokens_are_told_and_not_charged(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    edited = replace_words(text)
    answer = chat(client, prediction=predict(edited))
    usage = answer.usage
    assert answer.choices[0].message.content == text
    assert usage.completion_tokens == 60 and usage.completion_tokens_details.rejected_prediction_tokens > 0
    assert usage.completion_tokens_details.accepted_prediction_tokens > 10
    stream = chat(client, prediction=predict(edited), stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == text
    assert chunks[-1].usage == usage


def read_origins(choices: list[Any]) -> list[tuple[str, str | None]]:
    """The tokens of an answer with their origins."""
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    return [(entry.token, (entry.model_extra or {}).get("origin")) for entry in entries]


SCHEMA: Any = {
    "type": "object",
    "properties": {"harbour": {"enum": ["open", "closed"]}},
    "required": ["harbour"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "state", "schema": SCHEMA}}


def test_log_probabilities_tell_which_tokens_were_drafted_or_forced(client: openai.OpenAI) -> None:
    """Streamed as buffered. Without log-probabilities the answer is the same."""
    text = chat(client).choices[0].message.content
    for more, origin in (
        ({"prediction": predict(text)}, "drafted"),
        ({"response_format": FORMAT, "extra_body": {}}, "forced"),
    ):
        answer = chat(client, logprobs=True, **more)
        origins = read_origins(answer.choices)
        assert len(origins) == answer.usage.completion_tokens
        assert {each for _, each in origins} == {origin, None}
        chunks = chat(client, logprobs=True, stream=True, **more)
        assert read_origins([choice for chunk in chunks for choice in chunk.choices]) == origins
        assert chat(client, **more).choices[0].message.content == answer.choices[0].message.content
        marked = "".join(token for token, each in origins if each)
        if origin == "drafted":
            details = answer.usage.completion_tokens_details
            assert len([each for _, each in origins if each]) >= details.accepted_prediction_tokens > 0
        else:
            assert '"harbour"' in marked.replace(" ", "")


def test_without_drafts_or_a_schema_no_token_has_an_origin(server: Server) -> None:
    """Nothing is added to an entry, so a client that knows only OpenAI's fields reads it."""
    with server.client() as plain:
        asked = {"model": "cantor", "messages": TALK, "max_tokens": 1, "logprobs": True}
        (entry,) = plain.post("/v1/chat/completions", json=asked).json()["choices"][0]["logprobs"]["content"]
    assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}


def test_a_setting_charges_rejected_tokens(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    usage = chat(client, model="charging", prediction=predict(replace_words(text))).usage
    rejected = usage.completion_tokens_details.rejected_prediction_tokens
    assert rejected > 0 and usage.completion_tokens == 60 + rejected
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_stop_text_counts_what_comes_before_it(client: openai.OpenAI) -> None:
    text = chat(client).choices[0].message.content
    stop = text.split()[8]
    plain, predicted = chat(client, stop=stop), chat(client, stop=stop, prediction=predict(text))
    assert predicted.choices[0].message.content == plain.choices[0].message.content
    assert predicted.choices[0].finish_reason == "stop"
    counted = predicted.usage.completion_tokens
    assert counted == plain.usage.completion_tokens < 60
    assert 0 < predicted.usage.completion_tokens_details.accepted_prediction_tokens <= counted


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"n": 2}, "n above 1"),
        ({"tools": [{"type": "function", "function": {"name": "look"}}]}, "tools"),
        ({"modalities": ["text", "audio"], "audio": {"format": "wav", "voice": "alloy"}}, "audio"),
    ],
)
def test_what_openai_refuses_beside_it_is_refused(
    client: openai.OpenAI, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"not supported together with {words}") as refused:
        chat(client, prediction=predict("Once"), **more)
    assert refused.value.param == "prediction"


def test_a_prediction_longer_than_the_context_is_cut_and_named(client: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "messages": TALK, "max_tokens": 4}
    with_raw = client.chat.completions.with_raw_response
    for content, named in (("Once. " * 2000, "prediction[512:]"), ("Once. ", None)):
        reply = with_raw.create(**asked | {"prediction": predict(content)})
        assert reply.headers.get("x-antiphon-ignored") == named


def test_a_prediction_beside_a_schema_is_not_used(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="cantor",
        messages=TALK,
        prediction={"type": "content", "content": '{"a": true}'},
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["a"] in (True, False)
    assert answer.usage is not None and answer.usage.completion_tokens_details is None


def test_fireworks_takes_it_as_a_text_an_object_or_token_ids(server: Server) -> None:
    asked = {"model": "cantor", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    with server.client() as plain:

        def ask(**more: Any) -> Any:
            return plain.post(f"{FIREWORKS}/completions", json=asked | {"ignore_eos": True} | more)

        silent = ask(return_token_ids=True).json()["choices"][0]
        text, ids = silent["text"], silent["token_ids"]
        forms = (
            {"prediction": text},
            {"prediction": {"type": "content", "content": text}},
            {"speculation": text},
            {"speculation": ids},
        )
        for form in forms:
            answer = ask(**form).json()
            assert answer["choices"][0]["text"] == text
            assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= 25, form
        for wrong in ({"speculation": [1 << 30]}, {"speculation": "a", "prediction": "a"}):
            refused = ask(**wrong)
            assert refused.status_code == 400 and "speculation" in refused.text
        messages = {"messages": TALK, "prompt": None, "n": 2, "prediction": text}
        several = plain.post(
            f"{FIREWORKS}/chat/completions",
            json={name: value for name, value in (asked | messages).items() if value is not None},
        )
        assert several.status_code == 200 and len(several.json()["choices"]) == 2


def test_the_client_of_fireworks_sends_it(server: Server) -> None:
    model = "accounts/fireworks/models/cantor"
    body = {"model": model, "messages": TALK, "max_tokens": 40, "temperature": 0}
    script = Client("fireworks/bin/python", "fireworks/drive.py")
    told = {"base_url": f"{server.url}/fireworks/inference", "line": "sdk"}

    def ask(**more: Any) -> Any:
        call = {"call": "Fireworks.chat.completions.create", "with": body | more}
        (result,) = script.run(told | {"calls": [call]})
        assert "error" not in result, result
        return result["answer"]

    text = ask()["choices"][0]["message"]["content"]
    for prediction in (text, predict(text)):
        assert ask(prediction=prediction)["choices"][0]["message"]["content"] == text


def test_scales_endpoint_takes_it(server: Server) -> None:
    asked = {"model": "cantor", "messages": TALK, "max_tokens": 40, "temperature": 0}
    with server.client() as plain:

        def ask(**more: Any) -> Any:
            return plain.post("/sgp/v4/beta/chat/completions", json=asked | more).json()

        text = ask()["choices"][0]["message"]["content"]
        answer = ask(prediction=predict(text))
        assert answer["choices"][0]["message"]["content"] == text
        assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10
