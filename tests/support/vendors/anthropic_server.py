"""A vendor with the formats and the request checks of Anthropic's Messages API.

The replies are those of `conversations`. The names of some models make the vendor fail:

- `error-KIND` answers with an error of that kind.
- `break-KIND` sends an error event after the first text.
- `cut` ends its stream before `message_stop`.
- `redacted` hides its reasoning, `paused` stops before its turn is complete.
- `empty` answers nothing.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from antiphon.domain.events import FinishReason
from tests.support.vendors.conversations import find_reply
from tests.support.vendors.vendor_http import VendorCall, VendorReply

KEY = "sk-ant-of-these-tests-only"

STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}

STOPS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}

VERSION = "2023-06-01"
NEWER_VERSION = "2026-10-21"
"""The version that the vendor's own client requests. It has no sampling options."""

REMOVED = frozenset({"temperature", "top_p", "top_k"})

KNOWN = frozenset(
    """
    model messages max_tokens system stream temperature top_p top_k stop_sequences tools tool_choice thinking
    output_config metadata service_tier
    """.split()
)

USAGE = {
    "input_tokens": 20,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation": {"ephemeral_5m_input_tokens": 5, "ephemeral_1h_input_tokens": 0},
    "service_tier": "standard",
}
OUTPUT_TOKENS = 40
THINKING_TOKENS = 15

Json = dict[str, Any]


class VendorRefusal(Exception):
    """The API refuses the request."""

    def __init__(self, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.kind = kind


def answer_call(call: VendorCall) -> VendorReply:
    """The vendor's answer to a request."""
    try:
        keys = (call.headers.get("x-api-key"), call.headers.get("authorization"))
        require(keys in ((KEY, None), (None, f"Bearer {KEY}")), "invalid x-api-key", "authentication_error")
        version = call.headers.get("anthropic-version")
        require(version in (VERSION, NEWER_VERSION), "anthropic-version: header is required")
        if call.path.partition("?")[0] == "/v1/models":
            return VendorReply((json.dumps(list_models()).encode(),))
        require(call.path == "/v1/messages", "no such path", "not_found_error")
        body = json.loads(call.body)
        for message in body["messages"]:
            split_texts(message)
        require_body(body, KNOWN if version == VERSION else KNOWN - REMOVED)
        kind = body["model"].removeprefix("error-")
        if kind in STATUSES:
            raise VendorRefusal(f"said {kind}", kind)
        message = build_answer(body)
    except VendorRefusal as refusal:
        headers = {"retry-after": "7"} if refusal.kind == "rate_limit_error" else {}
        data = json.dumps(build_failure(refusal.kind, str(refusal))).encode()
        return VendorReply((data,), STATUSES[refusal.kind], headers=headers)
    if not body.get("stream"):
        return VendorReply((json.dumps(message).encode(),))
    parts = tuple(write_event(event) for event in iterate_events(message))
    return VendorReply(parts, content_type="text/event-stream; charset=utf-8")


def split_texts(value: Json) -> None:
    """Makes a block of a content that is only a text."""
    if isinstance(value.get("content"), str):
        value["content"] = [{"type": "text", "text": value["content"]}]
    for block in value.get("content", ()):
        split_texts(block)


def require(condition: bool, message: str, kind: str = "invalid_request_error") -> None:
    if not condition:
        raise VendorRefusal(message, kind)


def build_failure(kind: str, message: str) -> Json:
    """The body of an error, and the data of an error event."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def list_models() -> Json:
    """The list of models."""
    model = {
        "type": "model",
        "display_name": "M",
        "created_at": "2026-05-01T00:00:00Z",
        "lifecycle": "active",
    }
    data = [model | {"id": name} for name in ("claude-m", "claude-n")]
    return {"data": data, "has_more": False, "first_id": "claude-m", "last_id": "claude-n"}


# --- checks of requests -------------------------------------------------------------------------------------


def require_body(body: Json, known: frozenset[str]) -> None:
    """Raises VendorRefusal for a body that the API refuses."""
    for name in body:
        require(name in known, f"{name}: Extra inputs are not permitted")
    require(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens: Field required")
    require(bool(body.get("messages")), "messages: at least one message is required")
    require(0 <= body.get("temperature", 1) <= 1, "temperature: range: 0..1")
    require_tools(body)
    require_thinking(body)
    calls: list[str] = []
    for index, message in enumerate(body["messages"]):
        role, blocks = message["role"], message["content"]
        require(role in ("user", "assistant", "system"), f"messages.{index}.role: unexpected")
        require(isinstance(blocks, list) and bool(blocks), f"messages.{index}: must have non-empty content")
        for block in blocks:
            require_block(role, block, f"messages.{index}")
        answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        require(answered == calls, f"messages.{index}: tool_use ids without tool_result blocks: {calls}")
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    require(not calls, "messages: tool_use ids were found without tool_result blocks")


def require_block(role: str, block: Json, where: str) -> None:
    """Raises VendorRefusal for a block that the API refuses in a message of this role."""
    kind = block["type"]
    roles = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant"}
    require(role == roles.get(kind, role), f"{where}: {kind} blocks are not permitted for {role}")
    match kind:
        case "text":
            require(bool(block["text"]), f"{where}: text content blocks must be non-empty")
        case "thinking":
            valid = block["signature"] == sign(block["thinking"])
            require(valid, f"{where}: Invalid `signature` in `thinking` block")
        case "redacted_thinking":
            require(block["data"] == sign("redacted"), f"{where}: Invalid data in `redacted_thinking` block")
        case "tool_use":
            require(isinstance(block["input"], dict), f"{where}.input: Input should be a valid dictionary")
        case "image":
            require(role == "user", f"{where}: images are not permitted for {role}")
        case "tool_result":
            for part in block.get("content", []):
                require_block("user", part, where)
        case _:
            raise VendorRefusal(f"{where}: unknown block {kind}")


def require_tools(body: Json) -> None:
    """Raises VendorRefusal for tools and a choice that the API refuses."""
    for tool in body.get("tools", []):
        require(tool["input_schema"].get("type") == "object", "tools.input_schema.type: Field required")
    choice = body.get("tool_choice")
    if choice is not None:
        require(bool(body.get("tools")), "tool_choice may only be specified while providing tools")
        names = [tool["name"] for tool in body["tools"]]
        require(choice["type"] != "tool" or choice["name"] in names, "tool_choice: unknown tool")


def require_thinking(body: Json) -> None:
    """Raises VendorRefusal for reasoning that the API refuses."""
    thinking = body.get("thinking", {"type": "disabled"})
    if thinking["type"] == "disabled":
        return
    budget = thinking.get("budget_tokens", 1024)
    require(1024 <= budget < body["max_tokens"], "max_tokens must be greater than thinking.budget_tokens")
    forced = body.get("tool_choice", {}).get("type") in ("any", "tool")
    require(not forced, "Thinking may not be enabled when tool_choice forces tool use.")
    for index, message in enumerate(body["messages"]):
        kinds = [block["type"] for block in message["content"]]
        begins = kinds[0] in ("thinking", "redacted_thinking")
        require(
            "tool_use" not in kinds or begins, f"messages.{index}: Expected `thinking`, found `{kinds[0]}`"
        )


def sign(text: str) -> str:
    """The signature of reasoning. The API refuses a block without it."""
    return hashlib.sha256(f"anthropic {text}".encode()).hexdigest()


# --- answers ------------------------------------------------------------------------------------------------


def build_answer(body: Json) -> Json:
    """The whole answer to a request."""
    messages = body["messages"]
    answers = sum(message["role"] == "assistant" for message in messages)
    blocks = [block for message in messages for block in message["content"]]
    results = [block for block in blocks if block["type"] == "tool_result"]
    parts = blocks + [part for result in results for part in result.get("content", [])]
    text = next(block["text"] for block in blocks if block["type"] == "text")
    model = body["model"]
    content: list[Json] = []
    stop: str = "end_turn"
    if model != "empty":
        reply = find_reply(text, answers)
        if reply.reasoning and body.get("thinking", {"type": "disabled"})["type"] != "disabled":
            content.append(build_thinking(reply.reasoning, body))
        if reply.text:
            images = sum(part["type"] == "image" for part in parts)
            content.append({"type": "text", "text": reply.fill(images, len(results)), "citations": None})
        for index, (name, arguments) in enumerate(reply.calls):
            call = {
                "type": "tool_use",
                "id": f"toolu_{answers}_{index}",
                "name": name,
                "input": dict(arguments),
            }
            content.append(call)
        stop = STOPS[reply.end]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "pause_turn" if model == "paused" else stop,
        "stop_sequence": None,
        "stop_details": None,
        "usage": USAGE
        | {"output_tokens": OUTPUT_TOKENS, "output_tokens_details": {"thinking_tokens": THINKING_TOKENS}},
    }


def build_thinking(text: str, body: Json) -> Json:
    """A block of reasoning."""
    if body["model"] == "redacted":
        return {"type": "redacted_thinking", "data": sign("redacted")}
    shown = "" if body["thinking"].get("display") == "omitted" else text
    return {"type": "thinking", "thinking": shown, "signature": sign(shown)}


def iterate_events(message: Json) -> Iterator[Json]:
    """Yields the stream events of an answer."""
    model = message["model"]
    start = message | {"content": [], "stop_reason": None, "usage": USAGE | {"output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        yield from iterate_block(index, block)
        if model.startswith("break-"):
            yield build_failure(model.removeprefix("break-"), "said it in the stream")
            return
    if model == "cut":
        return
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None, "stop_details": None}
    delta |= {"container": message["container"]} if "container" in message else {}
    yield {"type": "message_delta", "delta": delta, "usage": message["usage"]}
    yield {"type": "message_stop"}


def iterate_block(index: int, block: Json) -> Iterator[Json]:
    """The events of one block."""
    match block["type"]:
        case "text":
            empty = block | {"text": ""}
            deltas = [{"type": "text_delta", "text": part} for part in split(block["text"])]
            if citations := block.get("citations"):
                empty["citations"] = []
                deltas += [{"type": "citations_delta", "citation": each} for each in citations]
        case "thinking":
            empty = block | {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": part} for part in split(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use" | "server_tool_use":
            empty = block | {"input": {}}
            text = json.dumps(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": part} for part in ("", *split(text))]
        case _:
            empty, deltas = block, []
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def split(text: str) -> list[str]:
    """Splits the text into pieces of five characters."""
    return [text[index : index + 5] for index in range(0, len(text), 5)]


def write_event(event: Json) -> bytes:
    """A server-sent event."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
