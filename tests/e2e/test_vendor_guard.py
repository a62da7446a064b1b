"""What goes out to a vendor and what does not: addresses, headers and keys of callers, and requests that
nobody waits for any more."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.support.server import Server, serving
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true
connections = 2

[[models]]
name = "v/*"
provider = "v"
"""

KEY = "of-these-tests-only-0123456789"

PLACES = ("base_url", "api_base", "custom_host", "custom_llm_provider", "proxy", "callback_url", "api_key")
"""Fields by which other gateways let a caller choose where a request goes."""

HEADERS = (
    "x-base-url",
    "x-api-base",
    "x-portkey-custom-host",
    "x-litellm-api-base",
    "openai-organization",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-request-id",
    "cookie",
    "traceparent",
    "proxy-authorization",
)

SENT = {"host", "authorization", "user-agent", "content-type", "content-length", "accept-encoding"}

ASKED = {"messages": [{"role": "user", "content": "Count."}]}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def gateway(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("guard")
    file = home / "antiphon.toml"
    file.write_text(SETTINGS.format(url=upstream.url))
    env = {"VENDOR_KEY": KEY, "ANTIPHON_HOME": str(home), "ANTIPHON_UNKNOWN_FIELDS": "report"}
    with serving("--config", str(file), threads=None, env=env) as server:
        yield server


@pytest.fixture
def client(gateway: Server, upstream: ScriptedUpstream) -> Iterator[openai.OpenAI]:
    upstream.pace = 0.0
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, model: str) -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Count."}])


@contextmanager
def listen() -> Iterator[tuple[str, list[object]]]:
    """A listener that must hear nothing."""
    heard: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as canary:
        canary.settimeout(0.05)
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                try:
                    heard.append(canary.accept())
                except TimeoutError:
                    continue

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"http://127.0.0.1:{canary.getsockname()[1]}", heard
        finally:
            over.set()
            thread.join()


# --- addresses, headers and keys ----------------------------------------------------------------------------


def test_a_caller_cannot_choose_the_address(gateway: Server, upstream: ScriptedUpstream):
    with listen() as (canary, heard), gateway.client() as client:
        for name in PLACES:
            body = ASKED | {"model": "v/fake", name: canary}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200 and name in answer.headers["x-antiphon-ignored"]
            assert upstream.requests[-1].body.keys() == {"model", "messages"}
        headers = dict.fromkeys(HEADERS, canary)
        answer = client.post("/v1/chat/completions", json=ASKED | {"model": "v/fake"}, headers=headers)
        assert answer.status_code in (200, 400)
        answer = client.post("/v1/chat/completions", json=ASKED | {"model": f"v/{canary}"})
        assert answer.status_code == 200
        assert upstream.requests[-1].body["model"] == canary
    assert heard == []


def test_no_header_of_the_caller_is_passed_on(gateway: Server, upstream: ScriptedUpstream):
    headers = dict.fromkeys(HEADERS, "canary-7") | {"x-own": "canary-7", "user-agent": "canary-7"}
    with gateway.client(headers=headers) as client:
        answer = client.post("/v1/chat/completions", json=ASKED | {"model": "v/fake"})
    assert answer.status_code == 200
    sent = upstream.requests[-1]
    assert sent.headers.keys() == SENT
    assert "canary-7" not in json.dumps([sent.headers, sent.body])
    assert sent.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_never_followed(client: openai.OpenAI, upstream: ScriptedUpstream, status: int):
    with listen() as (canary, heard):
        upstream.redirect = f"{canary}/stolen"
        with pytest.raises(openai.InternalServerError, match="redirect") as caught:
            ask(client, f"v/fake-{status}")
        assert canary not in str(caught.value.response.headers) + caught.value.response.text
    assert heard == []


def test_the_key_is_shown_nowhere(gateway: Server, client: openai.OpenAI, upstream: ScriptedUpstream):
    shown = [*gateway.lines]
    for model in ("fake-400", "fake-401", "fake-500", "fake-garbage-at-after-headers"):
        with pytest.raises(openai.APIStatusError) as caught:
            ask(client, f"v/{model}")
        shown += [caught.value.response.text, str(caught.value.response.headers)]
    assert upstream.url.split("/")[2] not in "".join(shown)
    with gateway.client() as plain:
        for path in ("/metrics", "/v1/models", "/v1/models/v/fake", "/openapi.json", "/admin/v1/providers"):
            shown.append(plain.get(path).text)
    assert KEY not in "".join([*shown, *gateway.lines])
    holders = [each for each in gateway.supervisor.children() if KEY in each.environ().values()]
    assert all("antiphon.assembly" in each.cmdline() for each in holders)


# --- requests that are left ---------------------------------------------------------------------------------


@contextmanager
def hold(gateway: Server, model: str, stream: bool = True) -> Iterator[socket.socket]:
    """A request on a connection of its own, which closes at the end."""
    body = json.dumps(ASKED | {"model": model, "stream": stream}).encode()
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


@pytest.mark.parametrize(
    ("model", "stream"),
    [
        ("v/fake-stall-at-before-headers", True),
        ("v/fake-stall-at-between-chunks", True),
        ("v/fake-stall-at-after-headers", False),
        ("v/fake-stall-at-before-headers", False),
    ],
)
def test_a_client_that_leaves_closes_the_vendors_connection(
    gateway: Server, upstream: ScriptedUpstream, model: str, stream: bool
):
    asked, left = len(upstream.requests), upstream.left
    with hold(gateway, model, stream):
        wait_until(lambda: len(upstream.requests) > asked, what="the vendor is asked")
    wait_until(lambda: upstream.left > left, 20, "the vendor's connection is closed")


def test_a_client_that_leaves_the_queue_is_never_asked_for(
    gateway: Server, upstream: ScriptedUpstream, client: openai.OpenAI
):
    wait_until(lambda: count_running(gateway) == 0, what="earlier requests are gone")
    asked = len(upstream.requests)
    with hold(gateway, "v/fake-stall-at-between-chunks"), hold(gateway, "v/fake-stall-at-between-chunks"):
        wait_until(lambda: len(upstream.requests) == asked + 2, what="both connections are used")
        with hold(gateway, "v/fake"):
            wait_until(lambda: count_running(gateway) == 3, what="the third one waits")
        wait_until(lambda: count_running(gateway) == 2, 20, "the third one is gone")
        assert len(upstream.requests) == asked + 2
    assert ask(client, "v/fake").choices[0].message.content == "".join(WORDS)
    assert len(upstream.requests) == asked + 3


def count_running(gateway: Server) -> float:
    """The requests in flight on all routes, by the metrics."""
    with gateway.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("antiphon_route_in_flight{"))


# --- errors and usage ---------------------------------------------------------------------------------------


def test_errors_that_a_client_acts_on_keep_their_meaning(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError, match="too long by 7 tokens") as long:
        ask(client, "v/fake-says-context_length_exceeded")
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.InternalServerError, match="operator must") as poor:
        ask(client, "v/fake-says-insufficient_quota")
    assert poor.value.status_code == 503
    with pytest.raises(openai.InternalServerError, match="operator must") as locked:
        ask(client, "v/fake-401")
    assert (locked.value.status_code, locked.value.code) == (502, "provider_key_refused")
    with pytest.raises(openai.InternalServerError) as page:
        ask(client, "v/fake-html")
    assert page.value.status_code == 502 and "<p>" not in str(page.value)


def test_usage_that_nobody_told_is_not_shown(client: openai.OpenAI):
    assert ask(client, "v/fake").usage.total_tokens == 16
    assert ask(client, "v/fake-no-usage").usage is None
    for model, told in (("v/fake", [16]), ("v/fake-no-usage", [])):
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Count."}],
            stream=True,
            stream_options={"include_usage": True},
        )
        assert [chunk.usage.total_tokens for chunk in stream if chunk.usage] == told


def test_usage_is_asked_for_and_not_shown_unasked(gateway: Server, upstream: ScriptedUpstream):
    with gateway.client() as client:
        answer = client.post("/v1/chat/completions", json=ASKED | {"model": "v/fake", "stream": True})
    assert upstream.requests[-1].body["stream_options"] == {"include_usage": True}
    assert "usage" not in answer.text and answer.text.endswith("data: [DONE]\n\n")
