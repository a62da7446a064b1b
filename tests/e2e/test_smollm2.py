"""The demo of `make serve`: smollm2, and cantor beside it. `make install` fetches smollm2."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.server import Server, serving

FETCHED = Path(__file__).parents[2] / ".venvs" / "minilm" / "models"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED), "ANTIPHON_HUB_OFFLINE": "1"}
    with serving("--model", "demo", env=env) as server:
        yield server


@pytest.fixture
def client(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


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
