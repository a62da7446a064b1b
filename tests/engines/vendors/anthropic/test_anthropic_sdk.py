"""Anthropic's own client at the same test server: it sends our requests, and reads the answers alike."""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.messages import Message, Role, Tool, ToolChoice, Tools
from antiphon.domain.request import Conversation, GenerationRequest, Output, Reasoning, VendorOptions
from antiphon.engines.vendors.anthropic.decode import FINISHES
from antiphon.engines.vendors.anthropic.dialect import AnthropicUpstream
from antiphon.engines.vendors.base import Attributes, VendorModel
from antiphon.engines.vendors.profiles import VendorProfile
from tests.contract.clients import ROOT, execute
from tests.support.vendors.anthropic_server import KEY, STATUSES, answer_call
from tests.support.vendors.conversations import CONVERSATIONS
from tests.support.vendors.vendor_exchange import VendorExchange
from tests.support.vendors.vendor_http import serve_vendor

MODEL = VendorModel(
    "claude-m",
    "anthropic",
    VendorProfile(max_output=8000, modalities=("text", "image"), reasoning=True),
    passes_addresses=True,
)
FAILURES = [f"{point}-{kind}" for point in ("error", "break") for kind in STATUSES]

Done = tuple[GenerationRequest, CollectedGeneration]


async def hold_conversations() -> tuple[list[Done], list[dict[str, Any]]]:
    """All requests with our answers, and the body of each request."""
    exchange = VendorExchange(AnthropicUpstream(), answer_call, MODEL, KEY, "/v1")
    done = [
        turn
        for is_buffered in (False, True)
        for conversation in CONVERSATIONS
        for turn in await exchange.run(conversation, is_buffered)
    ]
    return done, [json.loads(call.body) for call in exchange.calls]


def encode_options() -> list[dict[str, Any]]:
    """Bodies with the options that the conversations lack."""
    said = (Message(Role.USER, "Hi."), Message(Role.SYSTEM, "Now in verse."), Message(Role.ASSISTANT, "Oh"))
    tool = Tool("clock", "Tells the time.", {"type": "object", "properties": {}}, strict=True)
    forced = Tools((tool,), ToolChoice.REQUIRED, parallel=False)
    prompts = (
        Conversation(said, generation_prompt=False, continues=True, reasoning=Reasoning("none")),
        Conversation(said[:1], tools=Tools((tool,), ToolChoice.NONE), reasoning=Reasoning(budget=2000)),
        Conversation(said[:1], tools=forced),
        Conversation(said[:1], reasoning=Reasoning("xhigh", shown=False)),
    )
    output, vendor_options = Output(stop=("a", "b")), VendorOptions(service_tier="default")
    calls = [
        AnthropicUpstream().encode(
            GenerationRequest("m", (prompt,), output=output, vendor_options=vendor_options),
            MODEL,
            Attributes("u-1"),
        )
        for prompt in prompts
    ]
    return [json.loads(call.body) for call in calls]


@cache
def run_sdk(bodies: str) -> dict[str, Any]:
    """What the client reads. It starts once, since its import takes two CPU seconds."""
    script = ROOT / "tests" / "contract" / "vendors" / "anthropic_sdk.py"
    with serve_vendor(answer_call) as server:
        told = {
            "url": server.url,
            "key": KEY,
            "bodies": json.loads(bodies),
            "typed": encode_options(),
            "failures": FAILURES,
        }
        found: dict[str, Any] = json.loads(execute(["vendors/bin/python", script], json.dumps(told)))
        return found


def describe(answer: CollectedGeneration) -> dict[str, Any]:
    """What our answer means, in the words of the script."""
    (choice,), usage = answer.choices, answer.usage
    return {
        "text": choice.text,
        "reasoning": choice.reasoning,
        "signatures": [block["signature"] for block in choice.thinking_blocks],
        "calls": [[call.id, call.name, json.loads(call.arguments)] for call in choice.calls],
        "stop": choice.reason,
        "tokens": [
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens,
            usage.reasoning_tokens,
        ],
    }


def translate(answer: dict[str, Any]) -> dict[str, Any]:
    """What the client read, in our words."""
    fresh, created, read, output, thinking = answer["tokens"]
    return answer | {
        "stop": FINISHES[answer["stop"]],
        "tokens": [fresh + created + read, read, output, thinking],
    }


async def test_the_client_sends_our_requests_and_reads_the_same():
    done, bodies = await hold_conversations()
    found: Sequence[dict[str, Any]] = run_sdk(json.dumps(bodies))["answers"]
    assert [translate(answer) for answer in found] == [describe(answer) for _, answer in done]


async def test_the_client_reads_the_servers_errors_and_models():
    _, bodies = await hold_conversations()
    found = run_sdk(json.dumps(bodies))
    errors = dict(zip(FAILURES, found["failures"], strict=True))
    for kind in STATUSES:
        assert [error[1] for error in errors[f"error-{kind}"]] == [kind, kind]
        whole, streamed = errors[f"break-{kind}"]
        assert whole is None
        assert streamed[1] == kind
    assert errors["error-overloaded_error"][0][0] == "OverloadedError"
    assert found["models"] == ["claude-m", "claude-n"]
