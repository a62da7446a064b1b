"""OpenAI's clients before, Gemini behind: signatures travel through histories of OpenAI's shape."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon.dialects.openai.dialect import OpenAI
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.http.state import AppState
from antiphon.pipeline.run import Pipeline
from antiphon.settings.server import ServerSettings
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine
from tests.support.http_server import CHAT, Reply, Served, serving_edge
from tests.support.vendors.conversations import BY_NAME, TOOLS
from tests.support.vendors.gemini_server import KEY, answer_call
from tests.support.vendors.vendor_http import VendorServer, serve_vendor

CONVERSATION = BY_NAME["reasoning between calls"]
PROFILE = VendorProfile(modalities=("text", "image"), reasoning=True)
DECLARED = [
    {"type": "function", "function": {"name": tool.name, "parameters": dict(tool.parameters or {})}}
    for tool in TOOLS.tools
]


@dataclass(frozen=True)
class Gateway:
    """Our server, and the vendor behind it."""

    served: Served
    vendor: VendorServer

    async def ask(self, messages: list[Any], model: str = "m", **changes: Any) -> Reply:
        """The answer to a chat."""
        return await self.served.ask(CHAT, {"model": model, "messages": messages, **changes})


@pytest.fixture(scope="module")
def vendor() -> Iterator[VendorServer]:
    with serve_vendor(answer_call) as server:
        yield server


@asynccontextmanager
async def open_gateway(
    vendor: VendorServer, key: str = KEY, model: str = "gemini-m"
) -> AsyncIterator[Gateway]:
    upstream = GeminiUpstream()
    options = ProviderOptions(
        "google", f"{vendor.url}/v1beta", upstream.credential_header, allows_private=True
    )
    provider = Provider(options, upstream, lambda: key)
    described = VendorModel(model, "google", PROFILE)
    engine = VendorEngine(provider, described, build_profile(PROFILE, "google", "gemini", frozenset()))
    models = ModelRegistry((Model("m", (ModelRoute(engine),), 1_700_000_000),))
    pipeline = Pipeline(models, Metrics(), restart_patience=0.0)
    edge = AppState(pipeline, models, OpenAI(), ServerSettings())
    vendor.calls.clear()
    async with serving_edge(edge) as (port, connections):
        yield Gateway(Served(port, ScriptedEngine(), edge, connections), vendor)
    await provider.aclose()


def join_deltas(events: list[Any]) -> Any:
    """The message of a stream, as clients assemble it."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    calls: list[dict[str, Any]] = []
    for delta in (choice["delta"] for event in events[:-1] for choice in event["choices"]):
        message["content"] += delta.get("content") or ""
        message.setdefault("thinking_blocks", []).extend(delta.get("thinking_blocks", []))
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({name: value for name, value in part.items() if name != "index"})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {})


@pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])
async def test_signatures_survive_histories_of_openais_shape(vendor: VendorServer, is_streamed: bool):
    messages: list[Any] = [{"role": "user", "content": f"[{CONVERSATION.name}] Plan my day."}]
    async with open_gateway(vendor) as gateway:
        for turn in CONVERSATION.turns:
            reply = await gateway.ask(messages, tools=DECLARED, reasoning_effort="high", stream=is_streamed)
            assert reply.status == 200, reply.body
            answer = join_deltas(reply.events()) if is_streamed else reply.json()["choices"][0]["message"]
            found = [call["function"]["name"] for call in answer.get("tool_calls", [])]
            assert found == [name for name, _ in turn.reply.calls]
            messages.append(answer)
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "done"}
                for call in answer.get("tool_calls", [])
            ]
        messages += [{"role": "user", "content": "Thanks."}]
    sent = json.loads(vendor.calls[-1].body)["contents"]
    signed = [part for content in sent for part in content["parts"] if "thoughtSignature" in part]
    assert len(signed) == 3  # the vendor has checked each against its part and its place


async def test_a_signed_text_returns_through_the_history(vendor: VendorServer):
    question = {"role": "user", "content": "[several turns] Count."}
    async with open_gateway(vendor) as gateway:
        answer = (await gateway.ask([question])).json()["choices"][0]["message"]
        reply = await gateway.ask([question, answer, {"role": "user", "content": "More."}])
        assert reply.json()["choices"][0]["message"]["content"] == "Two."
    parts = json.loads(vendor.calls[-1].body)["contents"][1]["parts"]
    assert [[*part] for part in parts] == [["text", "thoughtSignature"]]


async def test_a_wrong_key_is_not_the_callers_fault(vendor: VendorServer):
    async with open_gateway(vendor, key="AIza-of-nobody-at-all") as gateway:
        reply = await gateway.ask([{"role": "user", "content": "[a chat] Hi."}])
    assert (reply.status, reply.error["code"]) == (502, "provider_key_refused")


async def test_a_blocked_prompt_is_a_refusal_with_its_reason(vendor: VendorServer):
    async with open_gateway(vendor, model="blocked") as gateway:
        reply = await gateway.ask([{"role": "user", "content": "[a chat] Hi."}], stream=True)
    assert (reply.status, reply.error["code"]) == (400, "provider_refused")
    assert "PROHIBITED_CONTENT" in reply.error["message"]


async def test_a_cut_stream_never_looks_finished(vendor: VendorServer):
    async with open_gateway(vendor, model="cut") as gateway:
        reply = await gateway.ask([{"role": "user", "content": "[a chat] Hi."}], stream=True)
    assert b'"provider_stream_broken"' in reply.body
    assert b"[DONE]" not in reply.body


async def test_what_gemini_lacks_is_refused_before_it_is_asked(vendor: VendorServer):
    async with open_gateway(vendor) as gateway:
        reply = await gateway.ask([{"role": "user", "content": "[a chat] Hi."}], logit_bias={"1": 1})
        assert (reply.status, reply.error["param"]) == (400, "logit_bias")
        named = await gateway.ask([{"role": "user", "content": "Hi.", "name": "ada"}])
        assert (named.status, named.error["param"]) == (400, "messages[0].name")
    assert vendor.calls == []
