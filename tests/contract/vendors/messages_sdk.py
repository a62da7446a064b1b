"""Calls /v1/messages with Anthropic's own client. Reads the base URL and the model, and prints what came."""

import json
import sys
from typing import Any

import anthropic

TOOL: Any = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION: Any = {"role": "user", "content": "What is the weather in Berlin?"}


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    client = anthropic.Anthropic(base_url=asked["base_url"], api_key="none", max_retries=0)
    model = asked["model"]
    results: dict[str, Any] = {}

    def dump(message: anthropic.types.Message) -> Any:
        return message.model_dump(mode="json")

    talk: Any = {"model": model, "max_tokens": 16, "messages": [QUESTION]}
    results["whole"] = dump(client.messages.create(**talk))
    with client.messages.stream(**talk) as stream:
        kinds = [event.type for event in stream]
        results["streamed"] = dump(stream.get_final_message())
    results["kinds"] = list(dict.fromkeys(kinds))
    tools = talk | {"max_tokens": 200, "tools": [TOOL], "tool_choice": {"type": "any"}}
    called = client.messages.create(**tools)
    results["called"] = dump(called)
    with client.messages.stream(**tools) as stream:
        results["called_streamed"] = dump(stream.get_final_message())
    call: Any = called.content[-1]
    turn: Any = [
        QUESTION,
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]},
    ]
    results["second"] = dump(client.messages.create(**talk | {"messages": turn, "tools": [TOOL]}))
    results["count"] = client.messages.count_tokens(model=model, messages=[QUESTION]).input_tokens
    results["models"] = [each.id for each in client.models.list()]
    results["model"] = client.models.retrieve(model).id
    try:
        client.messages.create(**talk | {"model": "nobody"})
    except anthropic.NotFoundError as error:
        results["missing"] = error.body
        results["missing_id"] = error.request_id
    sys.stdout.write(f"RESULT {json.dumps(results)}\n")


main()
