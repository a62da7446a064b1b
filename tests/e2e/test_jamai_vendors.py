"""JamAI Base's dialect over vendors' models: what a vendor lacks is left out and named, and a model is chosen
by what it can do."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.server import Server, serving
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream

SETTINGS = """
[providers.bare]
kind = "openai"
base_url = "{url}"
private = true
refuses = [
  "temperature", "top_p", "stop", "presence_penalty", "frequency_penalty", "logit_bias", "reasoning_effort"
]

[providers.whole]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "bare"
routes = [{{ provider = "bare", model = "fake" }}]

[[models]]
name = "mixed"
routes = [{{ provider = "bare", model = "fake-503" }}, {{ provider = "whole", model = "fake", order = 2 }}]

[[models]]
name = "seeing"
routes = [{{ provider = "whole", model = "fake" }}]
profile = {{ modalities = ["text", "image"], max_output = 500 }}

[[models]]
name = "whole/*"
provider = "whole"
"""

CHAT = "/jamai/api/v1/chat/completions"
COUNT: Any = {"messages": [{"role": "user", "content": "Count."}]}
SAMPLED: Any = {
    "temperature": 0.3,
    "top_p": 0.5,
    "stop": ["zzz"],
    "presence_penalty": 1,
    "frequency_penalty": 1,
    "logit_bias": {"7": 1},
    "reasoning_effort": "low",
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("jamai-vendors")
    file = home / "antiphon.toml"
    file.write_text(SETTINGS.format(url=upstream.url))
    with serving("--config", str(file), threads=None, env={"ANTIPHON_HOME": str(home)}) as server:
        yield server


@pytest.fixture
def client(gateway: Server) -> Iterator[httpx2.Client]:
    with gateway.client() as client:
        yield client


def ask(client: httpx2.Client, **fields: Any) -> httpx2.Response:
    reply = client.post(CHAT, json=COUNT | fields)
    assert reply.status_code == 200, reply.text
    return reply


def list_ignored(reply: httpx2.Response) -> set[str]:
    return set(reply.headers["x-antiphon-ignored"].split(", "))


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_vendor_lacks_is_left_out_and_named(
    client: httpx2.Client, upstream: ScriptedUpstream, stream: bool
) -> None:
    reply = ask(client, model="antiphon/bare", stream=stream, **SAMPLED)
    assert list_ignored(reply) == SAMPLED.keys()
    body = upstream.requests[-1].body
    assert not SAMPLED.keys() & body.keys() and 2048 in body.values()


def test_the_defaults_of_the_page_are_left_out_too(client: httpx2.Client) -> None:
    assert list_ignored(ask(client, model="bare")) == {"temperature", "top_p"}


def test_another_route_gets_everything(client: httpx2.Client, upstream: ScriptedUpstream) -> None:
    upstream.requests.clear()
    reply = ask(client, model="mixed", temperature=0.3, top_p=0.5)
    first, second = (request.body for request in upstream.requests)
    assert "temperature" not in first and (second["temperature"], second["top_p"]) == (0.3, 0.5)
    assert "x-antiphon-ignored" not in reply.headers


def test_other_dialects_refuse_what_a_vendor_lacks(client: httpx2.Client) -> None:
    reply = client.post("/v1/chat/completions", json=COUNT | {"model": "bare", "temperature": 0.3})
    assert reply.status_code == 400 and "temperature is not supported" in reply.text


def test_a_model_that_sees_is_chosen_for_an_image(client: httpx2.Client, upstream: ScriptedUpstream) -> None:
    reply = ask(client, messages=[{"role": "user", "content": [IMAGE]}], max_tokens=9000)
    assert reply.json()["model"] == "antiphon/seeing"
    assert 500 in upstream.requests[-1].body.values() and 9000 not in upstream.requests[-1].body.values()


def test_fireworks_images_reach_a_model_that_sees(client: httpx2.Client, upstream: ScriptedUpstream) -> None:
    path, url = "/fireworks/inference/v1/completions", "data:image/png;base64,AAAA"
    body = {"model": "seeing", "prompt": "Before <image> after", "images": [url], "max_tokens": 5}
    for stream in (False, True):
        reply = client.post(path, json=body | {"stream": stream})
        assert reply.status_code == 200, reply.text
        said = json.loads(reply.text.split("\n\n")[0][6:]) if stream else reply.json()
        assert said["object"] == "text_completion" and said["choices"][0]["text"].startswith(WORDS[0])
        assert upstream.requests[-1].path.endswith("/chat/completions")
        (message,) = upstream.requests[-1].body["messages"]
        assert message["content"] == [
            {"type": "text", "text": "Before "},
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": " after"},
        ]
    refused = client.post(path, json=body | {"model": "whole/fake"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "images[0]")


def test_patterns_are_not_listed_and_their_names_are_called(client: httpx2.Client) -> None:
    ids = client.get("/jamai/api/v1/models/ids").json()
    assert ids == ["antiphon/bare", "antiphon/mixed", "antiphon/seeing"]
    assert ask(client, model="whole/fake").json()["model"] == "whole/fake"


def test_a_vendor_that_tells_no_usage_has_nulls(client: httpx2.Client) -> None:
    nothing = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}
    whole = ask(client, model="whole/fake-no-usage").json()
    assert whole["usage"] == nothing and whole["choices"][0]["message"]["content"] == "".join(WORDS)
    lines = ask(client, model="whole/fake-no-usage", stream=True).text.split("\n\n")
    assert lines[-2] == "data: [DONE]" and json.loads(lines[-3][6:])["usage"] == nothing


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("whole/fake-503", 503, "busy"),
        ("whole/fake-401", 401, "external_authentication_failed"),
        ("whole/fake-400", 422, "bad_input"),
        ("whole/fake-404", 404, "resource_not_found"),
        ("whole/fake-429-after-7", 429, "rate_limit_exceeded"),
        ("whole/fake-500", 502, "unexpected_error"),
    ],
)
def test_a_vendors_failure_has_jamais_code(client: httpx2.Client, model: str, status: int, code: str) -> None:
    reply = client.post(CHAT, json=COUNT | {"model": model})
    assert (reply.status_code, reply.json()["error"]) == (status, code)


def test_a_vendors_broken_stream_is_an_error_object(
    client: httpx2.Client, upstream: ScriptedUpstream
) -> None:
    body = COUNT | {"model": "whole/fake-reset-at-between-chunks", "stream": True}
    shown = threading.Event()
    upstream.has_shown = lambda _: shown.is_set()
    try:
        with client.stream("POST", CHAT, json=body) as reply:
            assert reply.status_code == 200
            lines = []
            for line in filter(None, reply.iter_lines()):
                shown.set()  # the vendor breaks the stream when its begin has arrived
                lines.append(line)
    finally:
        upstream.has_shown = None
    last = json.loads(lines[-1][6:])
    assert (last["object"], last["error"]) == ("error", "unexpected_error") and "data: [DONE]" not in lines
