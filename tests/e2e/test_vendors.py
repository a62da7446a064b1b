"""A server that has only vendors' models, as the example in the docs configures it."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.e2e.refused_starts import refused, refused_process
from tests.support.server import Server, serving
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

EXAMPLE = """
[providers.first]
kind = "openai"                       # openai, anthropic, gemini
base_url = "{url}"
key = "env:FIRST_KEY"                 # or file:PATH
private = true                        # the address may be a private one
extra_params = ["reasoning"]
extra_headers = ["X-Trace"]

[providers.away]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
private = true

[providers.azure]
base_url = "{url}"
key = "env:FIRST_KEY"
private = true

[[models]]
name = "azure/*"                      # MODEL/DEPLOYMENT
provider = "azure"

[[models]]
name = "either"
routes = [{{ provider = "first", model = "fake-503" }}, {{ provider = "first", model = "fake", order = 2 }}]

[[models]]
name = "added"
routes = [{{ provider = "first", model = "fake-503" }}, {{ provider = "first", model = "fake", order = 2 }}]

[[models]]
name = "logged"
routes = [{{ provider = "first", model = "fake" }}]

[[models]]
name = "down"
routes = [{{ provider = "away" }}]

[[models]]
name = "first/*"                      # the rest of the name is the vendor's model
provider = "first"
"""

KEY = "sk-of-these-tests-only-0123456789"


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("vendors")
    file = home / "antiphon.toml"
    file.write_text(EXAMPLE.format(url=upstream.url))
    env = {"FIRST_KEY": KEY, "ANTIPHON_HOME": str(home)}
    with serving("--config", str(file), threads=None, env=env) as server:
        yield server


@pytest.fixture
def client(gateway: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def has_said(server: Server, text: str) -> bool:
    return any(text in line for line in server.lines)


def ask(client: openai.OpenAI, model: str) -> str | None:
    answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count."}])
    return answer.choices[0].message.content


def test_the_second_route_serves_when_the_first_is_down(client: openai.OpenAI, upstream: ScriptedUpstream):
    upstream.requests.clear()
    assert ask(client, "either") == "".join(WORDS)
    assert [request.body["model"] for request in upstream.requests] == ["fake-503", "fake"]


def test_the_log_names_the_route_that_served(client: openai.OpenAI, gateway: Server):
    ask(client, "logged")
    wait_until(
        lambda: [each["route"] for each in gateway.records("generation") if each["model"] == "logged"],
        what="logged",
    )
    assert "first/fake" in {each["route"] for each in gateway.records("generation")}


def test_a_pattern_passes_the_rest_of_the_name_on(client: openai.OpenAI, upstream: ScriptedUpstream):
    assert ask(client, "first/some/model:free") == "".join(WORDS)
    request = upstream.requests[-1]
    assert request.body["model"] == "some/model:free"
    assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/sgp/v4/beta/chat/completions"])
def test_azure_gets_the_deployment_of_a_model(path: str, gateway: Server, upstream: ScriptedUpstream):
    for name in ("azure/gpt-4o/mine", "azure/mine"):
        body = {"model": name, "messages": [{"role": "user", "content": "Count."}], "max_tokens": 7}
        with gateway.client() as client:
            answer = client.post(path, json=body)
        assert answer.status_code == 200 and answer.json()["model"] == name
        assert upstream.requests[-1].body["model"] == "mine"


SGP_CHAT = "/sgp/v4/beta/chat/completions"
COUNT = {"model": "added", "messages": [{"role": "user", "content": "Count."}]}


def test_what_the_operator_allows_reaches_each_route(gateway: Server, upstream: ScriptedUpstream):
    upstream.requests.clear()
    added = {"top_p": 0.5, "reasoning": {"max": 7}}
    fields = {"inference_extra_params": added, "inference_extra_headers": {"x-Trace": "7"}}
    with gateway.client() as client:
        assert client.post(SGP_CHAT, json=COUNT | fields).status_code == 200
    assert [request.body["model"] for request in upstream.requests] == ["fake-503", "fake"]
    for request in upstream.requests:
        assert request.body.items() >= added.items()
        assert request.headers["x-trace"] == "7"
        assert request.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("name", ["authorization", "X-Api-Key", "Host", "cookie", "x-other"])
def test_a_forbidden_header_is_refused_before_the_vendor(
    name: str, gateway: Server, upstream: ScriptedUpstream
):
    upstream.requests.clear()
    secret = "a-secret-of-the-caller"
    with gateway.client() as client:
        refused = client.post(SGP_CHAT, json=COUNT | {"inference_extra_headers": {name: secret}})
    assert (refused.status_code, upstream.requests) == (422, [])
    assert f"inference_extra_headers.{name}" in refused.text
    assert secret not in refused.text
    assert not has_said(gateway, secret)


def test_a_field_that_the_operator_does_not_allow_is_refused(gateway: Server, upstream: ScriptedUpstream):
    upstream.requests.clear()
    with gateway.client() as client:
        refused = client.post(SGP_CHAT, json=COUNT | {"inference_extra_params": {"provider": "x"}})
    assert (refused.status_code, upstream.requests) == (422, [])
    assert "inference_extra_params.provider is not allowed by the operator" in refused.text


@pytest.mark.parametrize(("point", "status"), [("mid-chunk", 504), ("between-chunks", 200)])
def test_the_callers_timeout_ends_a_vendors_answer(point: str, status: int, gateway: Server):
    fields: dict[str, object] = {"model": f"first/fake-stall-at-{point}", "stream": status == 200}
    with gateway.client() as client:
        late = client.post(SGP_CHAT, json=COUNT | fields | {"inference_timeout": "0.5"})
        if late.status_code != status:  # on a busy machine the first event of a stream came later
            late = client.post(SGP_CHAT, json=COUNT | fields | {"inference_timeout": "20"})
    assert late.status_code == status
    assert "[DONE]" not in late.text
    assert "time has passed" in late.text


def test_a_patterns_own_name_is_one_of_its_names(client: openai.OpenAI, upstream: ScriptedUpstream):
    assert ask(client, "first/*") == "".join(WORDS)
    assert upstream.requests[-1].body["model"] == "*"


def test_a_stream_ends_with_the_vendors_usage(client: openai.OpenAI):
    stream = client.chat.completions.create(
        model="first/fake",
        messages=[{"role": "user", "content": "Count."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "".join(WORDS)
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 16


def test_a_provider_that_is_away_is_tried_at_each_request(client: openai.OpenAI, gateway: Server):
    for _ in range(3):
        with pytest.raises(openai.InternalServerError, match="the provider away cannot be reached") as caught:
            ask(client, "down")
        assert caught.value.status_code == 503 and caught.value.response.headers["retry-after"]


def test_the_vendors_limit_is_told_with_its_retry_after(client: openai.OpenAI):
    with pytest.raises(openai.RateLimitError) as caught:
        ask(client, "first/fake-429-after-7")
    assert caught.value.response.headers["retry-after"] == "7"
    assert caught.value.code == "provider_rate_limited"


def test_a_vendors_error_shows_no_key_and_no_address(client: openai.OpenAI, gateway: Server):
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model="first/fake-error-at-after-headers",
            messages=[{"role": "user", "content": "Count."}],
            stream=True,
        )
    assert "boom" in str(caught.value) and "10.1.2.3" not in str(caught.value)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, "first/fake-400")
    assert "sk-secret" not in str(refused.value)
    assert not any(KEY in line for line in gateway.lines)


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("fake-deep", 502, "provider_failed"),
        ("fake-deep-error", 400, "provider_refused"),
        ("fake-no-text-error", 400, "provider_refused"),
    ],
)
def test_bytes_that_no_decoder_reads_are_the_vendors(
    client: openai.OpenAI, model: str, status: int, code: str
):
    with pytest.raises(openai.APIStatusError) as caught:
        ask(client, f"first/{model}")
    assert (caught.value.status_code, caught.value.code) == (status, code)


def test_a_redirect_is_not_followed(client: openai.OpenAI):
    with pytest.raises(openai.InternalServerError, match="redirect"):
        ask(client, "first/fake-302")


def test_a_missing_key_or_private_address_ends_the_start(tmp_path: Path):
    file, home = tmp_path / "antiphon.toml", {"ANTIPHON_HOME": str(tmp_path)}
    file.write_text(EXAMPLE.format(url="http://127.0.0.1:1/v1"))
    assert "FIRST_KEY is empty or not set" in refused("--config", str(file), env=home)
    file.write_text(EXAMPLE.format(url="http://10.0.0.1/v1").replace("private = true", ""))
    line = refused_process("--config", str(file), env=home | {"FIRST_KEY": KEY})
    assert "private" in line and KEY not in line
