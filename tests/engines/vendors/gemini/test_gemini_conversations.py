"""Conversations keep their meaning through Gemini's format, streamed and buffered."""

import json
from typing import Any

import pytest

from antiphon.domain.collect import CollectedGeneration, collect
from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import EmbeddingRequest, Output, RawPrompt
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import StreamFailure, VendorModel
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from antiphon.errors import UnsupportedParameter
from tests.support.vendors.conversations import ALL_BY_NAME, BY_NAME, IMAGE, VendorConversation, require_reply
from tests.support.vendors.gemini_server import KEY, STATUSES, answer_call
from tests.support.vendors.vendor_exchange import RefusedCall, VendorExchange, iterate_async
from tests.support.vendors.vendor_http import VendorCall

MODEL = VendorModel(
    "gemini-m",
    "google",
    VendorProfile(modalities=("text", "image", "audio"), reasoning=True),
    passes_addresses=True,
)
USAGE = Usage(125, 40, 100, 15, UsageSource.REPORTED)
FORCED = "a required call"
"""It allows no parallel calls, which Gemini cannot be told."""
CONVERSATIONS = [*(each for each in BY_NAME.values() if each.name != FORCED), ALL_BY_NAME["a recording"]]
CHAT = BY_NAME["a chat"]


def open_exchange(model: str = "gemini-m") -> VendorExchange:
    return VendorExchange(GeminiUpstream(), answer_call, replace(MODEL, name=model), KEY, "/v1beta")


def read_body(call: VendorCall) -> Any:
    return json.loads(call.body)


@pytest.mark.parametrize("is_buffered", [False, True], ids=["streamed", "buffered"])
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.name)
async def test_a_conversation_keeps_its_meaning(conversation: VendorConversation, is_buffered: bool):
    exchange = open_exchange()
    done = await exchange.run(conversation, is_buffered)
    assert len(done) == len(conversation.turns)
    for turn, (request, answer) in zip(conversation.turns, done, strict=True):
        require_reply(answer.choices[0], turn.reply, request)
        assert answer.usage == USAGE
    method = "generateContent" if is_buffered else "streamGenerateContent?alt=sse"
    assert {call.path for call in exchange.calls} == {f"/v1beta/models/gemini-m:{method}"}


async def test_streamed_and_buffered_answers_are_equal():
    for conversation in CONVERSATIONS:
        streamed = await open_exchange().run(conversation, is_buffered=False)
        buffered = await open_exchange().run(conversation, is_buffered=True)
        assert [compare(answer) for _, answer in streamed] == [compare(answer) for _, answer in buffered]


def compare(answer: CollectedGeneration) -> object:
    """An answer, of its blocks the signatures alone: a stream signs an empty text after the text."""
    (choice,) = answer.choices
    signatures = [block["part"]["thoughtSignature"] for block in choice.thinking_blocks]  # type: ignore[index]
    return replace(choice, thinking_blocks=()), signatures, answer.usage


@pytest.mark.parametrize("model", ["gemini-m", "idless"])
async def test_signatures_survive_three_tool_turns(model: str):
    for is_buffered in (False, True):
        exchange = open_exchange(model)
        done = await exchange.run(BY_NAME["reasoning between calls"], is_buffered)
        given = [call.signature for _, answer in done for call in answer.choices[0].calls]
        contents = read_body(exchange.calls[-1])["contents"]
        parts = [part for content in contents for part in content["parts"] if "functionCall" in part]
        assert [part.get("thoughtSignature") for part in parts] == given
        assert [signature is not None for signature in given] == [True, True, False, True]
        ids = [part["functionCall"]["id"] for part in parts]
        assert len(set(ids)) == len(ids)


async def test_a_lost_signature_is_refused_by_the_vendor():
    exchange = open_exchange()
    conversation = BY_NAME["one call"]
    ((_, answer),) = (await exchange.run(conversation, is_buffered=True))[:1]
    (choice,) = answer.choices
    lost = replace(choice, calls=tuple(replace(call, signature=None) for call in choice.calls))
    with pytest.raises(RefusedCall) as caught:
        exchange.send(conversation.build_request(1, [lost]))
    assert caught.value.error.kind == "INVALID_ARGUMENT"


async def test_signed_texts_come_back_to_their_places():
    for is_buffered, sent in ((True, [["One."], ["Two."]]), (False, [["One.", ""], ["Two.", ""]])):
        exchange = open_exchange()
        await exchange.run(BY_NAME["several turns"], is_buffered)
        contents = read_body(exchange.calls[-1])["contents"]
        answers = [content["parts"] for content in contents if content["role"] == "model"]
        assert [[part["text"] for part in parts] for parts in answers] == sent
        assert [["thoughtSignature" in part for part in parts] for parts in answers] == [
            [False] * (len(parts) - 1) + [True] for parts in answers
        ]


async def test_images_arrive_in_results():
    exchange = open_exchange()
    await exchange.run(BY_NAME["results with images"], is_buffered=False)
    result = read_body(exchange.calls[-1])["contents"][-1]["parts"][0]["functionResponse"]
    data = {"mimeType": "image/png", "data": IMAGE.data}
    assert result == {
        "id": "c10",
        "name": "camera",
        "response": {"output": "taken"},
        "parts": [{"inlineData": data}],
    }


async def test_one_call_at_a_time_is_refused_by_name():
    exchange = open_exchange()
    with pytest.raises(UnsupportedParameter) as caught:
        await exchange.run(BY_NAME[FORCED], is_buffered=False)
    assert caught.value.param == "parallel_tool_calls"
    assert exchange.calls == []


async def test_log_probabilities_are_those_of_the_text():
    request = replace(CHAT.build_request(0), output=Output(logprobs=1))
    for is_buffered in (False, True):
        exchange = open_exchange()
        answer = await collect(iterate_async(exchange.iterate(replace(request, is_buffered=is_buffered))))
        scores = answer.choices[0].scores
        assert scores is not None
        assert b"".join(score.piece for score in scores) == b"Hello there."
        assert [score.offset for score in scores] == [0, 5, 10]
        assert scores[0].alternatives == ((7, b"Hello", -0.5), (-1, b"x", -2.5))


# --- failures -----------------------------------------------------------------------------------------------


def read_events(model: str, is_buffered: bool = False) -> list[object]:
    return list(open_exchange(model).iterate(CHAT.build_request(0, (), is_buffered)))


@pytest.mark.parametrize("status", STATUSES)
def test_errors_before_and_inside_an_answer(status: str):
    retry_after = 17.5 if status == "RESOURCE_EXHAUSTED" else None
    for is_buffered in (False, True):
        with pytest.raises(RefusedCall) as refused:
            read_events(f"error-{status}", is_buffered)
        assert (refused.value.status, refused.value.error.kind) == (STATUSES[status], status)
        assert refused.value.error.retry_after == retry_after
    with pytest.raises(StreamFailure) as broken:
        read_events(f"break-{status}")
    assert broken.value.error == refused.value.error


def test_a_stream_that_is_cut_is_broken():
    with pytest.raises(ValueError, match="before its finish"):
        read_events("cut")


@pytest.mark.parametrize("is_buffered", [False, True], ids=["streamed", "buffered"])
def test_blocked_prompts_and_failed_finishes(is_buffered: bool):
    with pytest.raises(StreamFailure) as caught:
        read_events("blocked", is_buffered)
    assert caught.value.error.status == 400
    with pytest.raises(StreamFailure) as caught:
        read_events("finish-MALFORMED_FUNCTION_CALL", is_buffered)
    assert caught.value.error.kind == "MALFORMED_FUNCTION_CALL"


def test_a_wrong_key_is_the_operators_fault():
    exchange = VendorExchange(GeminiUpstream(), answer_call, MODEL, "another key", "/v1beta")
    with pytest.raises(RefusedCall) as caught:
        exchange.send(CHAT.build_request(0))
    assert (caught.value.status, caught.value.error.kind) == (400, "API_KEY_INVALID")


# --- vectors and models -------------------------------------------------------------------------------------


def test_vectors_come_from_the_same_server():
    upstream = GeminiUpstream()
    request = EmbeddingRequest("m", (RawPrompt("four"), RawPrompt("seventy")), 2)
    call = upstream.encode_embedding(request, MODEL)
    reply = answer_call(VendorCall("/v1beta" + call.path, {"x-goog-api-key": KEY}, call.body))
    made = upstream.decode_embedding(request, b"".join(reply.parts))
    assert [memoryview(vector).cast("f").tolist() for vector in made] == [[4.0, -1.0], [7.0, -1.0]]


def test_models_come_from_the_same_server():
    upstream = GeminiUpstream()
    reply = answer_call(VendorCall("/v1beta" + upstream.build_models_path(), {"x-goog-api-key": KEY}, b""))
    assert upstream.decode_models(b"".join(reply.parts)) == ("gemini-m", "gemini-n")
