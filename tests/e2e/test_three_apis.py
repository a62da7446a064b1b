"""The same conversation through chat completions, Responses and Messages is one prompt, one answer and one
bill: the same text, usage and row of the ledger, buffered and streamed."""

import json
from pathlib import Path
from typing import Any

import httpx2

from tests.support.server import Server
from tests.support.waiting import wait_until

MODEL = "cantor"
MOST_TOKENS = 30
SYSTEM, QUESTION, SAID, RESULT = "Be short.", "What is the weather in Berlin?", "Looking.", "rain"
NAME, DESCRIPTION = "get_weather", "Get the weather of a city."
ARGUMENTS = '{"city": "Berlin"}'
CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = {"id": "call-1", "type": "function", "function": {"name": NAME, "arguments": ARGUMENTS}}

CHAT = {
    "model": MODEL,
    "temperature": 0,
    "max_tokens": MOST_TOKENS,
    "tools": [
        {
            "type": "function",
            "function": {"name": NAME, "description": DESCRIPTION, "parameters": CITY},
        }
    ],
    "messages": [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": SAID, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call-1", "content": RESULT},
    ],
}
RESPONSE = {
    "model": MODEL,
    "temperature": 0,
    "max_output_tokens": MOST_TOKENS,
    "tools": [
        {
            "type": "function",
            "name": NAME,
            "description": DESCRIPTION,
            "parameters": CITY,
            "strict": False,
        }
    ],
    "instructions": SYSTEM,
    "input": [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": SAID},
        {"type": "function_call", "call_id": "call-1", "name": NAME, "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call-1", "output": RESULT},
    ],
}
MESSAGE = {
    "model": MODEL,
    "temperature": 0,
    "max_tokens": MOST_TOKENS,
    "tools": [{"name": NAME, "description": DESCRIPTION, "input_schema": CITY}],
    "system": SYSTEM,
    "messages": [
        {"role": "user", "content": QUESTION},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": SAID},
                {"type": "tool_use", "id": "call-1", "name": NAME, "input": {"city": "Berlin"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "call-1", "content": RESULT}],
        },
    ],
}
OWN = {
    "id",
    "request_id",
    "at_ms",
    "time",
    "dialect",
    "operation",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "routes",
}
"""What differs from row to row. The routes have times."""


def test_a_conversation_is_the_same_by_each_api(keyed: tuple[Server, Path]) -> None:
    server, home = keyed
    with server.client() as client:
        admin = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}

        def post(path: str, body: object, headers: dict[str, str]) -> Any:
            answer = client.post(path, json=body, headers=headers)
            assert answer.is_success, answer.text
            return answer.json()

        price = {"models": "*", "currency": "USD", "input": "1", "cached": "0.5", "output": "10"}
        price_id = post("/admin/v1/prices", price, admin)["id"]
        made = post("/admin/v1/keys", {"kind": "service", "project": "default"}, admin)
        key = {"authorization": f"Bearer {made['secret']}"}
        post("/v1/chat/completions", CHAT, key)  # from here on its prompt is in the cache
        chat = post("/v1/chat/completions", CHAT, key)
        response = post("/v1/responses", RESPONSE, key)
        message = post("/v1/messages", MESSAGE, key)
        streamed = [
            read_stream(client, path, body, key)
            for path, body in (
                ("/v1/chat/completions", CHAT),
                ("/v1/responses", RESPONSE),
                ("/v1/messages", MESSAGE),
            )
        ]
        rows = list_rows(client, admin, made["id"], 7)[1:]
        assert client.delete(f"/admin/v1/prices/{price_id}", headers=admin).is_success
    texts = [
        chat["choices"][0]["message"]["content"],
        "".join(part["text"] for part in response["output"][0]["content"]),
        "".join(block["text"] for block in message["content"]),
    ]
    assert texts[0] == texts[1] == texts[2] != ""
    assert streamed == texts
    usage = read_chat_usage(chat["usage"])
    assert usage == read_response_usage(response["usage"]) == read_message_usage(message["usage"])
    operations = ["/v1/chat/completions", "/v1/responses", "/v1/messages"]
    assert [row["operation"] for row in rows] == 2 * operations
    first, *others = [{name: value for name, value in row.items() if name not in OWN} for row in rows]
    assert others == [first] * 5
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == usage
    assert first["status"] == "ok" and float(first["cost"]) > 0 and first["cached_tokens"] > 0


def read_stream(client: httpx2.Client, path: str, body: Any, headers: dict[str, str]) -> str:
    """The text of a streamed answer."""
    answer = client.post(path, json=body | {"stream": True}, headers=headers)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    text = ""
    for event in map(json.loads, lines):
        if "choices" in event:
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "content_block_delta":
            text += event["delta"]["text"]
    return text


def read_chat_usage(usage: Any) -> tuple[int, int, int]:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, usage["completion_tokens"]


def read_response_usage(usage: Any) -> tuple[int, int, int]:
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


def read_message_usage(usage: Any) -> tuple[int, int, int]:
    """Anthropic counts cached tokens beside the others."""
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached, usage["output_tokens"]


def list_rows(client: httpx2.Client, admin: dict[str, str], key: str, count: int) -> list[dict[str, Any]]:
    """The rows of a key, the oldest first, once so many are there."""
    rows: list[dict[str, Any]] = []

    def are_there() -> bool:
        answer = client.get("/admin/v1/usage/entries", params={"limit": 100, "key": key}, headers=admin)
        rows[:] = answer.json()["data"]
        return len(rows) >= count

    wait_until(are_there, what="the rows of the ledger")
    return sorted(rows, key=lambda row: row["at_ms"])
