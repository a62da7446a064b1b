"""Fireworks' own clients, unchanged, against its dialect: fireworks-ai 0.15 with `fireworks.client`, and the
current SDK, which is told to raise on an answer that is not of its types. Every parameter of the page that
they can send."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.contract.calls import ended
from tests.contract.clients import Call, Client, Result
from tests.contract.conftest import KEY, Scripted, Target

TEXT, CHAT, LATER_TEXT, LATER_CHAT = "text", "chat", "async text", "async chat"
NAMES = {
    "client": {
        TEXT: "Completion.create",
        CHAT: "ChatCompletion.create",
        LATER_TEXT: "Completion.acreate",
        LATER_CHAT: "ChatCompletion.acreate",
    },
    "sdk": {
        TEXT: "Fireworks.completions.create",
        CHAT: "Fireworks.chat.completions.create",
        LATER_TEXT: "AsyncFireworks.completions.create",
        LATER_CHAT: "AsyncFireworks.chat.completions.create",
    },
}
ROOT = Path(__file__).parents[2]

INTERPRETERS = {"client": "fireworks-client/bin/python", "sdk": "fireworks/bin/python"}
PATHS = {"client": "/fireworks/inference/v1", "sdk": "/fireworks/inference"}
"""Where each line's base URL ends: the SDK adds the version itself."""

MODEL = "accounts/fireworks/models/cantor"
PROMPT = "Once upon a time"
ENDING = "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
"""What the model soon ends its answer to."""
HELLO: Any = [{"role": "user", "content": "Who are you?"}]
SAME: Any = {"temperature": 0.8, "seed": 11}
GREEDY: Any = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
IMAGE = "data:image/jpeg;base64,/9j/4AAQSkZJRg=="

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server; each starts a client's interpreter."""


@dataclass(frozen=True)
class Line:
    """One line of fireworks-ai, and the server that it is pointed at."""

    kind: str
    url: str
    model: str = MODEL

    def results(self, *calls: tuple[str, dict[str, Any]], leave_after: int | None = None) -> list[Result]:
        """What each call gives: which of the four it is, and its fields."""
        made: list[Call] = []
        for name, fields in calls:
            usual: Any = {"prompt": PROMPT} if "text" in name else {"messages": HELLO}
            made.append({"call": NAMES[self.kind][name], "with": {"model": self.model} | usual | fields})
        told = {"base_url": self.url + PATHS[self.kind], "line": self.kind}
        calls_ = [call | ({"leave_after": leave_after} if leave_after else {}) for call in made]
        client = Client(INTERPRETERS[self.kind], "fireworks/drive.py")
        found = client.run(told | {"calls": calls_})
        assert isinstance(found, list)
        if leave_after and self.kind == "client":
            client.stop()  # it keeps the connection of a stream that it leaves, until it ends
        return found

    def answers(self, *bodies: dict[str, Any], name: str = TEXT) -> list[Any]:
        """The answers to bodies of one endpoint."""
        results = self.results(*((name, body) for body in bodies))
        assert all("error" not in result for result in results), results
        return [result["answer"] for result in results]

    def texts(self, *bodies: dict[str, Any]) -> list[str]:
        """The one text of each answer."""
        return [answer["choices"][0]["text"] for answer in self.answers(*bodies)]


@pytest.fixture(params=["client", "sdk"])
def line(request: pytest.FixtureRequest, cantor: Target) -> Line:
    return Line(request.param, cantor.url)


@pytest.fixture(params=["client", "sdk"])
def puppet(request: pytest.FixtureRequest, scripted: Scripted) -> Line:
    return Line(request.param, scripted.url, scripted.model)


def ends_of(chunks: list[Any]) -> list[Any]:
    return [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]


def test_a_text_is_the_same_buffered_streamed_and_asynchronous(line: Line) -> None:
    fields = SAME | {"max_tokens": 12}
    streamed = fields | {"stream": True}
    whole, parts, later, later_parts = line.results(
        (TEXT, fields), (TEXT, streamed), (LATER_TEXT, fields), (LATER_TEXT, streamed)
    )
    (choice,) = whole["answer"]["choices"]
    assert choice["text"] and choice["text"] == later["answer"]["choices"][0]["text"]
    assert whole["answer"]["object"] == "text_completion" and whole["answer"]["model"] == MODEL
    for chunks in (parts["chunks"], later_parts["chunks"]):
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
        assert ends_of(chunks) == [None] * (len(chunks) - 1) + [choice["finish_reason"]]
        assert all(chunk.get("usage") is None for chunk in chunks[:-1])
        counted = chunks[-1]["usage"]
        assert counted["completion_tokens"] == whole["answer"]["usage"]["completion_tokens"]
        assert counted["total_tokens"] == counted["prompt_tokens"] + counted["completion_tokens"]


def test_a_chat_is_the_same_buffered_streamed_and_asynchronous(line: Line) -> None:
    fields = SAME | {"max_tokens": 24, "user": "somebody"}
    streamed = fields | {"stream": True}
    whole, parts, later, later_parts = line.results(
        (CHAT, fields), (CHAT, streamed), (LATER_CHAT, fields), (LATER_CHAT, streamed)
    )
    said = whole["answer"]["choices"][0]["message"]
    assert said["role"] == "assistant" and said["content"]
    assert later["answer"]["choices"][0]["message"]["content"] == said["content"]
    for chunks in (parts["chunks"], later_parts["chunks"]):
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content") or "" for delta in deltas) == said["content"]
        assert [delta["role"] for delta in deltas if delta.get("role")] == ["assistant"]
        assert chunks[-1]["usage"]["completion_tokens"] == whole["answer"]["usage"]["completion_tokens"]


def test_tools_are_called(line: Line) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "What is the weather in Berlin?"}]}
    asked |= {"tools": [WEATHER], "temperature": 0}
    free, forced, streamed = line.results(
        (CHAT, asked), (CHAT, asked | {"tool_choice": "required"}), (CHAT, asked | {"stream": True})
    )
    for result in (free, forced):
        (choice,) = result["answer"]["choices"]
        assert choice["finish_reason"] == "tool_calls"
        function = choice["message"]["tool_calls"][0]["function"]
        assert function["name"] == "get_weather" and json.loads(function["arguments"]) == {"city": "Berlin"}
    deltas = [chunk["choices"][0]["delta"] for chunk in streamed["chunks"]]
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls") or ()]
    assert parts[0]["name"] == "get_weather"
    assert json.loads("".join(part.get("arguments") or "" for part in parts)) == {"city": "Berlin"}


def test_prompts_are_texts_or_token_ids_one_or_many(line: Line) -> None:
    (echoed,) = line.answers({"echo": True, "max_tokens": 0, "logprobs": 0})
    ids = echoed["choices"][0]["logprobs"]["token_ids"]
    limit = {"max_tokens": 8, "temperature": 0}
    one, by_ids, many, lists, several = line.answers(
        limit,
        limit | {"prompt": ids},
        limit | {"prompt": [PROMPT, "The end"]},
        limit | {"prompt": [ids, ids]},
        SAME | {"max_tokens": 8, "prompt": [PROMPT, "The end"], "n": 2},
    )
    text = one["choices"][0]["text"]
    assert by_ids["choices"][0]["text"] == text == many["choices"][0]["text"]
    assert [choice["text"] for choice in lists["choices"]] == [text, text]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in several["choices"]}) > 2


def test_the_default_is_16_tokens_and_end_tokens_can_be_ignored(line: Line) -> None:
    usual, few = line.answers({"ignore_eos": True}, {"ignore_eos": True, "max_tokens": 5})
    assert [answer["usage"]["completion_tokens"] for answer in (usual, few)] == [16, 5]
    assert usual["choices"][0]["finish_reason"] == few["choices"][0]["finish_reason"] == "length"
    asked = {"prompt": ENDING, "temperature": 0, "max_tokens": 100}
    stopped, went_on = line.answers(asked, asked | {"ignore_eos": True})
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert went_on["usage"]["completion_tokens"] == 100 > stopped["usage"]["completion_tokens"]


def test_too_many_tokens_are_fewer_or_an_error_as_is_asked(line: Line) -> None:
    asked = {"prompt": [300] * 2040, "max_tokens": 100_000, "ignore_eos": True}
    behaviors = [asked | {"context_length_exceeded_behavior": word} for word in ("truncate", "error")]
    usual, shortened, refused = line.results((TEXT, asked), *((TEXT, each) for each in behaviors))
    for result in (usual, shortened):
        counted = result["answer"]["usage"]
        assert result["answer"]["choices"][0]["finish_reason"] == "length"
        assert 0 < counted["completion_tokens"] <= 2048 - 2040
    assert refused["error"]["class"] in ("InvalidRequestError", "BadRequestError")


def test_the_prompt_is_echoed_with_its_log_probabilities(line: Line) -> None:
    asked = {"max_tokens": 4, "temperature": 0, "logprobs": 1}
    plain, echoed = line.answers(asked, asked | {"echo": True})
    made, whole = (answer["choices"][0] for answer in (plain, echoed))
    assert whole["text"] == PROMPT + made["text"]
    arrays = whole["logprobs"]
    assert len(arrays["tokens"]) == len(arrays["token_logprobs"]) == len(arrays["token_ids"])
    assert len(arrays["tokens"]) == plain["usage"]["total_tokens"]
    assert arrays["token_ids"][-4:] == made["logprobs"]["token_ids"]


def test_logprobs_have_as_many_alternatives_as_requested(line: Line) -> None:
    asked = SAME | {"max_tokens": 6}
    none, zero, five, entries = line.answers(
        asked, asked | {"logprobs": 0}, asked | {"logprobs": 5}, asked | {"logprobs": True, "top_logprobs": 2}
    )
    assert none["choices"][0].get("logprobs") is None
    kept = zero["choices"][0]["logprobs"]
    assert len(kept["token_logprobs"]) == len(kept["tokens"]) == zero["usage"]["completion_tokens"]
    ranked = five["choices"][0]["logprobs"]
    assert ranked["token_logprobs"] == pytest.approx(kept["token_logprobs"], abs=1e-3)
    assert all(1 <= len(alternatives) <= 6 for alternatives in ranked["top_logprobs"])
    for token, alternatives in zip(ranked["tokens"], ranked["top_logprobs"], strict=True):
        assert token in alternatives
    content = entries["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ranked["tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)


def test_a_stop_text_ends_the_answer_and_stays_in_it(line: Line) -> None:
    (text,) = line.texts(GREEDY)
    stop = text[5:8]
    one, four = line.answers(GREEDY | {"stop": stop}, GREEDY | {"stop": ["§", stop, "¶", "zqj"]})
    for answer in (one, four):
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop) + 3], "stop")


@pytest.mark.parametrize(
    "fields",
    [{"top_k": 1}, {"top_p": 0}, {"temperature": 0}, {"mirostat_target": 0.0001, "mirostat_lr": 1}],
)
def test_what_leaves_one_token_is_greedy(line: Line, fields: Any) -> None:
    hot = GREEDY | {"temperature": 2, "max_tokens": 12}
    greedy, first, second, free = line.texts(
        GREEDY | {"max_tokens": 12}, hot | {"seed": 1} | fields, hot | {"seed": 2} | fields, hot | {"seed": 3}
    )
    if "mirostat_target" not in fields:
        assert first == second == greedy
    assert first != free


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_penalties_act_in_both_directions(line: Line, name: str) -> None:
    neutral = 1 if name == "repetition_penalty" else 0
    asked = GREEDY | {"max_tokens": 50}
    usual, unset, high, low = line.texts(
        asked, asked | {name: neutral}, asked | {name: 2}, asked | {name: 0.2 if neutral else -2}
    )
    assert usual == unset
    assert low not in (usual, high)
    if name != "presence_penalty":  # the likeliest words of so short a text are none that it said before
        assert high != usual and len(set(high.split())) > len(set(low.split()))


def test_one_to_a_hundred_and_twenty_eight_choices(line: Line) -> None:
    one, most = line.answers({"n": 1, "max_tokens": 1}, {"n": 128, "max_tokens": 1, "temperature": 2})
    assert [choice["index"] for choice in one["choices"]] == [0]
    assert [choice["index"] for choice in most["choices"]] == list(range(128))
    assert most["usage"]["completion_tokens"] == 128
    assert len({choice["text"] for choice in most["choices"]}) > 10


def test_json_is_made_of_any_object_or_of_a_schema(line: Line) -> None:
    hot = {"temperature": 1.5, "seed": 3, "max_tokens": 80}
    formats: Any = [{"type": "json_object"}, {"type": "json_object", "schema": PERSON}]
    text, shaped = line.answers(*(hot | {"response_format": form} for form in formats))
    assert shaped["choices"][0]["finish_reason"] == "stop"
    Draft202012Validator(PERSON).validate(json.loads(shaped["choices"][0]["text"]))
    assert text["choices"][0]["text"].lstrip().startswith("{")
    (said,) = line.answers(hot | {"response_format": formats[1]}, name=CHAT)
    Draft202012Validator(PERSON).validate(json.loads(said["choices"][0]["message"]["content"]))


def test_images_are_counted_and_refused_by_name(line: Line) -> None:
    matched = {"prompt": "<image> What is this?", "images": [IMAGE]}
    for result in line.results((TEXT, matched), (TEXT, {"images": [IMAGE]})):
        assert result["error"]["class"] in ("InvalidRequestError", "BadRequestError")
        assert result["error"]["body"]["error"]["param"] in ("images", "images[0]")
    (empty,) = line.answers({"images": [], "max_tokens": 2})
    assert empty["choices"][0]["text"]


REFUSED: Any = [
    ("temperature", 2.1), ("temperature", -0.1), ("top_p", 1.1), ("top_k", 0), ("top_k", 129), ("n", 0),
    ("n", 129), ("max_tokens", 0), ("logprobs", 6), ("frequency_penalty", 2.1), ("presence_penalty", -2.1),
    ("repetition_penalty", 2.1), ("stop", ["a", "b", "c", "d", "e"]), ("response_format", {"type": "yaml"}),
    ("context_length_exceeded_behavior", "shrink"), ("echo", "yes"), ("mirostat_lr", "fast"),
]  # fmt: skip


def test_what_the_page_does_not_allow_is_refused_by_its_name(line: Line) -> None:
    results = line.results(*((TEXT, {name: value}) for name, value in REFUSED))
    for (name, _), result in zip(REFUSED, results, strict=True):
        error = result["error"]
        assert error["class"] == ("InvalidRequestError" if line.kind == "client" else "BadRequestError")
        told = error["body"]["error"]
        assert (told["code"], told["param"].partition(".")[0]) == ("INVALID_ARGUMENT", name)
        assert name in told["message"]


def test_the_ends_of_the_ranges_are_allowed(line: Line) -> None:
    ends: Any = [
        {"temperature": 0, "top_p": 0, "top_k": 1, "frequency_penalty": -2, "presence_penalty": -2},
        {"temperature": 2, "top_p": 1, "top_k": 128, "frequency_penalty": 2, "presence_penalty": 2},
        {"repetition_penalty": 0, "logprobs": 0}, {"repetition_penalty": 2, "logprobs": 5},
        {"mirostat_target": 1.5, "mirostat_lr": 0.1, "stop": ["a", "b", "c", "d"], "user": "somebody"},
    ]  # fmt: skip
    for answer in line.answers(*({"max_tokens": 2} | fields for fields in ends)):
        assert answer["usage"]["completion_tokens"] <= 2


def test_models_are_named_as_fireworks_names_them_or_as_they_are(line: Line, cantor: Target) -> None:
    asked = {"max_tokens": 1}
    alias, own, none = line.results(
        (TEXT, asked),
        (TEXT, asked | {"model": "cantor"}),
        (TEXT, asked | {"model": "accounts/fireworks/models/none"}),
    )
    assert (alias["answer"]["model"], own["answer"]["model"]) == (MODEL, "cantor")
    assert none["error"]["class"] == ("InvalidRequestError" if line.kind == "client" else "NotFoundError")
    assert none["error"]["body"]["error"]["code"] == "NOT_FOUND"


def test_the_older_client_lists_models_with_what_they_can_do(cantor: Target) -> None:
    told = {"base_url": cantor.url + PATHS["client"], "line": "client"}
    calls = [{"call": "Model.list", "with": {}}]
    (result,) = Client(INTERPRETERS["client"], "fireworks/drive.py").run(told | {"calls": calls})
    (model,) = [each for each in result["answer"]["data"] if each["id"].endswith("cantor")]
    assert (model["context_length"], model["supports_chat"]) == (2048, True)
    assert model["supports_image_input"] is False


def say(words: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": words}]}


def test_failures_are_of_the_clients_classes(puppet: Line, keyed: Scripted) -> None:
    busy, away = puppet.results((CHAT, say("be busy")), (CHAT, say("be away")))
    older = puppet.kind == "client"
    assert busy["error"]["class"] == "RateLimitError"
    assert away["error"]["class"] == ("ServiceUnavailableError" if older else "InternalServerError")
    (unknown,) = Line(puppet.kind, keyed.url, puppet.model).results((CHAT, {}))
    assert unknown["error"]["class"] == "AuthenticationError" and KEY not in str(unknown)


def test_an_error_inside_a_stream_is_no_end_of_it(puppet: Line) -> None:
    for name in (CHAT, LATER_CHAT):
        (broken,) = puppet.results((name, say("die midway") | {"stream": True}))
        told = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in broken["chunks"])
        assert told == "Hello world" and "error" in broken


def test_a_client_that_leaves_a_stream_ends_its_work(puppet: Line, scripted: Scripted) -> None:
    asked = say("never end") | {"stream": True}
    for left in puppet.results((CHAT, asked), (LATER_CHAT, asked), leave_after=4):
        assert len(left["chunks"]) == 4 and "error" not in left
    ended(scripted, "never end", count=2)


@pytest.mark.parametrize("page", ["fireworks.md", "from-fireworks.md"])
def test_the_address_of_the_pages_is_right_for_the_newer_client(cantor: Target, page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    address = text.partition("`/inference`: give it `")[2].partition("`")[0]
    told = {"base_url": address.replace("http://127.0.0.1:8000", cantor.url), "line": "sdk"}
    call = {"call": "Fireworks.completions.create", "with": {"model": MODEL, "prompt": PROMPT}}
    (result,) = Client(INTERPRETERS["sdk"], "fireworks/drive.py").run(told | {"calls": [call]})
    assert result["answer"]["choices"][0]["text"]
