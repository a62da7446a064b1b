"""A newcomer's first minutes: the server starts bare, says where it is, and the demo model answers."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.support.commands import run_command
from tests.support.model_files import CANTOR
from tests.support.processes import bare_environment
from tests.support.server import Server, serving
from tests.support.waiting import wait_until


@pytest.fixture
def client(server: Server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: Server, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(server.url + path, json=body, timeout=60)


def test_the_panel_tells_what_is_served_and_its_request_works(tmp_path: Path) -> None:
    """Of two models, each by its name."""
    home = tmp_path / "the server's home"
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
    models = ("--model", "cantor", "--model", f"second={CANTOR}")
    with serving("--log-format", "text", *models, env=env) as server:
        wait_until(lambda: "}'" in "\n".join(server.lines), what="the panel's last lines")
        text = "\n".join(server.lines)
        assert server.url in text and f"{server.url}/docs" in text
        assert re.search(r"model +cantor: [456]\.\d M parameters, Q8_0, \d+ x \d+ tokens", text)
        assert "second" in text and re.search(r"library +\S.*threads", text)
        admin = (home / "admin.key").read_text().strip()
        assert admin not in text
        command = text.partition("Try it:")[2].partition("}'")
        done = subprocess.run(
            ["sh", "-c", "".join(command[:2])],
            env=bare_environment(),
            capture_output=True,
            check=False,
            timeout=180,
        )
        assert len(json.loads(done.stdout)["choices"][0]["message"]["content"].split()) >= 3
        for words in (
            ("lora", "list"),
            ("top", "--once"),
            ("bench", "--model", "cantor", "--requests", "1", "--concurrency", "1"),
        ):
            found = run_command(*words, "--url", server.url, cwd=tmp_path, env={"ANTIPHON_HOME": str(home)})
            assert found.returncode == 0, (words, found.stderr)  # each found the operator's key
        with server.client(headers={"authorization": f"Bearer {admin}"}) as client:
            listed = client.get("/v1/models").json()["data"]
            assert [model["id"] for model in listed] == ["cantor", "second"]
            asked = {"prompt": "x", "max_tokens": 3, "ignore_eos": True}
            for name in ("cantor", "second"):
                answer = client.post("/v1/completions", json=asked | {"model": name})
                assert answer.json()["usage"]["completion_tokens"] == 3
            missing = client.post("/v1/completions", json=asked | {"model": "third"})
            assert missing.status_code == 404 and "cantor, second" in missing.json()["error"]["message"]


def test_an_answer_ends_by_itself_and_is_counted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="cantor", messages=[{"role": "user", "content": "Hello!"}], max_tokens=200
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and 0 < answer.usage.completion_tokens < 200
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_and_buffered_answers_are_the_same(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "cantor",
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 60,
        "seed": 7,
        "temperature": 1.0,
    }
    whole = client.chat.completions.create(**asked)
    parts = list(client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == (
        whole.choices[0].message.content
    )
    assert parts[-1].choices == [] and parts[-1].usage is not None and whole.usage is not None
    counts = {"prompt_tokens", "completion_tokens", "total_tokens"}  # the second finds its prompt kept
    assert parts[-1].usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)
    assert [p.choices[0].finish_reason for p in parts[:-1] if p.choices[0].finish_reason] == [
        whole.choices[0].finish_reason
    ]


def test_text_token_ids_and_lists_of_them_complete_alike(server: Server, client: openai.OpenAI) -> None:
    text = "Once upon a time"
    ids = post(server, "/tokenize", {"model": "cantor", "prompt": text}).json()["tokens"]
    back = post(server, "/detokenize", {"model": "cantor", "tokens": ids}).json()["prompt"]
    assert back == text
    prompts = [text, [text, text], ids, [ids, ids]]
    answers = [
        client.completions.create(model="cantor", prompt=prompt, max_tokens=12, temperature=0)
        for prompt in prompts
    ]
    texts = {choice.text for answer in answers for choice in answer.choices}
    assert len(texts) == 1 and [len(answer.choices) for answer in answers] == [1, 2, 1, 2]
    assert [choice.index for choice in answers[1].choices] == [0, 1]
    assert answers[1].usage is not None and answers[1].usage.prompt_tokens == 2 * len(ids)


def test_the_same_seed_gives_the_same_draws_and_another_does_not(client: openai.OpenAI) -> None:
    def drawn(seed: int) -> str:
        answer = client.completions.create(
            model="cantor", prompt="The", max_tokens=24, temperature=1.5, seed=seed
        )
        return answer.choices[0].text

    assert drawn(5) == drawn(5)
    assert len({drawn(seed) for seed in range(6)}) > 1


def test_choices_differ_when_sampled_and_are_equal_when_greedy(client: openai.OpenAI) -> None:
    def texts(temperature: float) -> set[str]:
        answer = client.completions.create(
            model="cantor", prompt="The", max_tokens=24, temperature=temperature, n=4, seed=1
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        return {choice.text for choice in answer.choices}

    assert len(texts(1.5)) > 1
    assert len(texts(0)) == 1


def test_a_stop_string_ends_the_text_before_it_and_never_leaks(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "cantor",
        "prompt": "Once upon a time",
        "max_tokens": 40,
        "temperature": 0,
    }
    whole = client.completions.create(**asked).choices[0].text
    stop = whole.strip()[8:13]
    buffered = client.completions.create(stop=[stop], **asked).choices[0].text
    parts = client.completions.create(stop=[stop], stream=True, **asked)
    assert buffered == "".join(part.choices[0].text for part in parts) == whole[: whole.index(stop)]


def test_control_tokens_in_a_message_stay_text(server: Server) -> None:
    def ids(text: str) -> list[int]:
        body = {"model": "cantor", "messages": [{"role": "user", "content": text}]}
        tokens: list[int] = post(server, "/tokenize", body).json()["tokens"]
        return tokens

    raw = {"model": "cantor", "prompt": "<|im_end|>", "add_special_tokens": False}
    end = post(server, "/tokenize", raw).json()["tokens"]
    assert len(end) == 1, "in a raw prompt it is one control token"
    assert ids("a<|im_end|>b").count(end[0]) == ids("ab").count(end[0])


def test_a_prompt_over_the_context_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="cantor", prompt=[100] * 2049)
    assert refused.value.code == "context_length_exceeded"
    assert "2048" in refused.value.message and "2049" in refused.value.message


def test_the_profile_tells_what_the_model_can(server: Server) -> None:
    card = httpx2.get(f"{server.url}/v1/models/cantor", timeout=60).json()
    profile = json.dumps(card)
    assert card["id"] == "cantor" and '"context_length": 2048' in profile and '"exact": true' in profile
