"""The openai client at this server, whose models speak and take predictions as OpenAI's do."""

import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.connection import MAX_ANSWER
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile
from tests.support.vendors import speech_server
from tests.support.vendors.vendor_gateway import connect_client
from tests.support.vendors.vendor_http import VendorServer, serve_vendor

SPEAKS = VendorProfile(modalities=("text", "audio"), output_modalities=("text", "audio"))
MODELS = (
    VendorModel("speaks", "open", SPEAKS),
    VendorModel("speaks-reason", "open", SPEAKS),
    VendorModel("speaks-cut", "open", SPEAKS),
    VendorModel("speaks-long", "open", SPEAKS),
    VendorModel("predicts", "open", extra_parameters=frozenset({"prediction"})),
    VendorModel("plain", "open"),
)
HELLO: Any = [{"role": "user", "content": "What time is it?"}]
SPOKEN: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "pcm16"},
    "messages": HELLO,
}
MODES = pytest.mark.parametrize("is_streamed", [False, True], ids=["buffered", "streamed"])


@pytest.fixture(scope="module")
def vendor() -> Iterator[VendorServer]:
    with serve_vendor(speech_server.answer_call) as server:
        yield server


@asynccontextmanager
async def connect(vendor: VendorServer) -> AsyncIterator[openai.AsyncOpenAI]:
    vendor.calls.clear()
    async with connect_client(OpenAIUpstream(), f"{vendor.url}/v1", speech_server.KEY, MODELS) as client:
        yield client


async def ask(client: openai.AsyncOpenAI, is_streamed: bool, model: str = "speaks", **fields: Any) -> Any:
    """The whole answer; of a stream, as the client puts it together."""
    if not is_streamed:
        return await client.chat.completions.create(model=model, **fields)
    options: Any = {"include_usage": True}
    async with client.chat.completions.stream(model=model, stream_options=options, **fields) as events:
        return await events.get_final_completion()


def read_body(vendor: VendorServer) -> Any:
    return json.loads(vendor.calls[-1].body)


@MODES
@pytest.mark.parametrize("model", ["speaks", "speaks-reason"])
async def test_a_spoken_answer_reaches_the_client(vendor: VendorServer, model: str, is_streamed: bool):
    async with connect(vendor) as client:
        answer = await ask(client, is_streamed, model, **SPOKEN)
    choice = answer.choices[0]
    message, speech = choice.message, choice.message.audio
    assert (message.role, message.content, choice.finish_reason) == ("assistant", None, "stop")
    if is_streamed:
        speech = openai.types.chat.ChatCompletionAudio.model_validate(speech)
    assert (speech.id, speech.expires_at) == (speech_server.SPEECH_ID, speech_server.EXPIRES)
    assert speech.transcript == speech_server.TRANSCRIPT
    assert base64.b64decode(speech.data, validate=True) == base64.b64decode(speech_server.RECORDING)
    assert read_body(vendor)["modalities"] == ["text", "audio"]
    assert read_body(vendor)["audio"] == SPOKEN["audio"]
    prompt, completion = answer.usage.prompt_tokens_details, answer.usage.completion_tokens_details
    assert (prompt.audio_tokens, completion.audio_tokens) == (12, 20)


async def test_minutes_of_speech_are_a_whole_answer(vendor: VendorServer):
    async with connect(vendor) as client:
        answer = await ask(client, False, "speaks-long", **SPOKEN)
    assert len(speech_server.LONG_RECORDING) > MAX_ANSWER
    assert answer.choices[0].message.audio.data == speech_server.LONG_RECORDING


async def test_a_stream_of_speech_has_more_bytes_for_each_token(vendor: VendorServer):
    async with connect(vendor) as client:
        stream = await client.chat.completions.create(
            model="speaks-long", stream=True, max_tokens=1000, **SPOKEN
        )
        choices = [choice async for chunk in stream for choice in chunk.choices]
    sent = sum(len(choice.delta.audio.data or "") for choice in choices if choice.delta.audio)
    assert sent == len(speech_server.RECORDING) + 2 * len(speech_server.LONG_RECORDING)
    assert choices[-1].finish_reason == "stop"


async def test_chunks_of_speech_are_those_of_the_vendor(vendor: VendorServer):
    async with connect(vendor) as client:
        stream = await client.chat.completions.create(model="speaks", stream=True, **SPOKEN)
        choices = [choice async for chunk in stream for choice in chunk.choices]
    parts = [choice.delta.audio.model_dump(exclude_none=True) for choice in choices if choice.delta.audio]
    sent = [delta["audio"] for delta, _ in speech_server.iterate_speech("speaks") if "audio" in delta]
    assert parts == sent
    assert choices[0].delta.role == "assistant" and choices[0].delta.content is None
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


async def test_speech_that_breaks_off_does_not_look_finished(vendor: VendorServer):
    async with connect(vendor) as client:
        with pytest.raises(openai.APIError, match="broke"):
            await ask(client, True, "speaks-cut", **SPOKEN)


@MODES
async def test_the_next_turn_refers_to_the_speech(vendor: VendorServer, is_streamed: bool):
    async with connect(vendor) as client:
        first = await ask(client, False, **SPOKEN)
        said = first.choices[0].message
        history = [*HELLO, {"role": "assistant", "audio": {"id": said.audio.id}}, *HELLO]
        await ask(client, is_streamed, **SPOKEN | {"messages": history})
        assert read_body(vendor)["messages"][1] == {
            "role": "assistant",
            "content": None,
            "audio": {"id": speech_server.SPEECH_ID},
        }
        whole = await client.chat.completions.with_raw_response.create(
            model="speaks", **SPOKEN | {"messages": [*HELLO, said, *HELLO]}
        )
    assert read_body(vendor)["messages"][1]["audio"] == {"id": speech_server.SPEECH_ID}
    named = [f"messages[].audio.{name}" for name in ("data", "expires_at", "transcript")]
    assert sorted(whole.headers["x-antiphon-ignored"].split(", ")) == named


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        ("plain", {}, "modalities"),
        ("speaks", {"audio": None}, "audio"),
        ("speaks", {"modalities": ["text"]}, "audio"),
        ("speaks", {"modalities": None}, "audio"),
        ("plain", {"modalities": None, "audio": None, "messages": [
            *HELLO, {"role": "assistant", "audio": {"id": "a"}}, *HELLO]}, "messages[1].audio"),
        ("speaks", {"messages": [{"role": "user", "content": "a", "audio": {"id": "a"}}]},
         "messages[0].audio"),
        ("plain", {"modalities": None, "audio": None, "prediction": {"type": "content", "content": "a"}},
         "prediction"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_refused_by_name(
    vendor: VendorServer, model: str, fields: dict[str, Any], param: str
):
    async with connect(vendor) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, False, model, **SPOKEN | fields)
    assert refused.value.param == param
    assert vendor.calls == []


async def test_a_vendors_refusal_of_a_format_is_told(vendor: VendorServer):
    async with connect(vendor) as client:
        with pytest.raises(openai.BadRequestError, match="pcm16"):
            await ask(client, True, **SPOKEN | {"audio": {"voice": "alloy", "format": "mp3"}})


async def test_text_alone_asks_for_nothing(vendor: VendorServer):
    async with connect(vendor) as client:
        for model in ("speaks", "plain"):
            answer = await ask(client, False, model, messages=HELLO, modalities=["text"])
            assert answer.choices[0].message.content == "Hello."
            assert answer.choices[0].message.audio is None
            assert not {"modalities", "audio"} & read_body(vendor).keys()


@MODES
@pytest.mark.parametrize("content", ["Hello there.", [{"type": "text", "text": text} for text in
                                                      ("Hello", " there.")]])  # fmt: skip
async def test_a_prediction_comes_back_in_the_usage(vendor: VendorServer, content: Any, is_streamed: bool):
    predicted: Any = {"type": "content", "content": content}
    async with connect(vendor) as client:
        answer = await ask(client, is_streamed, "predicts", messages=HELLO, prediction=predicted)
    assert read_body(vendor)["prediction"] == {"type": "content", "content": "Hello there."}
    assert answer.choices[0].message.content == "Hello there."
    details = answer.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 0)
