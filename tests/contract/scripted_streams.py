"""Streams of Responses and of Messages as the server writes them, and what a fault could make of them: an
event is dropped, sent twice, or changes places with the next one. `replay` gives these to clients.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.errors import EngineDied
from tests.contract.conftest import serve_engine
from tests.support.vendor_engine import STARTED, USAGE, VendorDouble
from tests.support.vendors.vendor_http import VendorCall, VendorReply, serve_vendor

REASONING = (ReasoningDelta(0, "I look "), ReasoningDelta(0, "it up."))
TEXT = (TextDelta(0, "It is "), TextDelta(0, "raining"), TextDelta(0, "."))
REFUSAL = (TextDelta(0, "I will ", is_refusal=True), TextDelta(0, "not.", is_refusal=True))
CALLS = (
    ToolCallStarted(0, 0, "call_a", "get_weather"),
    ToolCallDelta(0, 0, '{"city": '),
    ToolCallDelta(0, 0, '"Rome"}'),
    ToolCallStarted(0, 1, "call_b", "get_weather"),
    ToolCallDelta(0, 1, '{"city": "O'),
    ToolCallDelta(0, 1, 'slo"}'),
)
NOTE = (
    ToolCallStarted(0, 0, "call_n", "note"),
    ToolCallDelta(0, 0, '{"input": "Buy '),
    ToolCallDelta(0, 0, 'bread"}'),
)

ANSWERS: Mapping[str, tuple[Sequence[Event], FinishReason | None]] = {
    "text": (TEXT, FinishReason.STOP),
    "reasoning": ((*REASONING, *TEXT), FinishReason.STOP),
    "summary": ((*REASONING, *TEXT), FinishReason.STOP),
    "calls": ((*REASONING, *TEXT, *CALLS), FinishReason.TOOL_CALLS),
    "custom": ((*TEXT, *NOTE), FinishReason.TOOL_CALLS),
    "refusal": (REFUSAL, FinishReason.STOP),
    "incomplete": ((*REASONING, *TEXT), FinishReason.LENGTH),
    "failed": ((*TEXT,), None),
}
"""By the user's message: what the engine answers, and how it ends. None: it dies."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": CITY}
CUSTOM = {"type": "custom", "name": "note", "description": "Writes a note."}
MORE: Mapping[str, dict[str, Any]] = {
    "summary": {"reasoning": {"summary": "auto"}},
    "calls": {"tools": [FUNCTION]},
    "custom": {"tools": [CUSTOM]},
}
"""What a request of Responses has besides."""

MESSAGES_ANSWERS = [name for name in ANSWERS if name not in ("summary", "custom")]

DONE = "[DONE]"

Stream = tuple[bytes, ...]
"""The events of a stream, each with its empty line."""


@dataclass(frozen=True)
class Mutation:
    """A stream with one fault."""

    answer: str
    fault: str
    """`drop`, `double` or `swap`."""
    place: str
    """The kind of the event; in a swap, of both."""
    stream: Stream


def record_streams() -> dict[str, dict[str, Stream]]:
    """The streams of each API, by answers, as the server writes them."""
    with serve_engine(VendorDouble(_answer)) as target, httpx2.Client(base_url=target.url) as client:

        def ask(path: str, **body: Any) -> Stream:
            answer = client.post(path, json={"model": target.model, "stream": True} | body)
            assert answer.status_code == 200, answer.text
            return tuple(event + b"\n\n" for event in answer.content.split(b"\n\n") if event)

        weather = {"name": "get_weather", "input_schema": CITY}
        return {
            "responses": {name: ask("/v1/responses", input=name, **MORE.get(name, {})) for name in ANSWERS},
            "messages": {
                name: ask(
                    "/v1/messages",
                    max_tokens=100,
                    messages=[{"role": "user", "content": name}],
                    tools=[weather],
                )
                for name in MESSAGES_ANSWERS
            },
        }


def _answer(request: GenerationRequest) -> Iterator[Event]:
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    events, reason = ANSWERS[prompt.messages[-1].text]
    yield STARTED
    yield from events
    if reason is None:
        raise EngineDied("the engine's process ended")
    yield Finished(0, reason)
    yield USAGE


def list_mutations(streams: Mapping[str, Stream]) -> list[Mutation]:
    """Every stream that one fault makes of these."""
    return [each for answer, stream in streams.items() for each in _mutate(answer, stream)]


def _mutate(answer: str, stream: Stream) -> Iterator[Mutation]:
    for at, event in enumerate(stream):
        before, after = stream[:at], stream[at + 1 :]
        name = name_event(event)
        yield Mutation(answer, "drop", name, _number(before + after))
        yield Mutation(answer, "double", name, _number((*before, event, event, *after)))
        if after:
            swapped = (*before, after[0], event, *after[1:])
            yield Mutation(answer, "swap", f"{name} > {name_event(after[0])}", _number(swapped))


def _number(stream: Stream) -> Stream:
    """Numbers the events again, as an encoder with this fault would."""
    return tuple(
        re.sub(rb'"sequence_number":\d+', b'"sequence_number":%d' % number, event)
        for number, event in enumerate(stream)
    )


def name_event(event: bytes) -> str:
    """The kind of an event: its type, and the type of its block, item, part or delta."""
    data = read_event(event)
    if data is None:
        return DONE
    for name in ("item", "part", "content_block", "delta"):
        inner = data.get(name)
        if isinstance(inner, dict) and "type" in inner:
            return f"{data['type']} {inner['type']}"
    return str(data["type"])


def read_event(event: bytes) -> Any:
    """The data of an event. None for the end of a stream of OpenAI's."""
    data = event.rpartition(b"data: ")[2]
    return None if data.strip() == DONE.encode() else json.loads(data)


@contextmanager
def replay(streams: Sequence[Stream]) -> Iterator[str]:
    """A server that answers a request below /N with the stream of that number. Yields its address."""

    def answer(call: VendorCall) -> VendorReply:
        number = int(call.path.split("/")[1])
        return VendorReply((b"".join(streams[number]),), content_type="text/event-stream; charset=utf-8")

    with serve_vendor(answer) as server:
        yield server.url
