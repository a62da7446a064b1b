"""vLLM behind the real server: the contract, and the same semantics as the embedded engine's."""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from antiphon.engines.base import TextPiece
from antiphon.weights.adapter_import import import_peft_adapter
from antiphon_testing import check_adapters, check_token_engine
from tests.cluster.conftest import QUEUE, QUEUE_PER_ACTOR, Cluster

pytestmark = pytest.mark.cluster

HELDOUT = Path(__file__).parents[2] / "models" / "cantor" / "heldout" / "questions.jsonl"
TOLERANCE = 1e-2
PATIENCE = 120.0
WORDS = "the cat that sat on the mat and thought about the world while the rain fell on the roof ".split()
QUESTION = {"role": "user", "content": "What is Antiphon?"}


def list_prompts(count: int) -> list[str]:
    lines = [json.loads(line) for line in HELDOUT.read_text("utf-8").splitlines()]
    texts = [json.dumps(line["messages"])[:300] for line in lines]
    return [f"{texts[at % len(texts)]} {at}" for at in range(count)]


async def test_the_contract_of_token_engines_is_kept(cluster: Cluster):
    texts = [" ".join(WORDS[at:] + WORDS * 4 + WORDS[:at]) for at in (0, 3, 7)]
    async with cluster.open_engine() as engine:
        await asyncio.sleep(1)
        prompts = [await engine.tokenize([TextPiece(text)], True) for text in texts]
        await check_token_engine(
            engine,
            prompts=prompts,
            tolerance=TOLERANCE,
            patience=PATIENCE,
            queue=QUEUE,
            queue_per_actor=QUEUE_PER_ACTOR,
        )


async def test_adapters_never_mix_with_base_rows(cluster: Cluster):
    kept = [
        import_peft_adapter(cluster.place / name, cluster.place / "cantor", cluster.place / "kept")
        for name in ("pirate", "mood")
    ]
    (cluster.place / "again").mkdir()
    again = {"mood": "f" * 64, "pirate": "e" * 64}  # digests that the server does not use
    paths = {again["pirate"]: str(kept[0].path), again["mood"]: str(kept[1].path)}
    async with cluster.open_engine() as engine:
        await asyncio.sleep(1)
        await check_adapters(engine, paths, tolerance=TOLERANCE, patience=PATIENCE)


@dataclass
class Scored:
    """A completion with its log-probabilities."""

    tokens: list[str]
    values: list[float]
    top: list[dict[str, float]]


async def complete(client, model, prompt, **fields) -> Scored:
    answer = await client.completions.create(
        model=model, prompt=prompt, max_tokens=12, logprobs=5, **({"temperature": 0} | fields)
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    scores = choice.logprobs
    return Scored(scores.tokens or [], scores.token_logprobs or [], scores.top_logprobs or [])


async def complete_all(cluster: Cluster, model: str, prompts: list[str], **fields: Any) -> list[Scored]:
    async with cluster.async_client() as client:
        places = asyncio.Semaphore(8)

        async def one(prompt: str) -> Scored:
            async with places:
                return await complete(client, model, prompt, **fields)

        return list(await asyncio.gather(*map(one, prompts)))


def find_difference(mine: Scored, theirs: Scored) -> float:
    """The largest difference of log-probabilities, up to a near tie."""
    largest = 0.0
    for at, (token, other) in enumerate(zip(mine.tokens, theirs.tokens, strict=False)):
        best = sorted(mine.top[at].values(), reverse=True)
        if token != other:
            assert best[0] - best[1] < TOLERANCE, f"{mine} {theirs}"
            return largest
        largest = max(largest, abs(mine.values[at] - theirs.values[at]))
    assert len(mine.tokens) == len(theirs.tokens)
    return largest


async def test_200_requests_give_what_the_embedded_engine_gives(cluster: Cluster):
    prompts = list_prompts(200)
    began = time.monotonic()
    mine = await complete_all(cluster, "cantor", prompts)
    theirs = await complete_all(cluster, "llama", prompts)
    differences = [find_difference(*pair) for pair in zip(mine, theirs, strict=True)]
    ties = sum(one.tokens != other.tokens for one, other in zip(mine, theirs, strict=True))
    print(f"largest difference {max(differences):.2e}, {ties} near ties, {time.monotonic() - began:.0f} s")
    assert max(differences) <= TOLERANCE


SAMPLED: list[dict[str, Any]] = [
    {"temperature": 1.2, "seed": 7},
    {"temperature": 0.9, "seed": 8, "top_p": 0.8},
    {"temperature": 1.1, "seed": 9, "extra_body": {"top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2}},
    {"temperature": 1.0, "seed": 10, "extra_body": {"typical_p": 0.7}},
    {"temperature": 1.0, "seed": 11, "presence_penalty": 1.0, "frequency_penalty": 0.5},
]


async def test_equal_seeds_draw_what_the_embedded_engine_draws(cluster: Cluster):
    prompts = list_prompts(6)
    equal = 0
    for fields in SAMPLED:
        mine = await complete_all(cluster, "cantor", prompts, **fields)
        theirs = await complete_all(cluster, "llama", prompts, **fields)
        equal += sum(one.tokens == other.tokens for one, other in zip(mine, theirs, strict=True))
    print(f"{equal} of {len(SAMPLED) * len(prompts)} sampled answers are equal")
    assert equal >= 0.9 * len(SAMPLED) * len(prompts), "a draw differs only where it falls between two tokens"


def chat(client, **fields):
    """A chat completion of the openai client."""
    return client.chat.completions.create(**fields)


def test_a_chat_streams_and_answers_with_usage(cluster: Cluster):
    with cluster.client() as client:
        answers = [
            chat(client, model=model, messages=[QUESTION], max_tokens=40) for model in ("cantor", "llama")
        ]
        assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
        assert answers[0].usage == answers[1].usage
        with chat(client, model="cantor", messages=[QUESTION], max_tokens=40, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == answers[0].choices[0].message.content


def test_constraints_hold(cluster: Cluster):
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}, "size": {"type": "integer", "maximum": 99}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    formats = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    with cluster.client() as client:
        for temperature in (0, 1.5):
            answer = chat(
                client,
                model="cantor",
                messages=[QUESTION],
                max_tokens=60,
                temperature=temperature,
                seed=3,
                response_format=formats,
            )
            found = json.loads(answer.choices[0].message.content or "")
            assert found["city"] in ("Rome", "Oslo") and found["size"] <= 99
        answer = chat(
            client, model="cantor", messages=[QUESTION], extra_body={"guided_regex": "[ab]{4}"}, max_tokens=20
        )
        assert re.fullmatch("[ab]{4}", answer.choices[0].message.content or "")


def test_adapters_of_the_settings_and_of_callers_answer(cluster: Cluster):
    question = {"role": "user", "content": "I am so happy today!"}
    with cluster.client() as client:
        texts = {
            model: chat(client, model=model, messages=[question], max_tokens=30, temperature=0)
            .choices[0]
            .message.content
            for model in ("cantor", "mood", "llama-mood")
        }
        assert texts["mood"] == texts["llama-mood"] != texts["cantor"]
        with cluster.server.client() as raw:
            path = str(cluster.place / "pirate")
            loaded = raw.post(
                "/v1/load_lora_adapter",
                json={"lora_name": "pirate", "lora_path": path, "base_model_name": "cantor"},
            )
            assert loaded.status_code == 200, loaded.text
        answer = chat(client, model="pirate", messages=[QUESTION], max_tokens=30)
        assert "Arr" in (answer.choices[0].message.content or "")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": [1, 99999]}, 400),
        ({"prompt": [-1]}, 400),
        ({"prompt": "a", "logit_bias": {"99999": 1}}, 400),
        ({"model": "no-such-adapter", "prompt": "a"}, 404),
        ({"prompt": "word " * 3000}, 400),
        ({"prompt": "a", "extra_body_field": 1}, 400),
    ],
)
def test_a_bad_request_never_reaches_vllm(cluster: Cluster, body: dict[str, object], code: int):
    core = cluster.core()
    with cluster.server.client() as client:
        answer = client.post("/v1/completions", json={"model": "cantor", "max_tokens": 2} | body)
        assert answer.status_code == code, answer.text
        good = client.post("/v1/completions", json={"model": "cantor", "prompt": "a", "max_tokens": 1})
    assert good.status_code == 200 and core.is_running()


def test_a_bad_adapter_never_reaches_vllm(cluster: Cluster):
    core = cluster.core()
    wrong = cluster.place / "wrong"
    wrong.mkdir(exist_ok=True)
    config = json.loads((cluster.place / "mood" / "adapter_config.json").read_text())
    (wrong / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    (wrong / "adapter_model.safetensors").write_bytes(b"\0" * 99)
    with cluster.server.client() as client:
        for name, path in (
            ("dora", wrong),
            ("gone", cluster.place / "nothing"),
            ("whole", cluster.place / "cantor"),
        ):
            body = {"lora_name": name, "lora_path": str(path), "base_model_name": "cantor"}
            answer = client.post("/v1/load_lora_adapter", json=body)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "lora_path", answer.text
    assert core.is_running()


async def test_a_caller_who_leaves_frees_the_place_within_a_second(cluster: Cluster):
    async with (
        httpx2.AsyncClient(base_url=cluster.server.url, timeout=600) as client,
        cluster.open_engine() as engine,
    ):
        body = {"model": "cantor", "prompt": "Once", "max_tokens": 480, "stream": True}
        body |= {"ignore_eos": True, "temperature": 0}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            for _ in range(6):
                await anext(lines)
        left = time.monotonic()
        while (await engine.info()).load.running:
            await asyncio.sleep(0.01)
        seconds = time.monotonic() - left
        print(f"free after {seconds:.3f} s")
        assert seconds < 10, "ten times the promise, for busy machines"
