"""Google's own client at the same test server: it sends our requests, and reads the answers alike."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from antiphon.domain.collect import CollectedChoice, CollectedGeneration, collect
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role, Tool, ToolChoice, Tools
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    GenerationRequest,
    Output,
    RawPrompt,
    Reasoning,
    SamplingOptions,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.gemini.decode import FINISHES
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from tests.contract.clients import ROOT, execute
from tests.support.vendors.conversations import ALL_BY_NAME, BY_NAME, IMAGE, TOOLS, find_reply
from tests.support.vendors.gemini_server import KEY, STATUSES, answer_call
from tests.support.vendors.vendor_exchange import VendorExchange, iterate_async
from tests.support.vendors.vendor_http import serve_vendor

PROFILE = VendorProfile(modalities=("text", "image", "audio"), reasoning=True)
MODEL = VendorModel("gemini-m", "google", PROFILE, passes_addresses=True)
SCORED = VendorModel("scored", "google", PROFILE)
FORCED = "a required call"
CONVERSATIONS = [*(each for each in BY_NAME.values() if each.name != FORCED), ALL_BY_NAME["a recording"]]
TEXTS = EmbeddingRequest("m", (RawPrompt("four"), RawPrompt("seventy")), 2)
FAILURES = [f"{point}-{status}" for point in ("error", "break") for status in STATUSES] + [
    "blocked",
    "finish-MALFORMED_FUNCTION_CALL",
]
CHAT = BY_NAME["a chat"]

EVERYTHING = replace(
    CHAT.build_request(0),
    prompts=(
        Conversation(
            CHAT.build_request(0).prompts[0].messages,  # type: ignore[union-attr]
            tools=Tools(
                (*TOOLS.tools, Tool("wait", strict=True)), ToolChoice.REQUIRED, True, frozenset({"wait"})
            ),
            reasoning=Reasoning(budget=500),
        ),
    ),
    sampling=SamplingOptions(
        temperature=0.5, top_p=0.9, top_k=40, seed=7, presence_penalty=0.5, frequency_penalty=-0.5
    ),
    output=Output(max_tokens=99, stop=("END",), logprobs=2),
    vendor_options=VendorOptions(service_tier="flex"),
)
"""A request with every parameter but several choices, which the client's summary has no place for."""

CLOSE = MediaContent(MediaKind.IMAGE, "image/png", IMAGE.data, detail="high")
LOOK = replace(
    CHAT.build_request(0),
    prompts=(Conversation((Message(Role.USER, "", content=(CLOSE,)), Message(Role.USER, "[a chat]"))),),
)


class Calls:
    """Our exchanges: each call as the script takes it, and our answer."""

    def __init__(self) -> None:
        self.made: list[tuple[str, bool, Any]] = []
        self.answers: list[CollectedGeneration] = []

    async def hold(self) -> None:
        """Makes all calls."""
        for is_buffered in (False, True):
            exchange = VendorExchange(GeminiUpstream(), answer_call, MODEL, KEY, "/v1beta")
            for conversation in CONVERSATIONS:
                self.answers += [answer for _, answer in await exchange.run(conversation, is_buffered)]
            self._note(exchange)
            for model, request in ((SCORED, EVERYTHING), (MODEL, LOOK)):
                await self._ask(model, replace(request, is_buffered=is_buffered))

    async def _ask(self, model: VendorModel, request: GenerationRequest) -> None:
        exchange = VendorExchange(GeminiUpstream(), answer_call, model, KEY, "/v1beta")
        self.answers.append(await collect(iterate_async(exchange.iterate(request))))
        self._note(exchange)

    def _note(self, exchange: VendorExchange) -> None:
        for call in exchange.calls:
            model, _, method = unquote(call.path).rpartition("/")[2].partition(":")
            self.made.append((model, method != "generateContent", json.loads(call.body)))


@cache
def run_sdk(calls: str) -> dict[str, Any]:
    """What the client reads. It starts once, since its import takes CPU seconds."""
    script = ROOT / "tests" / "contract" / "vendors" / "gemini_sdk.py"
    texts = json.loads(GeminiUpstream().encode_embedding(TEXTS, MODEL).body)
    with serve_vendor(answer_call) as server:
        told = {
            "url": server.url,
            "key": KEY,
            "calls": json.loads(calls),
            "failures": FAILURES,
            "texts": texts,
        }
        found: dict[str, Any] = json.loads(execute(["vendors/bin/python", script], json.dumps(told)))
        return found


async def run() -> tuple[list[CollectedGeneration], dict[str, Any]]:
    """Our answers, and what the client reads."""
    calls = Calls()
    await calls.hold()
    return calls.answers, run_sdk(json.dumps(calls.made))


def describe(answer: CollectedGeneration) -> dict[str, Any]:
    """What our answer means, in the words of the script."""
    (choice,), usage = answer.choices, answer.usage
    return {
        "text": choice.text,
        "reasoning": choice.reasoning,
        "signatures": list_signatures(choice),
        "calls": [[call.id, call.name, json.loads(call.arguments)] for call in choice.calls],
        "finish": choice.reason,
        "scores": [[score.piece.decode(), score.token, score.logprob] for score in choice.scores or ()],
        "tokens": [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens],
    }


def list_signatures(choice: CollectedChoice) -> list[str]:
    """The signatures of texts and calls."""
    parts = [block["part"] for block in choice.thinking_blocks]
    texts = [part["thoughtSignature"] for part in parts if isinstance(part, Mapping)]
    return texts + [call.signature for call in choice.calls if call.signature is not None]


def translate(answer: dict[str, Any]) -> dict[str, Any]:
    """What the client read, in our words."""
    prompt, cached, text, thoughts = answer["tokens"]
    finish = "tool_calls" if answer["calls"] else FINISHES[answer["finish"]]
    return answer | {"finish": finish, "tokens": [prompt, cached, text + thoughts, thoughts]}


async def test_the_client_sends_our_requests_and_reads_the_same():
    answers, found = await run()
    assert [translate(answer) for answer in found["answers"]] == [describe(answer) for answer in answers]
    assert found["answers"][0]["text"] == find_reply("[a chat]", 0).text


async def test_the_client_reads_the_servers_errors():
    errors = dict(zip(FAILURES, (await run())[1]["failures"], strict=True))
    for status, code in STATUSES.items():
        assert errors[f"error-{status}"] == [[code, status, f"said {status}"]] * 2
        whole, streamed = errors[f"break-{status}"]
        assert (whole, streamed) == ("STOP", [code, status, f"said {status}"])
    assert errors["blocked"] == ["PROHIBITED_CONTENT"] * 2
    assert errors["finish-MALFORMED_FUNCTION_CALL"] == ["MALFORMED_FUNCTION_CALL"] * 2


async def test_the_client_reads_the_servers_models_and_vectors():
    found = (await run())[1]
    assert found["models"] == ["models/gemini-m", "models/gemini-n"]
    assert found["vectors"] == [[4, -1], [7, -1]]
