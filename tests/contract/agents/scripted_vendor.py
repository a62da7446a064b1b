"""A vendor of OpenAI's format whose answers are fixed, for agents: one step for each turn of the
assistant."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.vendors.vendor_http import VendorCall, VendorReply, serve_vendor

COMPLETION_TOKENS = 20
PIECE = 7
"""The characters of one delta, so that names and arguments arrive in several."""


@dataclass(frozen=True)
class Step:
    """One answer: its reasoning, its text, and its calls by name and arguments. `cut`: the characters of each
    call's arguments that the limit of tokens cuts off."""

    text: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    reasoning: str = ""
    cut: int = 0


@dataclass
class ScriptedVendor:
    """`url`: its address. `bodies`: the requests, in their order. `steps`: what it answers."""

    url: str
    steps: Sequence[Step]
    bodies: list[Any] = field(default_factory=list)

    def answer(self, call: VendorCall) -> VendorReply:
        """Answers with the step after the last one whose calls have results."""
        body = json.loads(call.body)
        self.bodies.append(body)
        turns = [int(call_id.split("_")[1]) for call_id in self.list_results()]
        turn = max(turns) + 1 if turns else 0
        step = self.steps[turn]
        deltas: list[Any] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in split(step.reasoning)]
        deltas += [{"content": piece} for piece in split(step.text)]
        for index, (name, arguments) in enumerate(step.calls):
            function = {"name": name, "arguments": ""}
            deltas.append(
                {"tool_calls": [{"index": index, "id": name_call(turn, index), "function": function}]}
            )
            text = json.dumps(arguments)
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                for piece in split(text[: len(text) - step.cut])
            ]
        chunks: list[Any] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        reason = "length" if step.cut else "tool_calls" if step.calls else "stop"
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        chunks.append({"choices": [], "usage": count_usage(turn)})
        assert body["stream"], "agents stream"
        lines = tuple(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)
        return VendorReply((*lines, b"data: [DONE]\n\n"), content_type="text/event-stream")

    def list_results(self) -> dict[str, str]:
        """The results of the calls that the last request has, by the ids of the calls."""
        return {
            message["tool_call_id"]: read_text(message["content"])
            for message in self.bodies[-1]["messages"]
            if message["role"] == "tool"
        }


def name_call(turn: int, index: int) -> str:
    return f"call_{turn}_{index}"


def count_usage(turn: int) -> dict[str, int]:
    """The usage of a turn, which the ledger must show."""
    prompt = 1000 + turn
    return {
        "prompt_tokens": prompt,
        "completion_tokens": COMPLETION_TOKENS,
        "total_tokens": prompt + COMPLETION_TOKENS,
    }


def split(text: str) -> list[str]:
    return [text[index : index + PIECE] for index in range(0, len(text), PIECE)]


def read_text(content: Any) -> str:
    """The text of a message, which is a text or has parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


@contextmanager
def serve_script(steps: Sequence[Step]) -> Iterator[ScriptedVendor]:
    """Serves these steps until the end of the block."""
    vendor = ScriptedVendor("", steps)
    with serve_vendor(vendor.answer) as server:
        vendor.url = server.url
        yield vendor
