"""Conversations of the real openai client with vendors of three shapes, through the server as it ships: keys
on, and every answer buffered and streamed. The vendors check what they get."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from tests.support.server import serving
from tests.support.vendors import anthropic_server, gemini_server, openai_server
from tests.support.vendors.conversations import (
    ALL_BY_NAME,
    PERSON,
    PHOTO,
    PIXEL,
    ModelReply,
    VendorConversation,
)
from tests.support.vendors.openai_turns import build_messages, build_options, count_media
from tests.support.vendors.vendor_http import VendorCall, VendorReply, VendorServer, serve_vendor

CONFIG = """
[providers.open]
preset = "vllm"
base_url = "{open}/v1"
key = "env:OPEN_KEY"
pass_addresses = true

[providers.fleet]
preset = "antiphon"
base_url = "{open}/v1"
key = "env:OPEN_KEY"

[providers.claude]
preset = "anthropic"
base_url = "{claude}/v1"
key = "env:CLAUDE_KEY"
private = true
pass_addresses = true

[providers.google]
preset = "gemini"
base_url = "{google}/v1beta"
key = "env:GOOGLE_KEY"
private = true
pass_addresses = true

[[models]]
name = "open/*"
provider = "open"

[[models]]
name = "fleet/*"
provider = "fleet"

[[models]]
name = "claude/*"
provider = "claude"

[[models]]
name = "google/*"
provider = "google"
"""

VENDORS: dict[str, tuple[Callable[[VendorCall], VendorReply], str]] = {
    "open": (openai_server.answer_call, openai_server.KEY),
    "claude": (anthropic_server.answer_call, anthropic_server.KEY),
    "google": (gemini_server.answer_call, gemini_server.KEY),
}

OPENAI, FIREWORKS, EMPOWER = "/v1", "/fireworks/inference/v1", "/empower/api/v1"

LACKED = {
    ("claude", "a recording"): "messages[0].content[2].input_audio",
    ("claude", "several choices"): "n",
    ("claude", "scores"): "logprobs",
    ("claude", "a detailed image"): "messages[0].content[2].image_url.detail",
    ("claude", "an object"): "response_format",
    ("claude", "some tools"): "tool_choice",
    ("google", "a required call"): "parallel_tool_calls",
}
"""What a vendor has no place for, and the field that a refusal names."""

USAGE = (125, 40, 100, 15)
"""The tokens of each answer of all three: prompt, completion, cached, reasoning."""

MODES = pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])


@dataclass
class Gateway:
    """The server, a caller's key, and the vendors behind it."""

    url: str
    key: str
    vendors: dict[str, VendorServer]

    def open(self, path: str = OPENAI) -> openai.OpenAI:
        """A client of one dialect."""
        return openai.OpenAI(base_url=self.url + path, api_key=self.key, max_retries=0, timeout=30)

    def read_bodies(self, vendor: str) -> list[Any]:
        """What a vendor has received."""
        return [json.loads(call.body) for call in self.vendors[vendor].calls]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home = tmp_path_factory.mktemp("conversations")
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
    env |= {f"{name.upper()}_KEY": key for name, (_, key) in VENDORS.items()}
    with ExitStack() as stack:
        vendors = {name: stack.enter_context(serve_vendor(answer)) for name, (answer, _) in VENDORS.items()}
        file = home / "antiphon.toml"
        file.write_text(CONFIG.format(**{name: vendor.url for name, vendor in vendors.items()}))
        server = stack.enter_context(serving("--config", str(file), threads=None, env=env))
        with server.client() as client:
            operator = (home / "admin.key").read_text().strip()
            made = client.post(
                "/admin/v1/keys",
                json={"kind": "service", "project": "default"},
                headers={"authorization": f"Bearer {operator}"},
            )
        yield Gateway(server.url, made.json()["secret"], vendors)


@pytest.fixture(scope="module")
def shared_client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with gateway.open() as client:
        yield client


@pytest.fixture
def client(gateway: Gateway, shared_client: openai.OpenAI) -> openai.OpenAI:
    """A client; no vendor has received anything yet."""
    for vendor in gateway.vendors.values():
        vendor.calls.clear()
    return shared_client


def ask(client: openai.OpenAI, is_streamed: bool, **options: Any) -> Any:
    """The whole answer, as the client reads it or accumulates it from a stream."""
    if not is_streamed:
        return client.chat.completions.create(**options)
    state = ChatCompletionStreamState()
    for chunk in client.chat.completions.create(**options, stream=True):
        state.handle_chunk(chunk)
    return state.current_completion_snapshot


def hold(
    client: openai.OpenAI, vendor: str, conversation: VendorConversation, is_streamed: bool
) -> Iterator[tuple[ModelReply, list[Any], Any]]:
    """Takes all turns, and yields each with what was sent and the answer."""
    options = build_options(conversation)
    if is_streamed and client.base_url.path == f"{OPENAI}/":
        options["stream_options"] = {"include_usage": True}  # the other dialects always give it
    messages: list[Any] = []
    said = None
    for turn in conversation.turns:
        messages += build_messages(conversation, turn, said)
        answer = ask(client, is_streamed, model=f"{vendor}/m", messages=messages, **options)
        said = answer.choices[0].message
        yield turn.reply, messages, answer


def require_meaning(reply: ModelReply, messages: list[Any], choice: Any, shows: bool = True) -> None:
    """Checks that a choice means what the vendor's model said."""
    message = choice.message
    media, results = count_media(messages)
    assert (message.content or "") == reply.fill(media, results)
    assert (getattr(message, "reasoning_content", None) or "") == (reply.reasoning if shows else "")
    calls = message.tool_calls or []
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == list(reply.calls)
    assert len({call.id for call in calls}) == len(calls)
    assert choice.finish_reason == str(reply.end)


def read_usage(answer: Any) -> tuple[int, int, int, int]:
    """The tokens that an answer tells."""
    usage = answer.usage
    thought = usage.completion_tokens_details
    return (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens_details.cached_tokens,
        thought.reasoning_tokens if thought else 0,
    )


@MODES
@pytest.mark.parametrize("name", ALL_BY_NAME)
@pytest.mark.parametrize("vendor", VENDORS)
def test_a_conversation_means_the_same_at_each_vendor(
    client: openai.OpenAI, gateway: Gateway, vendor: str, name: str, is_streamed: bool
):
    conversation = ALL_BY_NAME[name]
    if (vendor, name) in LACKED:
        with pytest.raises(openai.BadRequestError) as caught:
            list(hold(client, vendor, conversation, is_streamed))
        assert caught.value.param == LACKED[vendor, name]
        assert gateway.vendors[vendor].calls == []
        return
    turns = list(hold(client, vendor, conversation, is_streamed))
    assert len(turns) == len(gateway.vendors[vendor].calls) == len(conversation.turns)
    for reply, messages, answer in turns:
        assert len(answer.choices) == conversation.output.choices
        for choice in answer.choices:
            require_meaning(reply, messages, choice, conversation.reasoning.shown)
        assert read_usage(answer) == USAGE


# --- what the vendors were sent -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "texts"),
    [("images", (PIXEL,)), ("results with images", (PIXEL, "taken")), ("an address of an image", (PHOTO,))],
)
def test_images_reach_each_vendor(client: openai.OpenAI, gateway: Gateway, name: str, texts: tuple[str, ...]):
    for vendor, server in gateway.vendors.items():
        list(hold(client, vendor, ALL_BY_NAME[name], is_streamed=False))
        assert all(text.encode() in server.calls[-1].body for text in texts)


def test_schemas_and_stops_reach_each_vendor(client: openai.OpenAI, gateway: Gateway):
    for name in ("structured output", "a stop text"):
        for vendor in VENDORS:
            list(hold(client, vendor, ALL_BY_NAME[name], is_streamed=True))
    schema = json.loads(PERSON)
    first, second = gateway.read_bodies("open")
    assert first["response_format"]["json_schema"] == {"name": "person", "schema": schema}
    assert second["stop"] == ["END", "\n\n"]
    first, second = gateway.read_bodies("claude")
    assert first["output_config"]["format"] == {"type": "json_schema", "schema": schema}
    assert second["stop_sequences"] == ["END", "\n\n"]
    first, second = (body["generationConfig"] for body in gateway.read_bodies("google"))
    assert first["responseJsonSchema"] == {"title": "person"} | schema
    assert second["stopSequences"] == ["END", "\n\n"]


@MODES
def test_signatures_return_after_three_turns(client: openai.OpenAI, gateway: Gateway, is_streamed: bool):
    """The vendors check each signature against its part, and refuse a turn without them."""
    for vendor in VENDORS:
        list(hold(client, vendor, ALL_BY_NAME["reasoning between calls"], is_streamed))
    sent = [json.dumps(gateway.read_bodies(vendor)[-1]) for vendor in ("claude", "google")]
    assert sent[0].count('"signature"') == sent[1].count('"thoughtSignature"') == 3
    thoughts = [each.get("reasoning") for each in gateway.read_bodies("open")[-1]["messages"]]
    assert [each for each in thoughts if each] == ["First the time.", "Then it.", "A photo."]


@MODES
def test_scores_come_from_those_who_have_them(client: openai.OpenAI, is_streamed: bool):
    for vendor in ("open", "google"):
        (turn,) = hold(client, vendor, ALL_BY_NAME["scores"], is_streamed)
        scores = turn[2].choices[0].logprobs.content
        assert "".join(each.token for each in scores) == turn[0].text
        assert {each.logprob for each in scores} == {-0.5}
        assert [[other.token for other in each.top_logprobs] for each in scores] == [
            [each.token, "x"] for each in scores
        ]


# --- what is told -------------------------------------------------------------------------------------------


@MODES
def test_what_another_server_ignores_is_told(client: openai.OpenAI, is_streamed: bool):
    """The answers of a fleet of this server have this header. The user acts in the records here. The header
    of another vendor is not passed on."""
    both = "user,%20messages[].name"
    for provider, said, told in (
        ("fleet", "user", None),
        ("fleet", both, "messages[].name"),
        ("open", both, None),
    ):
        answer = client.chat.completions.with_raw_response.create(
            model=f"{provider}/reports-{said.replace('%20', ' ')}",
            messages=[{"role": "user", "content": "[a chat] Hi."}],
            user="ada",
            stream=is_streamed,
        )
        assert answer.headers.get("x-antiphon-ignored") == told
        assert answer.headers["x-antiphon-route"].startswith(f"{provider}/")


def test_a_wrong_key_of_the_caller_reaches_no_vendor(gateway: Gateway, client: openai.OpenAI):
    for vendor, server in gateway.vendors.items():
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="sk-nobody").chat.completions.create(
                model=f"{vendor}/m", messages=[{"role": "user", "content": "[a chat] Hi."}]
            )
        assert server.calls == []


# --- other dialects -----------------------------------------------------------------------------------------


def choose_vendors(chosen: str) -> list[Any]:
    """All vendors; those that are not chosen only in the soak."""
    return [each if each == chosen else pytest.param(each, marks=pytest.mark.soak) for each in VENDORS]


FIREWORKS_NAMES = (
    "several turns",
    "parallel calls",
    "results with images",
    "structured output",
    "reasoning between calls",
    "a cut answer",
)


# What a dialect means is known before a vendor is: one vendor for each dialect.
@MODES
@pytest.mark.parametrize("vendor", choose_vendors("google"))
def test_fireworks_clients_hold_conversations(
    gateway: Gateway, client: openai.OpenAI, vendor: str, is_streamed: bool
):
    with gateway.open(FIREWORKS) as fireworks:
        for name in FIREWORKS_NAMES:
            for reply, messages, answer in hold(fireworks, vendor, ALL_BY_NAME[name], is_streamed):
                require_meaning(reply, messages, answer.choices[0])
                assert answer.usage.total_tokens == sum(USAGE[:2])


@MODES
@pytest.mark.parametrize("vendor", choose_vendors("claude"))
def test_empower_clients_hold_conversations(
    gateway: Gateway, client: openai.OpenAI, vendor: str, is_streamed: bool
):
    with gateway.open(EMPOWER) as empower:
        for name in ("several turns", "one call", "parallel calls", "structured output"):
            for reply, messages, answer in hold(empower, vendor, ALL_BY_NAME[name], is_streamed):
                require_meaning(reply, messages, answer.choices[0])
                assert answer.usage.total_tokens == sum(USAGE[:2])


def test_dialects_refuse_what_the_vendor_cannot(gateway: Gateway, client: openai.OpenAI):
    hi: Any = [{"role": "user", "content": "[a chat] Hi."}]
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        (FIREWORKS, "claude", {"messages": hi, "stop": ["END"]}, "include_stop_str_in_output"),
        (FIREWORKS, "google", {"messages": hi, "extra_body": {"mirostat_target": 2}}, "mirostat_target"),
        (FIREWORKS, "claude", {"messages": hi, "seed": 7}, "seed"),
        (EMPOWER, "open", {"messages": ["[a chat] Hi.", "[a chat] Ho."]}, "messages"),
        (EMPOWER, "claude", {"messages": hi, "extra_body": {"stop_token_ids": [3]}}, "stop_token_ids"),
        (EMPOWER, "google", {"messages": hi, "extra_body": {"ignore_eos": True}}, "ignore_eos"),
    ]
    for path, vendor, options, param in cases:
        with gateway.open(path) as dialect, pytest.raises(openai.BadRequestError) as caught:
            dialect.chat.completions.create(model=f"{vendor}/m", **options)
        assert caught.value.param == param or param in str(caught.value)
        assert gateway.vendors[vendor].calls == []
