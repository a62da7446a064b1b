"""Checks the events of the Messages API: their order, and that they are one message.

The rules are those on which Anthropic's clients and Claude Code rely: one block is open at a time, each has
its own deltas, reasoning ends with one signature, and the end comes once.
"""

import json
from typing import Any

DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}
"""By the kind of a block: its deltas, and their fields."""


def check_message_events(events: list[Any]) -> Any:
    """Returns the message of a stream's events. Raises AssertionError if an event is missing, doubled or in a
    wrong place. The message of an answer that breaks has `error`, and the blocks that are complete."""
    rest = iter([event for event in events if event["type"] != "ping"])
    start = next(rest)
    assert start["type"] == "message_start"
    message = json.loads(json.dumps(start["message"]))
    assert (message["content"], message["stop_reason"]) == ([], None)
    event = next(rest, None)
    while event is not None and event["type"] == "content_block_start":
        assert event["index"] == len(message["content"])
        block = event["content_block"]
        event = _read_deltas(block, event["index"], rest)
        if event["type"] == "error":
            break
        assert (event["type"], event["index"]) == ("content_block_stop", len(message["content"]))
        message["content"].append(block)
        event = next(rest, None)
    assert event is not None
    if event["type"] == "error":
        message["error"] = event["error"]
    else:
        assert event["type"] == "message_delta" and event["delta"]["stop_reason"] and message["content"]
        message |= event["delta"]
        message["usage"] |= event["usage"]
        assert next(rest, None) == {"type": "message_stop"}
    assert next(rest, None) is None
    return message


def _read_deltas(block: Any, index: int, rest: Any) -> Any:
    """Puts the deltas into the block, and returns the event behind them."""
    deltas = DELTAS.get(block["type"], {})
    texts = dict.fromkeys(deltas.values(), "")
    event = next(rest)
    while event["type"] == "content_block_delta":
        assert event["index"] == index
        field = deltas[event["delta"]["type"]]
        assert not texts.get("signature"), "the signature is the last delta"
        texts[field] += event["delta"][field]
        event = next(rest)
    if event["type"] == "error":
        return event
    if block["type"] == "tool_use":
        assert block["input"] == {}
        block["input"] = json.loads(texts["partial_json"])
        return event
    assert block["type"] != "thinking" or texts["signature"]
    assert all(block[name] == "" for name in texts)
    block |= texts
    return event
