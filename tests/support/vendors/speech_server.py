"""A vendor that answers like OpenAI's audio models, and accepts predictions.

Its streams have the order and fields of recorded streams: no speech chunk has a finish reason, and the last
chunk has only the time of expiry. A model with the suffix `-reason` sends a finish reason before that chunk.
A model with the suffix `-cut` sends neither, and one with the suffix `-long` speaks for minutes. A request
without speech gets a text.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

from tests.support.vendors.vendor_http import VendorCall, VendorReply

KEY = "sk-of-the-speech-tests"

TRANSCRIPT = "Hello, it is nine."
RECORDING = base64.b64encode(bytes(range(250)) * 4).decode()
PIECE = 57
"""Characters of one chunk's data. Chunks end within a group of four."""
LONG_RECORDING = RECORDING * 9000
"""12 MB: three minutes. A stream sends it twice, in pieces of a megabyte."""
EXPIRES = 1_800_000_000
SPEECH_ID = "audio_6789abcdef"

SPEECH_USAGE = {
    "prompt_tokens": 30,
    "completion_tokens": 24,
    "total_tokens": 54,
    "prompt_tokens_details": {"audio_tokens": 12, "cached_tokens": 0, "text_tokens": 18},
    "completion_tokens_details": {"audio_tokens": 20, "text_tokens": 4, "reasoning_tokens": 0},
}
PREDICTED_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 12,
    "total_tokens": 21,
    "completion_tokens_details": {"accepted_prediction_tokens": 5, "rejected_prediction_tokens": 0},
}

Json = dict[str, Any]


def answer_call(call: VendorCall) -> VendorReply:
    """The vendor's answer to a request."""
    body = json.loads(call.body)
    if call.headers.get("authorization") != f"Bearer {KEY}":
        return refuse("Incorrect API key provided.", 401)
    if problem := find_problem(body):
        return refuse(problem, 400)
    if not body.get("stream"):
        choice = {"index": 0, "message": build_message(body), "finish_reason": "stop"}
        answer = build_head(body, "chat.completion") | {"choices": [choice], "usage": choose_usage(body)}
        return VendorReply((json.dumps(answer).encode(),))
    parts = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in iterate_chunks(body)]
    return VendorReply((*parts, b"data: [DONE]\n\n"), content_type="text/event-stream")


def refuse(message: str, status: int) -> VendorReply:
    """An error in OpenAI's form."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return VendorReply((json.dumps({"error": error}).encode(),), status)


def find_problem(body: Json) -> str | None:
    """Returns OpenAI's error message for the body, or None if it is valid."""
    audio, is_spoken = body.get("audio"), wants_speech(body)
    if is_spoken != (audio is not None):
        return "audio and modalities do not fit together"
    if audio is not None and body.get("stream") and audio["format"] != "pcm16":
        return "Unsupported value: 'audio.format' must be 'pcm16' when stream=true."
    for message in body["messages"]:
        if message["role"] == "assistant" and message.get("audio", {}).get("id") not in (None, SPEECH_ID):
            return "Audio not found"
        if message["content"] is None and "audio" not in message:
            return "content is null"
    return None


def wants_speech(body: Json) -> bool:
    return "audio" in body.get("modalities", ())


def choose_usage(body: Json) -> Json:
    return PREDICTED_USAGE if "prediction" in body else SPEECH_USAGE


def build_head(body: Json, kind: str) -> Json:
    """The fields of every answer and chunk."""
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def build_message(body: Json) -> Json:
    """The whole message of an answer."""
    if not wants_speech(body):
        text = body["prediction"]["content"] if "prediction" in body else "Hello."
        return {"role": "assistant", "content": text, "refusal": None}
    recording = LONG_RECORDING if body["model"].endswith("-long") else RECORDING
    speech = {"id": SPEECH_ID, "data": recording, "expires_at": EXPIRES, "transcript": TRANSCRIPT}
    return {"role": "assistant", "content": None, "refusal": None, "audio": speech}


def iterate_chunks(body: Json) -> Iterator[Json]:
    """The chunks of a stream."""
    head = build_head(body, "chat.completion.chunk")
    deltas = iterate_speech(body["model"]) if wants_speech(body) else iterate_text(body)
    for delta, reason in deltas:
        yield head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    if body.get("stream_options", {}).get("include_usage"):
        yield head | {"choices": [], "usage": choose_usage(body)}


def iterate_speech(model: str) -> Iterator[tuple[Json, str | None]]:
    """Yields the deltas of speech with their finish reasons."""
    words = TRANSCRIPT.split(" ")
    for index, word in enumerate(words):
        yield {"audio": {"transcript": word if index == 0 else f" {word}"}}, None
    first = {"id": SPEECH_ID, "data": RECORDING[:PIECE]}
    yield {"role": "assistant", "content": None, "refusal": None, "audio": first}, None
    for index in range(PIECE, len(RECORDING), PIECE):
        yield {"audio": {"data": RECORDING[index : index + PIECE]}}, None
    if model.endswith("-long"):
        for index in range(0, 2 * len(LONG_RECORDING), 1 << 20):
            yield {"audio": {"data": (2 * LONG_RECORDING)[index : index + (1 << 20)]}}, None
    if model.endswith("-reason"):
        yield {}, "stop"
    if not model.endswith("-cut"):
        yield {"audio": {"expires_at": EXPIRES}}, None


def iterate_text(body: Json) -> Iterator[tuple[Json, str | None]]:
    """The deltas of a text."""
    yield {"role": "assistant", "content": "", "refusal": None}, None
    yield {"content": build_message(body)["content"]}, None
    yield {}, "stop"
