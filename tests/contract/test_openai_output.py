"""What comes back of tokens, asked of cantor through the openai client: stop texts that stay, control tokens
by their names, token ids, scores of prompts, cut prompts; streamed as buffered."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.contract.conftest import Target

TALK: Any = [{"role": "user", "content": "Who are you?"}]
STORY = "Once upon a time there was a"
TURN = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
EMOJI = "naïve 😀 日本"


@pytest.fixture
def cantors(cantor: Target) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cantor.base_url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def text_of(client: openai.OpenAI, **asked: Any) -> dict[str, Any]:
    """The first choice of a text, which is the same when it is streamed; what stands in every chunk is
    joined."""
    body: Any = {"model": "cantor", "prompt": STORY, "max_tokens": 24, "temperature": 0} | asked
    whole: dict[str, Any] = client.completions.create(**body).choices[0].model_dump()
    parts = [
        part.model_dump()
        for chunk in client.completions.create(stream=True, **body)
        for part in chunk.choices
    ]
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert parts[-1]["finish_reason"] == whole["finish_reason"]
    for column in whole["logprobs"] or ():
        streamed = [value for part in parts if part["logprobs"] for value in part["logprobs"][column] or ()]
        assert streamed == (whole["logprobs"][column] or [])
    if "token_ids" in whole:
        assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
        assert parts[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert all("prompt_token_ids" not in part for part in parts[1:])
    return whole


def chat_of(client: openai.OpenAI, **asked: Any) -> dict[str, Any]:
    """A whole chat answer with one choice, which is the same when it is streamed."""
    body: Any = {"model": "cantor", "messages": TALK, "max_tokens": 24, "temperature": 0} | asked
    whole: dict[str, Any] = client.chat.completions.create(**body).model_dump()
    (choice,) = whole["choices"]
    chunks = [chunk.model_dump() for chunk in client.chat.completions.create(stream=True, **body)]
    parts = [part for chunk in chunks for part in chunk["choices"]]
    assert "".join(part["delta"]["content"] or "" for part in parts) == choice["message"]["content"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    if choice["logprobs"]:
        entries = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"]
    if "token_ids" in choice:
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    return whole


def test_a_stop_text_stays_where_it_shall_with_its_scores(cantors: openai.OpenAI) -> None:
    free = text_of(cantors)["text"]
    stop = free[len(free) // 2 - 3 : len(free) // 2 + 2]
    cut = text_of(cantors, stop=[stop], logprobs=1)
    kept = text_of(cantors, stop=[stop], logprobs=1, extra_body={"include_stop_str_in_output": True})
    assert (cut["text"] + stop, "stop") == (kept["text"], kept["finish_reason"])
    assert free.startswith(kept["text"])
    tokens = kept["logprobs"]["tokens"]
    assert tokens[: len(cut["logprobs"]["tokens"])] == cut["logprobs"]["tokens"]
    assert "".join(tokens).startswith(kept["text"])


def test_a_stop_tokens_text_is_shown_only_where_stops_stay(cantors: openai.OpenAI) -> None:
    free = text_of(cantors, extra_body={"return_token_ids": True})
    wanted = {"stop_token_ids": free["token_ids"][4:5]}
    cut = text_of(cantors, extra_body=wanted)
    kept = text_of(cantors, extra_body=wanted | {"include_stop_str_in_output": True})
    assert free["text"].startswith(kept["text"]) and kept["text"].startswith(cut["text"])
    assert len(kept["text"]) > len(cut["text"]) and cut["finish_reason"] == kept["finish_reason"] == "stop"


def test_control_tokens_show_as_their_names(cantors: openai.OpenAI) -> None:
    shown = {"skip_special_tokens": False}
    plain = chat_of(cantors, max_tokens=60)["choices"][0]
    named = chat_of(cantors, max_tokens=60, extra_body=shown | {"include_stop_str_in_output": True})
    text = plain["message"]["content"]
    assert plain["finish_reason"] == "stop"
    assert named["choices"][0]["message"]["content"] == text + "<|im_end|>"
    assert chat_of(cantors, max_tokens=60, extra_body=shown)["choices"][0]["message"]["content"] == text
    on = {"ignore_eos": True}
    went_on = text_of(cantors, prompt=TURN, max_tokens=60, extra_body=shown | on)
    assert "<|im_end|>" in went_on["text"]
    stopped = text_of(cantors, prompt=TURN, max_tokens=60, stop=["<|im_end|>"], extra_body=shown | on)
    assert stopped["text"] == went_on["text"].partition("<|im_end|>")[0]
    assert stopped["finish_reason"] == "stop"


def test_token_ids_are_the_text_and_all_that_is_counted(cantors: openai.OpenAI, cantor: Target) -> None:
    asked: Any = {"extra_body": {"return_token_ids": True}, "logprobs": 0}
    choice = text_of(cantors, max_tokens=8, **asked)
    again = text_of(cantors, prompt=choice["prompt_token_ids"], max_tokens=8, **asked)
    assert again == choice and len(choice["token_ids"]) == 8
    on = text_of(cantors, prompt=choice["prompt_token_ids"] + choice["token_ids"], max_tokens=4)
    assert text_of(cantors, max_tokens=12)["text"] == choice["text"] + on["text"]
    chat = chat_of(cantors, max_tokens=60, extra_body={"return_token_ids": True})
    assert len(chat["choices"][0]["token_ids"]) == chat["usage"]["completion_tokens"]
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize("echo", [False, True])
def test_tokens_that_are_half_a_character_stand_as_bytes(cantors: openai.OpenAI, echo: bool) -> None:
    held: Any = {"extra_body": {"guided_choice": [EMOJI]}, "max_tokens": 60}
    choice = text_of(cantors, prompt=EMOJI, echo=echo, logprobs=2, **held)
    assert choice["text"] == EMOJI * (2 if echo else 1)
    scores, said = choice["logprobs"], b""
    assert any(token.startswith("bytes:") for token in scores["tokens"])
    before = 0
    for token, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        assert before <= offset <= len(choice["text"])
        before = offset
        if token.startswith("bytes:"):
            piece = bytes(int(code, 16) for code in token.removeprefix("bytes:").split("\\x")[1:])
            assert piece in choice["text"][offset].encode()
        else:
            piece = b"" if token.startswith("<") and token.endswith(">") else token.encode()
            assert choice["text"][offset:].startswith(token.strip()) or not piece
        said += piece
    assert said.decode().replace(" ", "") == choice["text"].replace(" ", "")
    (chat,) = chat_of(cantors, logprobs=True, top_logprobs=1, **held)["choices"]
    *entries, end = chat["logprobs"]["content"]
    assert chat["message"]["content"] == EMOJI and end["token"] == "<|im_end|>"
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == EMOJI
    assert any(entry["token"].startswith("bytes:") for entry in entries)


def test_a_prompts_scores_are_those_of_its_echo(cantors: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "prompt": [STORY, EMOJI], "max_tokens": 3, "temperature": 0}
    extra = {"prompt_logprobs": 2, "return_token_ids": True}
    answer = cantors.completions.create(echo=True, logprobs=2, n=2, extra_body=extra, **asked).model_dump()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for choice in answer["choices"]:
        ids, scored = choice["prompt_token_ids"], choice["prompt_logprobs"]
        assert scored[0] is None and len(scored) == len(ids)
        values = choice["logprobs"]["token_logprobs"]
        for token, row, value in zip(ids[1:], scored[1:], values[1:], strict=False):
            mine = row[str(token)]
            assert mine["logprob"] == value and 2 <= len(row) <= 3
            assert mine["rank"] >= 1 and sorted(each["rank"] for each in row.values())[:2] == [1, 2]
    chat: Any = cantors.chat.completions.create(
        model="cantor", messages=TALK, n=2, max_tokens=3, extra_body={"prompt_logprobs": 0}
    ).model_dump()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert any(row and "<|im_start|>" in str(row) for row in chat["prompt_logprobs"])


def test_a_too_long_prompt_is_cut_on_request(cantors: openai.OpenAI) -> None:
    long = STORY * 2_000
    with pytest.raises(openai.BadRequestError) as refused:
        text_of(cantors, prompt=long)
    assert refused.value.code == "context_length_exceeded"
    for count, left in ((7, 7), (-1, 2048 - 24)):
        choice = text_of(
            cantors, prompt=long, extra_body={"truncate_prompt_tokens": count, "return_token_ids": True}
        )
        assert len(choice["prompt_token_ids"]) == left
    talk: Any = [{"role": "user", "content": long}]
    chat = chat_of(cantors, messages=talk, extra_body={"truncate_prompt_tokens": 9})
    assert chat["usage"]["prompt_tokens"] == 9


def test_every_prompt_times_n_has_its_index_and_usage_comes_once(cantors: openai.OpenAI) -> None:
    asked: Any = {"model": "cantor", "prompt": [STORY, "The end", "A"], "n": 2, "max_tokens": 5, "seed": 3}
    whole = cantors.completions.create(**asked)
    texts = {choice.index: choice.text for choice in whole.choices}
    assert [choice.index for choice in whole.choices] == list(range(6)) and whole.usage is not None
    for counted in ({"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, None):
        options: Any = {} if counted is None else {"stream_options": counted}
        chunks = list(cantors.completions.create(stream=True, **asked, **options))
        said = dict.fromkeys(range(6), "")
        for part in (part for chunk in chunks for part in chunk.choices):
            said[part.index] += part.text
        assert said == texts
        told = [chunk.usage for chunk in chunks if chunk.usage is not None]
        if counted is None:
            assert told == []
            continue
        assert told[-1] == whole.usage.model_copy(
            update={"prompt_tokens_details": told[-1].prompt_tokens_details}
        )
        assert chunks[-1].choices == []
        if len(counted) == 1:
            assert len(told) == 1
        else:
            made = [usage.completion_tokens for usage in told]
            assert len(told) == len(chunks) and made == sorted(made) and made[0] < made[-1]


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("prompt_logprobs", {"prompt_logprobs": 0, "stream": True}),
    ("prompt_logprobs", {"prompt_logprobs": 21}),
    ("prompt_logprobs", {"prompt_logprobs": -1}),
    ("return_tokens_as_token_ids", {"return_tokens_as_token_ids": True}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": 0}),
    ("truncate_prompt_tokens", {"truncate_prompt_tokens": -2}),
    ("spaces_between_special_tokens", {"spaces_between_special_tokens": False}),
    ("stream_options.continuous_usage_stats",
     {"stream": True, "stream_options": {"continuous_usage_stats": True}}),
    ("best_of", {"n": 3, "best_of": 2}),
    ("best_of", {"best_of": 2, "stream": True}),
]  # fmt: skip


@pytest.mark.parametrize(("param", "fields"), REFUSED)
def test_what_makes_no_sense_is_refused_by_name(
    cantors: openai.OpenAI, param: str, fields: dict[str, Any]
) -> None:
    for path, said in (("/completions", {"prompt": "a"}), ("/chat/completions", {"messages": TALK})):
        with pytest.raises(openai.BadRequestError) as refused:
            cantors.post(path, cast_to=object, body={"model": "cantor"} | said | fields)
        assert refused.value.param == param
