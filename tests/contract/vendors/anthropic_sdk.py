"""Anthropic's own client at a test server: whether it takes our requests, and what it reads in the answers.

Standard input: {"url", "key", "bodies", "typed", "failures"}: bodies to send, bodies to compare with the
client's types only, and names of models that fail. Standard output: {"answers", "failures", "models"}. A
body that is no request of the client's types, or an answer that is none of its types, ends the script with an
error.
"""

import json
import sys
from typing import Any

import anthropic
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)
from pydantic import TypeAdapter

WHOLE = TypeAdapter[Any](MessageCreateParamsNonStreaming)
STREAMED = TypeAdapter[Any](MessageCreateParamsStreaming)
EVENT = TypeAdapter[Any](RawMessageStreamEvent)


def main() -> None:
    """Makes all calls."""
    told = json.loads(sys.stdin.read())
    for body in told["typed"]:
        require_typed(body)
    client = anthropic.Anthropic(base_url=told["url"], api_key=told["key"], max_retries=0, timeout=50)
    found = {
        "answers": [ask(client, body) for body in told["bodies"]],
        "failures": [fail(client, model) for model in told["failures"]],
        "models": [model.id for model in client.models.list()],
    }
    sys.stdout.write(json.dumps(found))


def ask(client: anthropic.Anthropic, body: dict[str, Any]) -> dict[str, Any]:
    """The meaning of the answer to a request, as the client reads it."""
    require_typed(body)
    is_streamed = body.pop("stream", False)
    if not is_streamed:
        answer = client.messages.create(**body)
        return describe(Message.model_validate(answer.to_dict(), strict=False))
    for event in client.messages.create(**body, stream=True):
        EVENT.validate_python(event.to_dict())
    with client.messages.stream(**body) as stream:
        return describe(stream.get_final_message())


def require_typed(body: dict[str, Any]) -> None:
    """Raises ValueError for a body with a field that the client's types lack or refuse."""
    adapter = STREAMED if body.get("stream") else WHOLE
    known = unpack(adapter.validate_python(body))
    if known != body:
        raise ValueError(f"the types keep {json.dumps(known)} of {json.dumps(body)}")


def unpack(value: Any) -> Any:
    """A validated value with lists in the place of iterators, which validate an item when it is read."""
    if isinstance(value, dict):
        return {name: unpack(each) for name, each in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    return [unpack(each) for each in value]


def describe(message: Message) -> dict[str, Any]:
    """What a message means."""
    usage = message.usage
    details = usage.output_tokens_details
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "reasoning": "".join(block.thinking for block in message.content if block.type == "thinking"),
        "signatures": [block.signature for block in message.content if block.type == "thinking"],
        "calls": [
            [block.id, block.name, block.input] for block in message.content if block.type == "tool_use"
        ],
        "stop": message.stop_reason,
        "tokens": [
            usage.input_tokens,
            usage.cache_creation_input_tokens,
            usage.cache_read_input_tokens,
            usage.output_tokens,
            details.thinking_tokens if details else 0,
        ],
    }


def fail(client: anthropic.Anthropic, model: str) -> list[Any]:
    """The client's error for a model that fails, whole and streamed."""
    found: list[Any] = []
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": "[a chat] Hi."}]}]
    for is_streamed in (False, True):
        try:
            answer = client.messages.create(model=model, max_tokens=9, messages=messages, stream=is_streamed)
            for _ in answer:
                pass
        except anthropic.APIStatusError as error:
            found.append([type(error).__name__, error.type])
        else:
            found.append(None)
    return found


if __name__ == "__main__":
    main()
