"""Checks the events of the Responses API: their order, their numbers, and that they add up to the response.

The rules are those on which openai-python, openai-node, Codex and the suite Open Responses rely.
"""

from typing import Any

ENDS = ("response.completed", "response.incomplete", "response.failed")

PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
"""The events of each kind of part, and its field."""

CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


class _Events:
    """The events that are still to read."""

    def __init__(self, events: list[Any], has_silences: bool) -> None:
        self._events = events
        self._has_silences = has_silences
        self._next = 0
        self.item: Any = None
        self.index = -1

    def peek(self) -> str:
        while self._has_silences and self._next < len(self._events) and self._kind() == "keepalive":
            self._check_number()
            self._next += 1
        assert self._next < len(self._events), "the stream ends before its last event"
        return self._kind()

    def read(self, kind: str) -> Any:
        """Returns the next event, which must be of this kind and of the open item."""
        assert self.peek() == kind, f"{kind} is due; got {self.peek()}"
        self._check_number()
        event = self._events[self._next]
        self._next += 1
        if "output_index" in event:
            assert event["output_index"] == self.index
        if "item_id" in event:
            assert event["item_id"] == self.item["id"]
        return event

    def has_next(self) -> bool:
        return self._next < len(self._events)

    def _kind(self) -> str:
        kind: str = self._events[self._next]["type"]
        return kind

    def _check_number(self) -> None:
        assert self._events[self._next]["sequence_number"] == self._next


def check_events(events: list[Any], *, has_silences: bool = False) -> Any:
    """Returns the response of a stream's events, without `[DONE]`. Raises AssertionError if an event is
    missing, wrong, doubled or in a wrong place. `has_silences`: events during silences are taken too."""
    stream = _Events(events, has_silences)
    created = stream.read("response.created")["response"]
    assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
    stream.read("response.in_progress")
    while has_silences and stream.peek() == "response.in_progress":
        stream.read("response.in_progress")
    items: list[Any] = []
    while stream.peek() == "response.output_item.added":
        stream.index = len(items)
        items.append(_read_item(stream))
        if items[-1] is None:
            break
    is_broken = items[-1:] == [None]
    done = items[:-1] if is_broken else items
    assert stream.peek() in (("response.failed",) if is_broken else ENDS)
    response = stream.read(stream.peek())["response"]
    assert not stream.has_next()
    assert response["id"] == created["id"] and response["output"] == done
    assert len({item["id"] for item in done}) == len(done)
    if response["status"] in ("completed", "incomplete"):
        assert done and response["usage"] is not None
        assert all(item["status"] == "completed" for item in done[:-1])
    if done and done[-1]["status"] == "incomplete":
        assert response["status"] == "incomplete"
    return response


def _read_item(stream: _Events) -> Any:
    """Reads the events of one item. Returns None if the answer breaks in it."""
    stream.item = item = stream.read("response.output_item.added")["item"]
    assert item["status"] == "in_progress"
    kind = item["type"]
    expected: dict[str, Any] = {}
    if kind in ("message", "reasoning"):
        assert item["content"] == []
        parts: list[Any] = []
        summaries: list[Any] = []
        while stream.peek() in ("response.content_part.added", "response.reasoning_summary_part.added"):
            is_summary = stream.peek() == "response.reasoning_summary_part.added"
            group = summaries if is_summary else parts
            part = _read_summary(stream) if is_summary else _read_part(stream, len(parts))
            if part is None:
                return None
            group.append(part)
        expected = {"content": parts} | ({"summary": summaries} if kind == "reasoning" else {})
    elif kind in CALLS:
        name, field = CALLS[kind]
        assert item[field] == ""
        text = ""
        while stream.peek() == f"{name}.delta":
            text += stream.read(f"{name}.delta")["delta"]
        if stream.peek() == "response.failed":
            return None
        if stream.peek() == "response.incomplete":  # a call that was cut has no end, so that nobody runs it
            return item | {"status": "incomplete", field: text}
        assert stream.read(f"{name}.done")[field] == text
        expected = {field: text}
    else:
        assert kind == "tool_search_call"
        if stream.peek() == "response.incomplete":
            return item | {"status": "incomplete"}
    if stream.peek() == "response.failed":
        return None
    done = stream.read("response.output_item.done")["item"]
    changed = {"status", "encrypted_content", "arguments", *expected}
    assert {name: value for name, value in done.items() if name not in changed} == {
        name: value for name, value in item.items() if name not in changed
    }
    assert {name: done[name] for name in expected} == expected
    assert done["status"] in ("completed", "incomplete")
    return done


def _read_part(stream: _Events, content_index: int) -> Any:
    """Reads the events of one part. Returns None if the answer breaks in it."""
    added = stream.read("response.content_part.added")
    part = added["part"]
    name, field = PARTS[part["type"]]
    assert part[field] == "" and added["content_index"] == content_index
    text, logprobs = "", []
    while stream.peek() == f"{name}.delta":
        delta = stream.read(f"{name}.delta")
        assert delta["delta"] and delta["content_index"] == content_index
        text += delta["delta"]
        logprobs += delta.get("logprobs", ())
    if stream.peek() == "response.failed":
        return None
    ending = stream.read(f"{name}.done")
    assert (ending[field], ending.get("logprobs", [])) == (text, logprobs)
    done = stream.read("response.content_part.done")
    assert ending["content_index"] == done["content_index"] == content_index
    expected = {"annotations": [], "logprobs": logprobs} if part["type"] == "output_text" else {}
    assert done["part"] == {"type": part["type"], field: text} | expected
    return done["part"]


def _read_summary(stream: _Events) -> Any:
    """Reads the events of a summary. Returns None if the answer breaks in it."""
    name = "response.reasoning_summary_text"
    assert stream.read("response.reasoning_summary_part.added")["part"]["text"] == ""
    text = ""
    while stream.peek() == f"{name}.delta":
        delta = stream.read(f"{name}.delta")
        assert delta["summary_index"] == 0
        text += delta["delta"]
    if stream.peek() == "response.failed":
        return None
    assert stream.read(f"{name}.done")["text"] == text
    part = stream.read("response.reasoning_summary_part.done")["part"]
    assert part == {"type": "summary_text", "text": text}
    return part
