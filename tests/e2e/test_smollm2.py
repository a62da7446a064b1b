"""The demo of `make serve`: smollm2, and cantor beside it. `make install` fetches smollm2.

Its greedy answers are those of llama-server, of the same library and file, token for token up to near ties:
where two answers first differ, the two likeliest tokens are closer than `NEAR`. Nothing is compared behind a
difference.
"""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from benchmarks.model_files import find_model
from tests.constraints.validation import accepts
from tests.support.llama_server import serve_llama_server
from tests.support.server import Server, serving

FETCHED = Path(__file__).parents[2] / ".venvs" / "minilm" / "models"

NEAR = 0.05
"""The difference of log-probabilities below which two tokens are a near tie. Rows that are computed together
with others, or by another number of threads, have other last bits."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED), "ANTIPHON_HUB_OFFLINE": "1"}
    with serving("--model", "demo", env=env) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_demo_is_a_model_that_talks(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Write a Python function that adds two numbers."}],
        temperature=0,
        max_tokens=48,
    )
    text = answer.choices[0].message.content or ""
    assert "def " in text and "return" in text, text


def test_the_demo_fills_a_schema(client: OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "maximum": 130},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Tom is 31 years old. Give his name and age as JSON."}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
        temperature=0,
    )
    assert json.loads(answer.choices[0].message.content or "") == {"name": "Tom", "age": 31}


def test_its_profile_has_its_makers_sampling_licence_and_name(server: Server) -> None:
    with server.client() as client:
        listed = {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}
        profile = client.get("/v1/models/smollm2").json()["profile"]
    assert listed["smollm2"] == "ready" and "cantor" in listed
    assert (profile["sampling"]["temperature"], profile["sampling"]["top_p"]) == (0.2, 0.9)
    assert (profile["license"], profile["organization"]) == ("apache-2.0", "HuggingFaceTB")


def test_cantor_is_loaded_by_its_first_request(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="cantor", messages=[{"role": "user", "content": "Hello!"}], max_tokens=4
    )
    assert answer.choices[0].message.content


# --- beside llama-server


@dataclass(frozen=True)
class Token:
    """A greedy token, and how much likelier it was than the next one, in log-probabilities."""

    text: str
    lead: float


@pytest.fixture(scope="module")
def reference() -> Iterator[OpenAI]:
    with (
        serve_llama_server(find_model("smollm2"), template="") as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


PROMPTS = [
    form.format(topic)
    for topic, form in itertools.product(
        (
            "rivers",
            "bread",
            "the moon",
            "trains",
            "cats",
            "winter",
            "music",
            "glass",
            "the number seven",
            "tea",
        ),
        (
            "Tell me about {}.",
            "Write a short poem about {}.",
            "List three facts about {}, one on each line.",
            "Why do people like {}? Answer in two sentences.",
            "Write a Python function whose name has to do with {}.",
        ),
    )
]


def answer_greedily(client: OpenAI, prompt: str, tokens: int) -> list[Token]:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=tokens,
        logprobs=True,
        top_logprobs=2,
    )
    scores = answer.choices[0].logprobs
    assert scores is not None and scores.content is not None
    return [  # llama-server tells a control token as an empty text
        Token(
            each.token.replace("<|im_end|>", ""), each.top_logprobs[0].logprob - each.top_logprobs[1].logprob
        )
        for each in scores.content
    ]


def compare(client: OpenAI, reference: OpenAI, prompts: list[str], tokens: int) -> list[int]:
    """Returns the numbers of equal tokens of each prompt. Fails at a difference that is no near tie."""
    equal = []
    for prompt in prompts:
        found, expected = (answer_greedily(side, prompt, tokens) for side in (client, reference))
        pairs = zip(found, expected, strict=False)
        first = next((at for at, (own, other) in enumerate(pairs) if own.text != other.text), None)
        if first is None:
            assert len(found) == len(expected), prompt
        else:
            assert max(found[first].lead, expected[first].lead) < NEAR, (
                prompt,
                first,
                found[first],
                expected[first],
            )
        equal.append(len(found) if first is None else first)
    return equal


def test_its_greedy_answers_are_llama_servers(client: OpenAI, reference: OpenAI) -> None:
    assert sum(compare(client, reference, PROMPTS[::30], 12)) >= 16


@pytest.mark.soak
def test_fifty_greedy_answers_are_llama_servers(client: OpenAI, reference: OpenAI) -> None:
    equal = compare(client, reference, PROMPTS, 64)
    assert len(equal) == 50 and sum(equal) > 50 * 64 * 0.75, equal


def test_a_second_turn_reuses_the_first(client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "You answer in one short sentence. " * 3},
        {"role": "user", "content": "Name a river in Africa."},
    ]
    first = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=12, temperature=0)
    messages += [first.choices[0].message, {"role": "user", "content": "And one in Asia?"}]
    second = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=4, temperature=0)
    assert first.usage is not None and second.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None and (details.cached_tokens or 0) >= first.usage.prompt_tokens


def build_schema(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 16}
SCHEMAS: list[dict[str, object]] = [
    build_schema(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 130}),
    build_schema(colour={"enum": ["red", "green", "blue"]}, bright={"type": "boolean"}),
    build_schema(
        numbers={"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 4}
    ),
    build_schema(day={"type": "string", "format": "date"}),
    build_schema(at={"type": "string", "format": "time"}),
    build_schema(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    build_schema(kind={"const": "shop"}, price={"type": "number", "minimum": 0, "maximum": 10}),
    build_schema(place=build_schema(city=SHORT, zip={"type": "string", "pattern": "^[0-9]{5}$"})),
    build_schema(answer={"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
    build_schema(pets={"type": "array", "items": build_schema(name=SHORT), "minItems": 1, "maxItems": 2}),
    build_schema(score={"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100}),
    build_schema(tags={"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 2, "maxItems": 3}),
    build_schema(
        pair={"type": "array", "prefixItems": [SHORT, {"type": "boolean"}], "items": False, "minItems": 2}
    ),
    build_schema(id={"type": "string", "format": "uuid"}),
    build_schema(mail={"type": "string", "format": "email", "maxLength": 30}),
    build_schema(left={"$ref": "#/$defs/size"}, right={"$ref": "#/$defs/size"})
    | {"$defs": {"size": {"type": "integer", "minimum": 1, "maximum": 9}}},
    {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 6}, "minItems": 3, "maxItems": 3},
    {"enum": ["yes", "no", "unknown"]},
    {
        "oneOf": [
            build_schema(cat={"type": "boolean"}),
            build_schema(dog={"type": "integer", "maximum": 9, "minimum": 0}),
        ]
    },
    build_schema(**{f"field_{number}": {"type": "boolean"} for number in range(8)}),
]


@pytest.mark.soak
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_schema_holds(client: OpenAI, schema: dict[str, object]) -> None:
    for temperature in (0, 1):
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": "Give me an example as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "made", "schema": schema}},
            temperature=temperature,
            seed=7,
            max_tokens=400,
        )
        assert answer.choices[0].finish_reason == "stop"
        assert accepts(schema, answer.choices[0].message.content or "")
