"""Every parameter of Fireworks' and Empower's pages, on cantor: its type, its default, both ends of its
range, and what the page says that it does. A test's name holds the page and the parameter."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from antiphon.dialects.common.product_pages import UNSTATED, PageRow, ProductPage
from antiphon.dialects.empower.page import PAGE as EMPOWER
from antiphon.dialects.fireworks.page import PAGE as FIREWORKS
from tests.support.server import Server

STORY = "Once upon a time there was a"
TURN = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
HELLO = [{"role": "user", "content": "Who are you?"}]
BODIES: dict[str, dict[str, Any]] = {
    "Fireworks": {"model": "cantor", "prompt": STORY, "temperature": 0},
    "Empower": {"model": "cantor", "messages": HELLO, "temperature": 0, "max_tokens": 24},
}
BELOW, ABOVE = -1, 1

pytestmark = pytest.mark.timeout(480)
"""The first test starts a server too."""


@dataclass(frozen=True)
class Asked:
    """One page on a running server."""

    page: ProductPage
    client: httpx2.Client

    def raw(self, **fields: Any) -> httpx2.Response:
        """The page's request with these fields; `...` leaves one out."""
        body = BODIES[self.page.product] | fields
        return self.client.post(self.page.served_at, json={k: v for k, v in body.items() if v is not ...})

    def __call__(self, **fields: Any) -> Any:
        reply = self.raw(**fields)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def texts(self, **fields: Any) -> list[str]:
        choices = self(**fields)["choices"]
        return [each["text"] if "text" in each else each["message"]["content"] for each in choices]

    def text(self, **fields: Any) -> str:
        return self.texts(**fields)[0]

    def count(self, **fields: Any) -> int:
        """Completion tokens."""
        found: int = self(**fields)["usage"]["completion_tokens"]
        return found

    def chunks(self, **fields: Any) -> list[Any]:
        """A stream's data; the last is the text [DONE]."""
        reply = self.raw(stream=True, **fields)
        assert reply.status_code == 200 and reply.headers["content-type"].startswith("text/event-stream")
        lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]

    def refuses(self, name: str, **fields: Any) -> str:
        """The sentence of a 400 in the product's own shape, which names the field."""
        reply = self.raw(**fields)
        assert reply.status_code == 400, reply.text
        body = reply.json()
        error = body["error"] if self.page is FIREWORKS else body
        if self.page is FIREWORKS:
            assert body.keys() == {"error"} and error["code"] == "INVALID_ARGUMENT"
        else:
            assert body.keys() == {"object", "message", "type", "param", "code"}
            assert (body["object"], body["type"]) == ("error", "invalid_request_error")
        assert name in error["message"] and (error["param"] or name).startswith(name)
        sentence: str = error["message"]
        return sentence


@pytest.fixture(scope="module")
def client(equipped: Server) -> Iterator[httpx2.Client]:
    with equipped.client() as made:
        yield made


@pytest.fixture
def fireworks(client: httpx2.Client) -> Asked:
    return Asked(FIREWORKS, client)


@pytest.fixture
def empower(client: httpx2.Client) -> Asked:
    return Asked(EMPOWER, client)


def rows(keep: Callable[[PageRow], bool]) -> list[Any]:
    return [
        pytest.param(page, row, id=f"{page.product}-{row.name}")
        for page in (FIREWORKS, EMPOWER)
        for row in page.rows
        if keep(row)
    ]


# --- types --------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, ...]] = {
    "string": (7, ["x"]),
    "integer": ("seven", 1.5, [1]),
    "number": ("hot", [1]),
    "boolean": ("yes", 1),
    "object": ("x", 7),
    "object[]": (7,),
    "string[]": (7, [7], "x"),
    "truncate or error": ("shorten", 7),
    "string | string[]": (7, [7], {}),
    "string | string[] | integer[] | integer[][]": (7, {}, [None], ["x", 1], [True], [["x"]]),
    "object[] | string[] | string": (7, {}, [7], []),
}
RIGHT: dict[str, tuple[Any, ...]] = {
    "model": ("cantor",),
    "prompt": ("Once", ["Once", "Twice"], [1, 300], [[1, 300], [1, 301]]),
    "messages": ("Who are you?", ["Who are you?", "Hello."], HELLO),
    "context_length_exceeded_behavior": ("truncate", "error"),
    "images": ([],),
    "response_format": ({"type": "json_object"},),
    "stop": ("x", ["x", "y", "z", "w"]),
    "user": ("me",),
}


@pytest.mark.parametrize(("page", "row"), rows(lambda row: True))
def test_type(page: ProductPage, row: PageRow, client: httpx2.Client) -> None:
    asked, kind = Asked(page, client), row.type.removesuffix(" | null")
    plain: dict[str, tuple[Any, ...]] = {"integer": (1,), "number": (1, 0.5), "boolean": (False, True)}
    for value in RIGHT[row.name] if row.name in RIGHT else plain[kind]:
        if (row.name, value) != ("stream", True):
            asked(
                **{row.name: value, "max_tokens": 2} | ({"max_tokens": 1} if row.name == "max_tokens" else {})
            )
    for value in WRONG[kind]:
        if (row.name, value) != ("logprobs", True):
            asked.refuses(row.name, **{row.name: value})
    if row.is_nullable:
        asked(**{row.name: None, "max_tokens": None if row.name == "max_tokens" else 2})


@pytest.mark.parametrize(("page", "row"), rows(lambda row: row.required))
def test_required(page: ProductPage, row: PageRow, client: httpx2.Client) -> None:
    assert "missing" in Asked(page, client).refuses(row.name, **{row.name: ...})


# --- defaults and ranges ------------------------------------------------------------------------------------

MIROSTAT = {"mirostat_lr": {"mirostat_target": 1.5}, "mirostat_target": {"mirostat_lr": 0.1}}
"""Each field's default acts where the other is sent."""


@pytest.mark.parametrize(("page", "row"), rows(lambda row: row.default is not UNSTATED))
def test_default(page: ProductPage, row: PageRow, client: httpx2.Client) -> None:
    """Left out is the default said, and another value is another answer."""
    asked = Asked(page, client)
    fields: dict[str, Any] = {"temperature": 1, "seed": 5, "n": 2} | MIROSTAT.get(row.name, {})
    others: dict[str, dict[str, Any]] = {
        "context_length_exceeded_behavior": {"max_tokens": 100_000},
        "echo": {},
        "ignore_eos": {"prompt": TURN, "max_tokens": 40} if page is FIREWORKS else {"max_tokens": 40},
        "stream": {},
        "max_tokens": {"ignore_eos": True},
        "temperature": {"max_tokens": 24},
    }
    fields |= others.get(row.name, {"max_tokens": 40}) | {row.name: ...}
    if row.name == "n":
        assert len(asked(**fields)["choices"]) == row.default == 1
        return
    left_out, said = asked(**fields), asked(**fields | {row.name: row.default})
    for answer in (left_out, said):
        answer.pop("id"), answer.pop("created"), answer["usage"].pop("prompt_tokens_details", None)
    assert left_out == said
    if row.name == "max_tokens":
        assert left_out["usage"]["completion_tokens"] == 2 * int(str(row.default))


def bounded(row: PageRow) -> bool:
    return row.low is not None or row.high is not None


@pytest.mark.parametrize(("page", "row"), rows(bounded))
def test_range(page: ProductPage, row: PageRow, client: httpx2.Client) -> None:
    """Both ends are in it, what is just beyond is not."""
    asked = Asked(page, client)
    step = 1 if row.type.startswith("integer") else 0.001
    more: dict[str, Any] = {"max_tokens": 1} | (
        {"max_tokens": ..., "echo": True} if row.name == "max_tokens" else {}
    )
    for end, side in ((row.low, BELOW), (row.high, ABOVE)):
        if end is not None:
            asked(**more | {row.name: end})
            assert asked.refuses(row.name, **more | {row.name: end + side * step})


# --- what each does: Fireworks ------------------------------------------------------------------------------


def test_fireworks_model(fireworks: Asked) -> None:
    for name in ("cantor", "accounts/fireworks/models/cantor", "pirate"):
        assert fireworks(model=name)["model"] == name
    reply = fireworks.raw(model="accounts/fireworks/models/nobody")
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "NOT_FOUND"


def test_fireworks_prompt(fireworks: Asked) -> None:
    """Several prompts give several choices with corresponding index."""
    alone = [fireworks.text(prompt=prompt) for prompt in ("Once upon", "The capital of France")]
    answer = fireworks(prompt=["Once upon", "The capital of France"])
    assert [(each["index"], each["text"]) for each in answer["choices"]] == list(enumerate(alone))
    asked = {"model": "cantor", "prompt": "Once upon"}
    ids = fireworks.client.post("/tokenize", json=asked).json()["tokens"]
    assert fireworks.texts(prompt=[ids, ids]) == [alone[0]] * 2 and fireworks.text(prompt=ids) == alone[0]


def test_fireworks_context_length_exceeded_behavior(fireworks: Asked) -> None:
    """Truncate limits max_tokens to the context less the prompt; error is an error."""
    fields: dict[str, Any] = {"prompt": "word " * 1000, "max_tokens": 100_000, "ignore_eos": True}
    answer = fireworks(**fields)
    assert answer["usage"]["total_tokens"] == 2048 and answer["choices"][0]["finish_reason"] == "length"
    assert fireworks.raw(**fields, context_length_exceeded_behavior="error").status_code == 400
    assert fireworks.raw(**fields | {"prompt": "word " * 1100}).status_code == 400, "no prompt is shortened"


def test_fireworks_echo(fireworks: Asked) -> None:
    assert fireworks.text(echo=True) == STORY + fireworks.text()
    answer = fireworks(echo=True, logprobs=1, max_tokens=0)
    assert answer["choices"][0]["text"] == STORY and answer["usage"]["completion_tokens"] == 0
    first, *others = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert first == 0 and others and max(others) < 0, "nothing stands before the first: its number says so"


REPEATING: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}


def repeated(texts: list[str]) -> float:
    """Share of the pairs of letters that have been there before."""
    pairs = [text[at : at + 2] for text in texts for at in range(len(text) - 1)]
    return 1 - len(set(pairs)) / len(pairs)


@pytest.mark.parametrize("product", ["fireworks", "empower"])
@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalty(name: str, product: str, request: pytest.FixtureRequest) -> None:
    asked: Asked = request.getfixturevalue(product)
    repeats = [repeated(asked.texts(**REPEATING, **{name: value})) for value in (2, -2)]
    assert repeats[0] < repeats[1] - 0.05


def test_fireworks_ignore_eos(fireworks: Asked) -> None:
    assert fireworks.count(prompt=TURN, max_tokens=40) < 40
    assert fireworks.count(prompt=TURN, max_tokens=40, ignore_eos=True) == 40


def test_fireworks_images(fireworks: Asked) -> None:
    """The number of images has to match that of <image> in the prompt."""
    image = "data:image/jpeg;base64,AAAA"
    wrong = fireworks.refuses("images", prompt="What is <image>?", images=[image, image])
    assert "1" in wrong and "2" in wrong
    right = fireworks.refuses("images", prompt="What is <image>?", images=[image])
    assert right != wrong, "the count is right, and the model sees nothing"
    fireworks.refuses("images", prompt="What is this?", images=[image])


def test_fireworks_logprobs(fireworks: Asked) -> None:
    """So many of the likeliest and the chosen one: up to logprobs + 1."""
    for asked in (0, 1, 5):
        scores = fireworks(logprobs=asked, temperature=2, seed=1)["choices"][0]["logprobs"]
        names = ("tokens", "token_logprobs", "text_offset", "token_ids")
        assert {len(scores[name]) for name in names} == {16}
        counts = {len(place) for place in scores["top_logprobs"] or [{}]}
        assert max(counts) <= asked + 1 and min(counts) >= asked
    assert fireworks()["choices"][0]["logprobs"] is None


def test_fireworks_max_tokens(fireworks: Asked) -> None:
    assert fireworks.count(ignore_eos=True) == 16, "the default"
    answer = fireworks(max_tokens=5, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 5 and answer["choices"][0]["finish_reason"] == "length"


def test_fireworks_mirostat(fireworks: Asked) -> None:
    """The target is kept; the rate says how fast; without both it is off."""
    wide: dict[str, Any] = {"temperature": 1.5, "seed": 2, "max_tokens": 24}
    tight = [fireworks.text(**wide, mirostat_target=0.001, mirostat_lr=0) for _ in range(2)]
    assert tight == [fireworks.text(max_tokens=24)] * 2, "no surprise is greedy"
    assert fireworks.text(**wide, mirostat_target=9) != tight[0]
    rates = {fireworks.text(**wide, mirostat_target=3, mirostat_lr=rate) for rate in (0, 1)}
    assert len(rates) == 2
    assert fireworks.text(**wide) != fireworks.text(**wide, mirostat_target=1.5, mirostat_lr=0.1)


def test_fireworks_n(fireworks: Asked) -> None:
    """How many completions for each prompt."""
    answer = fireworks(prompt=["Once", "Twice"], n=3, temperature=1)
    assert [each["index"] for each in answer["choices"]] == list(range(6))


def test_fireworks_repetition_penalty(fireworks: Asked) -> None:
    """It covers the prompt too: what stands there is said less."""
    texts = {value: fireworks.texts(**REPEATING, repetition_penalty=value) for value in (0.2, 1, 2)}
    assert repeated(texts[0.2]) > repeated(texts[1]) + 0.1 and texts[1] != texts[2]
    prompt = {"prompt": "hen hen hen hen hen hen hen", "temperature": 0, "max_tokens": 4}
    assert "hen" in fireworks.text(**prompt, repetition_penalty=0.2)
    assert "hen" not in fireworks.text(**prompt, repetition_penalty=2)


SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["age"],
    "additionalProperties": False,
}


def test_fireworks_response_format(fireworks: Asked) -> None:
    hot: dict[str, Any] = {"temperature": 1, "seed": 1, "max_tokens": 60}
    found = json.loads(fireworks.text(**hot, response_format={"type": "json_object", "schema": SCHEMA}))
    assert found.keys() == {"age"} and 0 <= found["age"] <= 120
    assert fireworks.text(**hot, response_format={"type": "json_object"}).startswith("{")
    fireworks.refuses("response_format", response_format={"type": "json_object", "strict": True})


def test_fireworks_stop(fireworks: Asked) -> None:
    """Up to four; the returned text contains the one that ended it."""
    free = fireworks.text(max_tokens=40)
    word = free.split()[2]
    answer = fireworks(max_tokens=40, stop=["zzz", word])
    text = answer["choices"][0]["text"]
    assert free.startswith(text) and text.endswith(word) and len(text) < len(free)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert fireworks.text(max_tokens=40, stop=word) == text
    assert "4" in fireworks.refuses("stop", stop=["a", "b", "c", "d", "e"])


def test_fireworks_stream(fireworks: Asked) -> None:
    """Data-only events that end with [DONE]; the usage in the very last chunk."""
    whole = fireworks()
    *chunks, done = fireworks.chunks()
    assert done == "[DONE]"
    assert "".join(each["choices"][0]["text"] for each in chunks) == whole["choices"][0]["text"]
    assert [each.get("usage") for each in chunks[:-1]] == [None] * (len(chunks) - 1)
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [chunks[-1]["usage"][name] for name in counts] == [whole["usage"][name] for name in counts]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_fireworks_temperature_and_top(fireworks: Asked) -> None:
    many: dict[str, Any] = {"n": 6, "seed": 1, "temperature": 1.5, "max_tokens": 8}
    assert len(set(fireworks.texts(**many | {"temperature": 0}))) == 1
    assert len(set(fireworks.texts(**many | {"temperature": 2}))) > 1
    assert len(set(fireworks.texts(**many, top_k=1))) == 1 < len(set(fireworks.texts(**many, top_k=128)))
    assert len(set(fireworks.texts(**many, top_p=0))) == 1 < len(set(fireworks.texts(**many, top_p=1)))


def test_fireworks_user(fireworks: Asked) -> None:
    """Taken, and named as what nothing reads."""
    assert fireworks.raw(user="me").headers["x-antiphon-ignored"] == "user"


def test_fireworks_response(fireworks: Asked) -> None:
    answer = fireworks()
    assert answer.keys() >= {"id", "object", "created", "model", "choices", "usage"}
    assert (answer["object"], answer["model"]) == ("text_completion", "cantor")
    assert isinstance(answer["created"], int) and isinstance(answer["id"], str)
    assert fireworks()["id"] != answer["id"]


# --- what each does: Empower --------------------------------------------------------------------------------


def test_empower_messages(empower: Asked) -> None:
    """Objects; a text; an array of texts, each a prompt of its own."""
    said = empower.text()
    assert empower.text(messages="Who are you?") == said
    other = empower.text(messages="What is two plus two?")
    assert empower.texts(messages=["Who are you?", "What is two plus two?"]) == [said, other]


def test_empower_model(empower: Asked) -> None:
    """The name of a LoRA or of a base model."""
    base, adapted = empower(), empower(model="pirate")
    assert (base["model"], adapted["model"]) == ("cantor", "pirate")
    assert base["choices"] != adapted["choices"]
    reply = empower.raw(model="nobody")
    assert reply.status_code == 404 and reply.json()["object"] == "error" and "nobody" in reply.text


def test_empower_ignore_eos(empower: Asked) -> None:
    """Generating goes on until max_tokens."""
    assert empower.count(max_tokens=60) < 60 == empower.count(max_tokens=60, ignore_eos=True)


def test_empower_max_tokens(empower: Asked) -> None:
    assert empower.count(max_tokens=..., ignore_eos=True) == 256, "the default"
    answer = empower(max_tokens=3)
    assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length"
    empower.refuses("max_tokens", max_tokens=0)


def test_empower_n(empower: Asked) -> None:
    answer = empower(n=3, temperature=1, messages=["Who are you?", "Hello."])
    assert [each["index"] for each in answer["choices"]] == list(range(6))
    empower.refuses("n", n=0)


def test_empower_stream(empower: Asked) -> None:
    *chunks, done = empower.chunks()
    said = [each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]]
    assert done == "[DONE]" and "".join(said) == empower.text()


def test_empower_temperature_and_top_p(empower: Asked) -> None:
    many: dict[str, Any] = {"n": 6, "seed": 1, "max_tokens": 8, "messages": "Tell me a story."}
    assert len(set(empower.texts(**many, temperature=0))) == 1
    assert len(set(empower.texts(**many, temperature=2))) > 1
    assert len(set(empower.texts(**many | {"temperature": 2}, top_p=0.0001))) == 1


def test_empower_response(empower: Asked) -> None:
    """`choices`, `id`, `model` and `usage` are required, `created` may be; there is no `object`."""
    answer = empower()
    assert answer.keys() == {"id", "created", "model", "choices", "usage"}
    assert answer["usage"].keys() >= {"prompt_tokens", "completion_tokens", "total_tokens"}


@pytest.mark.parametrize("page", [FIREWORKS, EMPOWER], ids=lambda page: str(page.product))
def test_every_parameter_has_its_meaning_tested(page: ProductPage) -> None:
    tested = " ".join(name for name in globals() if name.startswith(f"test_{page.product.lower()}"))
    together = {"frequency_penalty", "presence_penalty", "mirostat_lr", "mirostat_target", "top_k", "top_p"}
    assert [row.name for row in page.rows if row.name not in tested and row.name not in together] == []
