"""A vendor that answers in the shapes of OpenAI's chats, with reasoning as vLLM shows it.

It refuses what such servers refuse. The replies are those of `conversations`. The assistant's messages must
come back as they were sent, with their reasoning. A model whose name begins with `reports-` says in a header
that it ignored the fields in the rest of its name.
"""

import json
from collections.abc import Iterator
from typing import Any

from antiphon.domain.events import FinishReason
from tests.support.vendors.conversations import ModelReply, find_conversation
from tests.support.vendors.vendor_http import VendorCall, VendorReply

KEY = "sk-of-the-openai-shaped-tests"

KNOWN = frozenset(
    """
    model messages max_tokens temperature top_p n stop stream stream_options tools tool_choice logprobs
    parallel_tool_calls response_format reasoning_effort top_logprobs user seed presence_penalty
    frequency_penalty repetition_penalty
    """.split()
)
KNOWN_MESSAGE = frozenset("role content tool_calls tool_call_id reasoning".split())

FINISHES = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
}

USAGE = {
    "prompt_tokens": 125,
    "completion_tokens": 40,
    "total_tokens": 165,
    "prompt_tokens_details": {"cached_tokens": 100},
    "completion_tokens_details": {"reasoning_tokens": 15},
}

Json = dict[str, Any]


class OpenAIRefusal(Exception):
    """The API refuses the request."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def answer_call(call: VendorCall) -> VendorReply:
    """The vendor's answer to a request."""
    try:
        require(call.headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key provided.", 401)
        require(call.path == "/v1/chat/completions", "no such path", 404)
        body = json.loads(call.body)
        require_body(body)
        reply = find_next(body)
    except OpenAIRefusal as refusal:
        error = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": None}
        return VendorReply((json.dumps({"error": error}).encode(),), refusal.status)
    headers = {}
    if body["model"].startswith("reports-"):
        headers["x-antiphon-ignored"] = body["model"].removeprefix("reports-")
    if not body.get("stream"):
        return VendorReply((json.dumps(build_answer(reply, body)).encode(),), headers=headers)
    parts = [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in iterate_chunks(reply, body)]
    return VendorReply((*parts, b"data: [DONE]\n\n"), content_type="text/event-stream", headers=headers)


def require(condition: object, message: str, status: int = 400) -> None:
    if not condition:
        raise OpenAIRefusal(message, status)


# --- checks of requests -------------------------------------------------------------------------------------


def require_body(body: Json) -> None:
    """Raises OpenAIRefusal for a body that the API refuses."""
    for name in body:
        require(name in KNOWN, f"Unrecognized request argument supplied: {name}")
    calls: list[str] = []
    for message in body["messages"]:
        for name in message:
            require(name in KNOWN_MESSAGE, f"Unrecognized field of a message: {name}")
        if message["role"] == "tool":
            require(calls and calls.pop(0) == message["tool_call_id"], "a result without its call")
        else:
            require(not calls, f"tool_call_ids did not have response messages: {calls}")
        calls += [call["id"] for call in message.get("tool_calls", ())]
        if isinstance(message["content"], list):
            for part in message["content"]:
                require_part(part)
        else:
            require(message["content"] is not None or calls, "content is null")
    for tool in body.get("tools", ()):
        require(tool["type"] == "function" and tool["function"]["name"], "tools: function expected")
    require("tool_choice" not in body or body.get("tools"), "tool_choice is only allowed with tools")


def require_part(part: Json) -> None:
    """Raises OpenAIRefusal for a part of a content that the API refuses."""
    match part:
        case {"type": "text", "text": str()}:
            return
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            require(url.startswith(("data:image/", "https://")), "the image cannot be opened")
        case {"type": "input_audio", "input_audio": {"data": str(), "format": "wav" | "mp3"}}:
            return
        case _:
            raise OpenAIRefusal(f"Invalid value: {part.get('type')}")


# --- answers ------------------------------------------------------------------------------------------------


def find_next(body: Json) -> ModelReply:
    """Returns the model's next reply. Raises OpenAIRefusal if the request changed an earlier reply."""
    texts = (
        text for message in body["messages"] if message["role"] == "user" for text in read_texts(message)
    )
    conversation = find_conversation(next(texts))
    answers = [message for message in body["messages"] if message["role"] == "assistant"]
    for message, turn in zip(answers, conversation.turns, strict=False):
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", ())
        ]
        require(calls == list(turn.reply.calls), "a call has changed")
        require(message.get("reasoning", "") == turn.reply.reasoning, "the reasoning has changed")
    return conversation.turns[len(answers)].reply


def read_texts(message: Json) -> list[str]:
    """The texts of a message."""
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def build_message(reply: ModelReply, body: Json) -> Json:
    """The whole message of an answer."""
    messages = body["messages"]
    parts = [
        part for message in messages if isinstance(message["content"], list) for part in message["content"]
    ]
    media = sum(part["type"] != "text" for part in parts)
    text = reply.fill(media, sum(message["role"] == "tool" for message in messages))
    message: Json = {"role": "assistant", "content": text or None, "refusal": None}
    if reply.reasoning and body.get("reasoning_effort", "none") != "none":
        message["reasoning"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{len(messages)}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for index, (name, arguments) in enumerate(reply.calls)
        ]
    return message


def build_answer(reply: ModelReply, body: Json) -> Json:
    """The whole answer."""
    message = build_message(reply, body)
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": build_logprobs(cut(message["content"] or ""), body),
            "finish_reason": FINISHES[reply.end],
        }
        for index in range(body.get("n", 1))
    ]
    return build_head(body, "chat.completion") | {"choices": choices, "usage": USAGE}


def build_head(body: Json, kind: str) -> Json:
    """The fields of every answer and chunk."""
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


def build_logprobs(tokens: list[str], body: Json) -> Json | None:
    """The log-probabilities of a text: each five characters are a token."""
    if not body.get("logprobs"):
        return None
    return {"content": [build_score(token, body.get("top_logprobs", 0)) for token in tokens], "refusal": None}


def build_score(token: str, count: int) -> Json:
    """Builds the log-probability of a token with `count` alternatives."""
    alternatives = [(token, -0.5), ("x", -2.5)][:count]
    others = [{"token": name, "logprob": value, "bytes": list(name.encode())} for name, value in alternatives]
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": others}


def iterate_chunks(reply: ModelReply, body: Json) -> Iterator[Json]:
    """The chunks of a stream. The choices take turns."""
    head = build_head(body, "chat.completion.chunk")
    for delta in iterate_deltas(build_message(reply, body)):
        for index in range(body.get("n", 1)):
            scores = build_logprobs([delta["content"]], body) if delta.get("content") else None
            choice = {"index": index, "delta": delta, "logprobs": scores, "finish_reason": None}
            yield head | {"choices": [choice]}
    for index in range(body.get("n", 1)):
        yield head | {"choices": [{"index": index, "delta": {}, "finish_reason": FINISHES[reply.end]}]}
    if body.get("stream_options", {}).get("include_usage"):
        yield head | {"choices": [], "usage": USAGE}


def iterate_deltas(message: Json) -> Iterator[Json]:
    """The deltas of a message. Arguments come in pieces, and calls one after the other."""
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning", "content"):
        for piece in cut(message.get(name) or ""):
            yield {name: piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield {
            "tool_calls": [call | {"index": index, "function": {"name": function["name"], "arguments": ""}}]
        }
        for piece in cut(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def cut(text: str) -> list[str]:
    """Splits a text into pieces of five characters."""
    return [text[index : index + 5] for index in range(0, len(text), 5)]
