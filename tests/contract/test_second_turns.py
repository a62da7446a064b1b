"""What clients really sent on a second turn, sent again: the server takes back all that it and they said.

record_turns.py recorded it. What a client sends today, test_sdks.py tries.
"""

import json
from typing import Any

import httpx2
import pytest

from tests.contract.clients import CHAT_CLIENTS, ROOT
from tests.contract.conftest import Target

FOLDER = ROOT / "tests" / "fixtures" / "second_turns"


def read_turns(client: str) -> list[dict[str, Any]]:
    """What is recorded of a client."""
    recorded = json.loads((FOLDER / f"{client}.json").read_text("utf-8"))
    assert recorded["client"] == client and recorded["versions"] and recorded["command"]
    turns: list[dict[str, Any]] = recorded["turns"]
    return turns


def read_message(answer: httpx2.Response) -> dict[str, Any]:
    """The message of an answer, or of the chunks of a stream, with calls as [name, arguments]."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        (choice,) = answer.json()["choices"]
        calls = choice["message"].get("tool_calls") or ()
        made = [[call["function"]["name"], call["function"]["arguments"]] for call in calls]
        return {"text": choice["message"]["content"] or "", "calls": made, "end": choice["finish_reason"]}
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or ()]
    made = [[call["function"]["name"], ""] for call in calls if "name" in call["function"]]
    for call in calls:
        made[call["index"]][1] += call["function"].get("arguments", "")
    return {"text": text, "calls": made, "end": choices[-1]["finish_reason"]}


def test_every_client_is_recorded():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CHAT_CLIENTS)


@pytest.mark.parametrize("client", CHAT_CLIENTS)
def test_a_recorded_second_turn_is_answered(cantor: Target, client: str) -> None:
    turns = read_turns(client)
    assert turns
    for turn in turns:
        answer = httpx2.post(cantor.url + turn["path"], json=turn["body"], timeout=60)
        assert answer.status_code == 200, (turn, answer.text)
        message = read_message(answer)
        assert message["text"] or message["calls"], turn
        assert message["end"] == ("tool_calls" if message["calls"] else "stop")


@pytest.mark.parametrize(
    ("client", "number", "name"),
    [
        ("litellm", 0, "messages[].provider_specific_fields"),
        ("openai", -1, "messages[].tool_calls[].function.parsed_arguments"),
    ],
)
def test_what_only_repeats_an_answer_is_named(cantor: Target, client: str, number: int, name: str) -> None:
    turn = read_turns(client)[number]
    answer = httpx2.post(cantor.url + turn["path"], json=turn["body"], timeout=60)
    assert name in answer.headers["x-antiphon-ignored"].split(", ")
