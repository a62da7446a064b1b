"""A vendor with the formats and the request checks of OpenAI's Responses API.

The replies are those of `conversations`. It stores nothing: reasoning must come back in sealed form, directly
before what followed it. The names of some models make the vendor fail:

- `error-CODE` answers with an error of that code.
- `break-CODE` ends its stream with `response.failed` of that code after the first item.
- `cut` ends its stream before the last event.
- `refusing` refuses to answer.
- `plain` does not reason, and refuses the options of reasoning.
"""

import hashlib
import json
from collections.abc import Iterator
from itertools import count, groupby
from typing import Any

from antiphon.domain.events import FinishReason
from tests.support.vendors.conversations import ModelReply, find_conversation
from tests.support.vendors.openai_server import build_score, cut
from tests.support.vendors.vendor_http import VendorCall, VendorReply

KEY = "sk-of-the-responses-tests"

STATUSES = {
    "invalid_prompt": 400,
    "context_length_exceeded": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "server_overloaded": 503,
}

REASONS = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}

KNOWN = frozenset(
    """
    model input store stream include reasoning tools tool_choice parallel_tool_calls max_output_tokens text
    top_logprobs temperature top_p service_tier prompt_cache_key user
    """.split()
)

PARTS = {
    "input_text": {"type", "text", "prompt_cache_breakpoint"},
    "input_image": {"type", "image_url", "detail"},
    "input_file": {"type", "filename", "file_data"},
}

USAGE = {
    "input_tokens": 125,
    "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 5},
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 15},
    "total_tokens": 165,
}

SEALED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"

REFUSAL = "I cannot help with that."

Json = dict[str, Any]


class ResponsesRefusal(Exception):
    """The API refuses the request."""

    def __init__(self, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def answer_call(call: VendorCall) -> VendorReply:
    """The vendor's answer to a request."""
    try:
        authorization = call.headers.get("authorization")
        require(authorization == f"Bearer {KEY}", "Incorrect API key provided.", "invalid_api_key")
        require(call.path == "/v1/responses", "no such path", "model_not_found")
        body = json.loads(call.body)
        require_body(body)
        code = body["model"].removeprefix("error-")
        if code in STATUSES:
            raise ResponsesRefusal(f"said {code}", code)
        response = build_response(body)
    except ResponsesRefusal as refusal:
        error: Json = {"message": str(refusal), "type": "invalid_request_error"}
        error |= {"param": refusal.param, "code": refusal.code}
        headers = {"retry-after": "7"} if refusal.code == "rate_limit_exceeded" else {}
        data = json.dumps({"error": error}).encode()
        return VendorReply((data,), STATUSES.get(refusal.code or "", 400), headers=headers)
    if not body.get("stream"):
        return VendorReply((json.dumps(response).encode(),))
    parts = tuple(write_event(event) for event in number_events(iterate_events(response)))
    return VendorReply(parts, content_type="text/event-stream; charset=utf-8")


def require(condition: object, message: str, code: str | None = None, param: str | None = None) -> None:
    if not condition:
        raise ResponsesRefusal(message, code, param)


# --- checks of requests -------------------------------------------------------------------------------------


def require_body(body: Json) -> None:
    """Raises ResponsesRefusal for a body that the API refuses."""
    for name in body:
        require(name in KNOWN, f"Unknown parameter: '{name}'.", "unknown_parameter", name)
    require(body.get("store") is False, "this organization stores nothing", None, "store")
    for name in body.get("include", ()):
        require(name in (SEALED, LOGPROBS), f"Invalid value: '{name}'.", None, "include")
    if body["model"] == "plain":
        sealed = SEALED in body.get("include", ())
        require(not sealed, "Encrypted content is not supported with this model.", None, "include")
        require("reasoning" not in body, "Unsupported parameter: 'reasoning'.", None, "reasoning")
    require(
        "top_logprobs" not in body or LOGPROBS in body["include"],
        "top_logprobs needs include",
        None,
        "include",
    )
    for tool in body.get("tools", ()):
        require(
            tool.keys() <= {"type", "name", "description", "parameters", "strict"},
            "unknown field",
            None,
            "tools",
        )
        require(tool["type"] == "function" and isinstance(tool["strict"], bool), "a tool without strict")
        require(isinstance(tool["parameters"], dict), "a tool without parameters", None, "tools")
    require("tool_choice" not in body or body.get("tools"), "tool_choice is only allowed with tools")
    require_items(body["input"])


def require_items(items: list[Json]) -> None:
    """Raises ResponsesRefusal for items that the API refuses."""
    calls: set[str] = set()
    for index, item in enumerate(items):
        match item:
            case {"type": "message", "role": "assistant", "content": str(text)}:
                require(text, "an empty message of the assistant")
            case {"type": "message", "role": "user" | "system" | "developer", "content": content}:
                require_content(content, item["role"] == "user")
            case {
                "type": "reasoning",
                "id": str(),
                "summary": list(summary),
                "encrypted_content": str(sealed),
            }:
                texts = [part["text"] for part in summary]
                require(sealed.startswith("gAAAA"), "Item not found: items are not stored.")
                require(sealed == seal(sealed[5:].split(".")[0], texts), "The encrypted content is invalid.")
                follows = index + 1 < len(items) and is_answer(items[index + 1])
                require(follows, "a reasoning item was provided without its required following item")
            case {"type": "function_call", "call_id": str(id_), "name": str(), "arguments": str(arguments)}:
                json.loads(arguments)
                calls.add(id_)
            case {"type": "function_call_output", "call_id": str(id_), "output": output}:
                require(id_ in calls, f"No tool call found for function call output with call_id {id_}.")
                calls.remove(id_)
                require_content(output, True)
            case _:
                raise ResponsesRefusal(f"Invalid value: {item}", "invalid_value", f"input[{index}]")
    require(not calls, f"No tool output found for function call {calls}.")


def require_content(content: str | list[Json], takes_media: bool) -> None:
    """Raises ResponsesRefusal for a content that the API refuses."""
    for part in content if isinstance(content, list) else ():
        require(part["type"] in PARTS and part.keys() <= PARTS[part["type"]], f"Invalid value: {part}")
        require(takes_media or part["type"] == "input_text", "only the user sends media")
        address: str = part.get("image_url") or part.get("file_data") or "data:"
        require(address.startswith(("data:", "https://")), "the file cannot be opened")


def seal(turn: str, texts: list[str]) -> str:
    """The sealed form of the reasoning of a turn. The API refuses another one."""
    digest = hashlib.sha256(f"{turn} {texts}".encode()).hexdigest()
    return f"gAAAA{turn}.{digest}"


# --- answers ------------------------------------------------------------------------------------------------


def find_next(body: Json) -> tuple[int, ModelReply]:
    """Returns the number of the next turn, and the model's reply. Raises ResponsesRefusal if the request
    changed an earlier reply."""
    items = body["input"]
    texts = (text for item in items if item.get("role") == "user" for text in read_texts(item["content"]))
    conversation = find_conversation(next(texts))
    answers = [list(group) for is_own, group in groupby(items, is_answer) if is_own]
    for answer, turn in zip(answers, conversation.turns, strict=False):
        calls = [
            (item["name"], json.loads(item["arguments"]))
            for item in answer
            if item["type"] == "function_call"
        ]
        require(calls == list(turn.reply.calls), "a call has changed")
        has_reasoning = any(item["type"] == "reasoning" for item in answer)
        reasons = bool(turn.reply.reasoning) and SEALED in body.get("include", ())
        require(has_reasoning == reasons, "the reasoning has changed")
    return len(answers), conversation.turns[len(answers)].reply


def is_answer(item: Json) -> bool:
    """Whether the model made an item."""
    return item["type"] in ("reasoning", "function_call") or item.get("role") == "assistant"


def read_texts(content: str | list[Json]) -> list[str]:
    """The texts of a content."""
    return [content] if isinstance(content, str) else [part["text"] for part in content if "text" in part]


def build_response(body: Json) -> Json:
    """The whole answer to a request."""
    turn, reply = find_next(body)
    items = body["input"]
    contents = [item.get("content", item.get("output")) for item in items]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    media = sum(part["type"] in ("input_image", "input_file") for part in parts)
    status = "incomplete" if reply.end in REASONS else "completed"
    output: list[Json] = []
    include, reasoning = body.get("include", ()), body.get("reasoning", {})
    if reply.reasoning and SEALED in include:
        has_summary = "summary" in reasoning
        texts = reply.reasoning.split("\n\n") if has_summary else []
        item: Json = {"type": "reasoning", "id": f"rs_{turn}"}
        item["summary"] = [{"type": "summary_text", "text": text} for text in texts]
        output.append(item | {"encrypted_content": seal(str(turn), texts)})
    if body["model"] == "refusing":
        refusal = {"type": "refusal", "refusal": REFUSAL}
        output.append(build_message(turn, refusal, status))
    elif text := reply.fill(media, sum(item["type"] == "function_call_output" for item in items)):
        logprobs = [build_score(token, body.get("top_logprobs", 0)) for token in cut(text)]
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            build_message(turn, part | {"logprobs": logprobs if LOGPROBS in include else []}, status)
        )
    for index, (name, arguments) in enumerate(reply.calls):
        call = {"type": "function_call", "id": f"fc_{turn}_{index}", "call_id": f"call_{turn}_{index}"}
        written = json.dumps(arguments, ensure_ascii=False)
        output.append(call | {"name": name, "arguments": written, "status": "completed"})
    details = {"reason": REASONS[reply.end]} if reply.end in REASONS else None
    return build_head(body) | {
        "status": status,
        "incomplete_details": details,
        "output": output,
        "usage": USAGE,
    }


def build_message(turn: int, part: Json, status: str) -> Json:
    """An item with a text or a refusal."""
    message = {"type": "message", "id": f"msg_{turn}", "role": "assistant", "status": status}
    return message | {"content": [part]}


def build_head(body: Json) -> Json:
    """The fields of a response that are known before its answer."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": body["model"],
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": 1.0,
        "top_p": 1.0,
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "store": False,
    }


def iterate_events(response: Json) -> Iterator[Json]:
    """Yields the events of a streamed answer."""
    model = response["model"]
    start = response | {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield {"type": "response.created", "response": start}
    yield {"type": "response.in_progress", "response": start}
    for index, item in enumerate(response["output"]):
        yield from iterate_item(index, item)
        if model.startswith("break-"):
            error = {"code": model.removeprefix("break-"), "message": "said it in the stream"}
            yield {"type": "response.failed", "response": start | {"status": "failed", "error": error}}
            return
    if model != "cut":
        yield {"type": f"response.{response['status']}", "response": response}


def iterate_item(index: int, item: Json) -> Iterator[Json]:
    """The events of one item."""
    place = {"output_index": index, "item_id": item["id"]}
    empty: Json = {
        "message": {"content": []},
        "reasoning": {"summary": []},
        "function_call": {"arguments": ""},
    }
    opened = item | empty[item["type"]]
    if item["type"] != "reasoning":
        opened["status"] = "in_progress"
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    if item["type"] == "function_call":
        for delta in cut(item["arguments"]):
            yield place | {
                "type": "response.function_call_arguments.delta",
                "delta": delta,
                "obfuscation": "x",
            }
        done = {"name": item["name"], "arguments": item["arguments"]}
        yield place | {"type": "response.function_call_arguments.done"} | done
    for number, part in enumerate(item.get("summary", ())):
        at = place | {"summary_index": number}
        yield at | {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}}
        for delta in cut(part["text"]):
            yield at | {"type": "response.reasoning_summary_text.delta", "delta": delta}
        yield at | {"type": "response.reasoning_summary_text.done", "text": part["text"]}
        yield at | {"type": "response.reasoning_summary_part.done", "part": part}
    for part in item.get("content", ()):
        at = place | {"content_index": 0}
        name = "text" if part["type"] == "output_text" else "refusal"
        kind = f"response.{part['type']}"
        begun = part | {name: ""} | ({"logprobs": []} if name == "text" else {})
        yield at | {"type": "response.content_part.added", "part": begun}
        for number, delta in enumerate(cut(part[name])):
            extra: Json = {"logprobs": part["logprobs"][number : number + 1]} if name == "text" else {}
            yield at | {"type": f"{kind}.delta", "delta": delta} | extra
        extra = {"logprobs": part["logprobs"]} if name == "text" else {}
        yield at | {"type": f"{kind}.done", name: part[name]} | extra
        yield at | {"type": "response.content_part.done", "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def number_events(events: Iterator[Json]) -> Iterator[Json]:
    """Yields the events with their numbers."""
    return (event | {"sequence_number": number} for number, event in zip(count(), events))


def write_event(event: Json) -> bytes:
    """A server-sent event."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
