"""Whatever is asked for, in whichever dialect: the parts of a stream, put together, are the whole answer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from antiphon.dialects.common.field_table import FieldSupport
from tests.parameters.registry import Answer, Asker
from tests.parameters.spots import books
from tests.support.server import Server

AGE = {"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": False}
NAMED = {"type": "json_schema", "json_schema": {"name": "age", "schema": AGE}}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
QUESTIONS = ["Who are you?", "What is the weather in Berlin?", "Tell me a story. 😀", "Name three towns."]
TEXTS = ["Once upon a time", "The capital of France is", "é", "<|im_start|>user\nHi<|im_end|>\n"]
OPERATIONS = {
    "/v1/chat/completions": "openai",
    "/v1/completions": "openai",
    "/fireworks/inference/v1/chat/completions": "fireworks",
    "/fireworks/inference/v1/completions": "fireworks",
    "/empower/api/v1/chat/completions": "empower",
}
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")

USUAL: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.7, 1.5]),
    "top_p": st.floats(0.1, 1),
    "top_k": st.integers(1, 50),
    "min_p": st.floats(0, 0.3),
    "typical_p": st.floats(0.3, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 1.8),
    "mirostat_target": st.floats(0.5, 6),
    "logit_bias": st.dictionaries(st.integers(300, 1900).map(str), st.floats(-5, 5), max_size=3),
    "n": st.integers(1, 3),
    "stop": st.lists(st.sampled_from([" a", "e", "the", "\n", "I am", "."]), max_size=2),
    "stop_token_ids": st.lists(st.integers(300, 1900), max_size=3),
    "min_tokens": st.integers(0, 1),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "return_token_ids": st.booleans(),
    "echo": st.booleans(),
    "user": st.just("me"),
}
CONSTRAINED: dict[str, st.SearchStrategy[Any]] = {
    "response_format": st.sampled_from([{"type": "json_object"}, NAMED]),
    "guided_regex": st.sampled_from(["[a-c]{2,6}", "(yes|no), [0-9]+"]),
    "guided_choice": st.just(["yes", "no", "maybe so"]),
    "tools": st.just([TOOL]),
}
"""At most one of them, and none of `FREE` beside it."""

FREE = ("ignore_eos", "min_tokens", "stop_token_ids", "logit_bias", "echo", "skip_special_tokens")


def supported(path: str) -> set[str]:
    table = books()[OPERATIONS[path]].tables[path]
    return {name for name, each in table.items() if each.support is not FieldSupport.REFUSED}


@st.composite
def requests(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A valid body with some of the fields that the dialect's table has."""
    known, is_chat = supported(path), "chat" in path
    body: dict[str, Any] = {"model": "cantor", "seed": draw(st.integers(0, 99))}
    body["max_tokens"] = draw(st.integers(2, 24))
    for name in draw(st.sets(st.sampled_from(sorted(known & USUAL.keys())), max_size=5)):
        body[name] = draw(USUAL[name])
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(known & CONSTRAINED.keys())))
        body = {key: value for key, value in body.items() if key not in FREE} | {
            name: draw(CONSTRAINED[name])
        }
        if name == "tools":
            body["tool_choice"] = draw(st.sampled_from(["auto", "required", "none"]))
    if "logprobs" in known and draw(st.booleans()):
        numbers = st.integers(0, 5)
        body["logprobs"] = draw(st.just(True) if path == "/v1/chat/completions" else numbers)
        if "top_logprobs" in known and body["logprobs"] is True:
            body["top_logprobs"] = draw(numbers)
    if is_chat:
        return body | {"messages": [{"role": "user", "content": draw(st.sampled_from(QUESTIONS))}]}
    texts, ids = st.sampled_from(TEXTS), st.lists(st.integers(300, 1900), min_size=1, max_size=5)
    return body | {"prompt": draw(texts | st.lists(texts, min_size=1, max_size=2) | ids)}


@dataclass
class Said:
    """What one choice said, read from an answer or put together from chunks."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    finish: str | None = None
    scores: dict[str, list[Any]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)

    def take(self, choice: dict[str, Any]) -> None:
        """One more part, or the whole."""
        assert self.finish is None, "nothing comes after the end of a choice"
        said = choice.get("delta") or choice.get("message") or choice
        self.text += said.get("content") or said.get("text") or ""
        self.reasoning += said.get("reasoning_content") or ""
        for at, call in enumerate(said.get("tool_calls") or ()):
            if call.get("id"):
                assert call.get("index", at) == len(self.calls) and call["type"] == "function"
                self.calls.append((call["function"]["name"], ""))
            name, arguments = self.calls[-1]
            self.calls[-1] = (name, arguments + call["function"]["arguments"])
        for key, values in (choice.get("logprobs") or {}).items():
            if values:  # a choice of no shown token has empty arrays in an answer, and none in a stream
                self.scores.setdefault(key, []).extend(values)
        self.ids += choice.get("token_ids") or ()
        self.finish = choice["finish_reason"]


def whole(answer: Answer) -> tuple[list[Said], list[int]]:
    """Of a buffered answer the choices in order, and the usage."""
    made = []
    for at, choice in enumerate(answer.choices):
        assert choice["index"] == at
        made.append(Said())
        made[-1].take(choice)
    return made, [answer.usage[name] for name in COUNTS]


def joined(answer: Answer, choices: int, dialect: str) -> tuple[list[Said], list[int]]:
    """The same of a stream."""
    assert answer.status == 200, answer.body
    *chunks, done = answer.events
    assert done == "[DONE]", answer.events[-1]
    made = [Said() for _ in range(choices)]
    for choice in (each for chunk in chunks for each in chunk["choices"]):
        made[choice["index"]].take(choice)
    assert len({chunk["id"] for chunk in chunks}) == 1
    return made, counted([chunk["usage"] for chunk in chunks if chunk.get("usage")], dialect)


def counted(usages: list[dict[str, int]], dialect: str) -> list[int]:
    """The usage of a stream: once; in Fireworks' dialect with every end the same; in Empower's each choice's
    own."""
    first = [usages[0][name] for name in COUNTS]
    if dialect == "empower":
        made = sum(usage["completion_tokens"] for usage in usages)
        assert {usage["prompt_tokens"] for usage in usages} == {first[0]}
        return [first[0], made, first[0] + made]
    assert dialect == "fireworks" or len(usages) == 1
    assert all([usage[name] for name in COUNTS] == first for usage in usages)
    return first


def agree(asker: Asker, path: str, body: dict[str, Any]) -> None:
    """Streamed is buffered; what is refused is refused in both."""
    dialect = OPERATIONS[path]
    buffered = asker.ask(path, body)
    more = {"stream_options": {"include_usage": True}} if dialect == "openai" else {}
    streamed = asker.ask(path, body | {"stream": True} | more)
    assert buffered.status in {200, 400}, buffered.body
    if buffered.status == 400:
        hypothesis.event("refused")
        assert streamed.status == 400 or "[DONE]" not in streamed.events, (body, buffered.body)
        return
    choices, usage = whole(buffered)
    assert joined(streamed, len(choices), dialect) == (choices, usage), body


@pytest.fixture(scope="module")
def asker(server: Server) -> Iterator[Asker]:
    with server.client() as client:
        yield Asker(client)


@pytest.mark.timeout(480)
@pytest.mark.parametrize("path", OPERATIONS)
@hypothesis.settings(max_examples=10, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_the_parts_of_a_stream_are_the_buffered_answer(asker: Asker, path: str, data: st.DataObject) -> None:
    agree(asker, path, data.draw(requests(path)))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", OPERATIONS)
@hypothesis.settings(max_examples=100, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_the_parts_of_many_streams_are_the_buffered_answers(
    asker: Asker, path: str, data: st.DataObject
) -> None:
    agree(asker, path, data.draw(requests(path)))
