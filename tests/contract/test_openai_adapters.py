"""Adapters through OpenAI's client: models like others, and vLLM's two endpoints as its users call them."""

from collections.abc import Iterator

import openai
import pytest

from benchmarks.make_adapter import write_adapter
from tests.support.model_files import CANTOR
from tests.support.server import serving

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server too."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Of a server with cantor, an adapter `steady` of its settings, and the file of another."""
    place = tmp_path_factory.mktemp("adapters")
    write_adapter(place / "steady.gguf", CANTOR, rank=4, seed=1, weight=4.0)
    write_adapter(place / "other.gguf", CANTOR, rank=4, seed=2, weight=4.0)
    env = {
        "ANTIPHON_LORA_DIRECTORIES": str(place),
        "ANTIPHON_ADAPTERS": f"steady={place / 'steady.gguf'}",
        "ANTIPHON_HOME": str(place / "home"),
    }
    with (
        serving(env=env) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made,
    ):
        yield made


def load(client: openai.OpenAI, name: str, path: str) -> str:
    return client.post("/load_lora_adapter", body={"lora_name": name, "lora_path": path}, cast_to=str)


def unload(client: openai.OpenAI, name: str) -> str:
    return client.post("/unload_lora_adapter", body={"lora_name": name}, cast_to=str)


def answer(client: openai.OpenAI, model: str) -> str:
    messages = [{"role": "user", "content": "What is Antiphon?"}]
    asked = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    assert {whole.model, *(chunk.model for chunk in chunks)} == {model}
    text: str = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert whole.usage.prompt_tokens > 0
    return text


def test_an_adapter_is_a_model_with_a_parent(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert list(listed)[:2] == ["cantor", "steady"]
    extra = listed["steady"].model_extra or {}
    assert extra["parent"] == "cantor" and extra["root"].startswith("sha256:")
    assert (listed["cantor"].model_extra or {})["parent"] is None
    assert client.models.retrieve("steady").id == "steady"
    assert answer(client, "steady") != answer(client, "cantor")


def test_adapters_are_loaded_and_unloaded_as_with_vllm(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as before:
        answer(client, "other")
    assert before.value.code == "model_not_found"
    assert load(client, "other", "other.gguf") == "Success: LoRA adapter 'other' added successfully."
    assert len({answer(client, name) for name in ("cantor", "steady", "other")}) == 3
    with pytest.raises(openai.BadRequestError, match="loaded already, with other content"):
        load(client, "other", "steady.gguf")
    assert unload(client, "other") == "Success: LoRA adapter 'other' removed successfully."
    with pytest.raises(openai.NotFoundError):
        answer(client, "other")


def test_what_cannot_be_loaded_is_an_error_that_says_why(client: openai.OpenAI) -> None:
    for path, words in (("absent.gguf", "absent.gguf"), ("../up", "none of the directories")):
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            load(client, "bad", path)
        assert (refused.value.param, refused.value.type) == ("lora_path", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        unload(client, "bad")
