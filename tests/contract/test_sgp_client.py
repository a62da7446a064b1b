"""scale-gp, unchanged, against Scale's dialect of a server with keys and cantor. It is told to raise on an
answer that is not of its types. The parameters of the page are in test_sgp_parameters."""

import json
from typing import Any

import pytest

from antiphon.domain.values import replace
from tests.contract.sgp.caller import (
    CHAT,
    GENERATING,
    GREEDY,
    HELLO,
    OLD_CHAT,
    OLD_TEXT,
    RAW_CHAT,
    WEATHER,
    Scale,
    join_chunks,
    list_fields,
    read_error,
    read_text,
)
from tests.e2e.furnished import Place

BERLIN: Any = {"role": "user", "content": "What is the weather in Berlin?"}
PICTURE = "data:image/png;base64,AAAA"

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and the client's interpreter."""


@pytest.fixture
def scale(place: Place) -> Scale:
    return Scale(place.server.url, place.key, "cantor")


# --- the four endpoints ---


@pytest.mark.parametrize("name", GENERATING)
def test_an_answer_is_the_same_whole_streamed_and_later(scale: Scale, name: str) -> None:
    old = name in (OLD_CHAT, OLD_TEXT)
    fields: Any = {"model_parameters": {"temperature": 0, "max_tokens": 12}} if old else GREEDY
    streamed = fields | {"stream": True} | ({} if old else {"stream_options": {"include_usage": True}})
    # the client gives the older streams the type of another product's answers
    scale = replace(scale, strict=not old)
    whole, parts = scale.call((name, fields), (name, streamed))
    later, later_parts = scale.call((name, fields), (name, streamed), later=True)
    text = read_text(whole["answer"])
    assert text == read_text(later["answer"]) != ""
    usage = "token_usage" if old else "usage"
    for chunks in (parts["chunks"], later_parts["chunks"]):
        assert join_chunks(chunks) == text
        assert [chunk.get(usage) for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert _count(chunks[-1][usage]) == _count(whole["answer"][usage])


def _count(usage: Any) -> tuple[int, int, int]:
    """Tokens of the prompt, of the completion, and of both; caching does not change them."""
    found = tuple(usage.get(name, usage.get(f"{name}_tokens")) for name in ("prompt", "completion", "total"))
    prompt, completion, total = found
    assert prompt + completion == total
    return prompt, completion, total


def test_a_slash_after_the_base_url_changes_nothing(scale: Scale) -> None:
    slashed = replace(scale, path="/sgp/")
    for name in GENERATING:
        bare, found = (
            each.call((name, {"max_tokens": 4} if "beta" in name else {}))[0] for each in (scale, slashed)
        )
        assert "answer" in bare and "answer" in found


def test_a_raw_response_has_status_headers_and_request_id(scale: Scale) -> None:
    ((plain, named), later) = (
        scale.answers(GREEDY, GREEDY | {"guided_decoding_backend": "outlines"}, name=RAW_CHAT),
        scale.call((RAW_CHAT, GREEDY), later=True),
    )
    assert plain["status"] == later[0]["answer"]["status"] == 200
    assert plain["headers"]["content-type"] == "application/json"
    assert plain["headers"]["x-request-id"] and "x-antiphon-ignored" not in plain["headers"]
    assert named["headers"]["x-antiphon-ignored"] == "guided_decoding_backend"
    assert read_text(plain["parsed"]) == read_text(named["parsed"])


def test_a_stream_ends_without_a_mark_that_the_client_reads(place: Place) -> None:
    headers = {"x-api-key": place.key}
    with place.server.client(headers=headers) as client:
        for path, body in (
            ("beta/chat/completions", {"messages": HELLO, "max_tokens": 2}),
            ("completions", {"prompt": "Once", "model_parameters": {"max_tokens": 2}}),
        ):
            answer = client.post(f"/sgp/v4/{path}", json=body | {"model": "cantor", "stream": True})
            lines = [line for line in answer.text.split("\n") if line]
            assert all(line.startswith("data: {") for line in lines), lines


# --- errors ---


def test_each_status_is_the_class_that_the_client_has_for_it(scale: Scale, place: Place) -> None:
    for name in GENERATING:
        (stranger,) = replace(scale, key="wrong").call((name, {}))
        missing, wrong = scale.call((name, {"model": "none"}), (name, {"extra_body": {"colour": "red"}}))
        assert read_error(stranger)[:2] == ("AuthenticationError", 401)
        assert read_error(missing)[:2] == ("NotFoundError", 404)
        assert list_fields(wrong) == ["colour"]
        (refused,) = replace(scale, key=place.confined).call((name, {}))
        assert read_error(refused)[0] in ("NotFoundError", "PermissionDeniedError")


def test_the_account_is_a_project_that_the_key_has(scale: Scale) -> None:
    mine, other = (replace(scale, account=name) for name in ("default", "another"))
    for name in (CHAT, OLD_TEXT):
        assert "answer" in mine.call((name, {}))[0]
        assert read_error(other.call((name, {}))[0])[:2] == ("PermissionDeniedError", 403)


def test_a_limit_is_a_rate_limit_error_with_its_time(scale: Scale, place: Place) -> None:
    limited = replace(scale, key=place.limited)
    results = limited.call(*[(name, {"stream": True}) for name in (*GENERATING, CHAT)], leave_after=1)
    assert "RateLimitError" in [result.get("error", {}).get("class") for result in results]
    (last,) = limited.call((OLD_TEXT, {}))
    assert read_error(last)[:2] == ("RateLimitError", 429)


# --- messages and tools ---


def test_a_role_can_be_missing_and_a_content_be_one_part(scale: Scale) -> None:
    part = {"type": "text", "text": HELLO[0]["content"]}
    texts = scale.texts(
        *(
            GREEDY | {"messages": [message]}
            for message in (HELLO[0], {"content": part["text"]}, {"content": part}, {"content": [part]})
        )
    )
    assert texts == [texts[0]] * 4


def test_a_tool_is_called_and_its_result_is_answered(scale: Scale) -> None:
    asked: Any = {"tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    whole, named, streamed = scale.call(
        (CHAT, asked | {"messages": [BERLIN], "parallel_tool_calls": False}),
        (
            CHAT,
            asked
            | {
                "messages": [BERLIN],
                "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            },
        ),
        (CHAT, asked | {"messages": [BERLIN], "tool_choice": "required", "stream": True}),
    )
    (choice,) = whole["answer"]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    (also,) = named["answer"]["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == also["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Berlin"}
    deltas = [
        part for chunk in streamed["chunks"] for part in chunk["choices"][0]["delta"].get("tool_calls") or ()
    ]
    assert deltas[0]["function"]["name"] == "get_weather"
    assert json.loads("".join(part["function"]["arguments"] for part in deltas)) == {"city": "Berlin"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"weather": "rain"}'}
    without, answered = scale.answers(
        asked | {"messages": [BERLIN]}, asked | {"messages": [BERLIN, choice["message"], result]}
    )
    assert answered["choices"][0]["message"]["content"]
    assert answered["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]


def test_a_message_of_an_answer_is_taken_back_unchanged(scale: Scale) -> None:
    (first,) = scale.answers(GREEDY)
    message = first["choices"][0]["message"]
    older = {"role": "assistant", "content": None, "refusal": None, "audio": None, "tool_calls": None,
             "function_call": {"name": "get_weather", "arguments": '{"city": "Berlin"}'}}  # fmt: skip
    result = {"role": "function", "name": "get_weather", "content": "rain"}
    for history in (
        [*HELLO, message, *HELLO],
        [BERLIN, older, result],
        [*HELLO, message | {"function_call": None}, BERLIN],
    ):
        (answer,) = scale.answers(GREEDY | {"messages": history})
        assert answer["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]


def test_an_image_is_refused_by_its_place(scale: Scale) -> None:
    url = {"url": PICTURE, "detail": "low", "media_type": "image/png"}
    data = {"data": "AAAA", "media_type": "image/png"}
    part = {"type": "image_url", "image_url": {"url": PICTURE}}
    beta, old_url, old_data, text = scale.call(
        (CHAT, {"messages": [{"role": "user", "content": {"type": "image_url", "image_url": url}}]}),
        (OLD_CHAT, {"messages": [{"role": "user", "content": [part]}]}),
        (OLD_CHAT, {"messages": [{"content": [{"type": "image_data", "image_data": data}]}]}),
        (OLD_TEXT, {"images": [{"image_url": PICTURE, "detail": "auto"}]}),
    )
    assert list_fields(beta) == list_fields(old_url) == ["messages.0.content.0.image_url"]
    assert list_fields(old_data) == ["messages.0.content.0.image_data"]
    assert list_fields(text) == ["images.0"]


# --- the older API ---

OLD: Any = {"temperature": 0, "max_tokens": 12}


def old(**more: Any) -> dict[str, Any]:
    """The parameters of a call of the older API."""
    return {"model_parameters": OLD | more}


@pytest.mark.parametrize("name", [OLD_CHAT, OLD_TEXT])
def test_the_older_parameters_act(scale: Scale, name: str) -> None:
    few, greedy, one, nucleus = scale.answers(
        old(max_tokens=3),
        old(),
        old(temperature=1, top_k=1),
        old(temperature=1, top_p=0),
        name=name,
    )
    assert few["token_usage"]["completion"] == 3
    text = read_text(greedy)
    assert [read_text(one), read_text(nucleus)] == [text, text]
    stop = text[3:6]
    stopped, low, same = scale.texts(
        old(stop_sequences=["§", stop]),
        old(frequency_penalty=-2, presence_penalty=-2, max_tokens=60),
        old(frequency_penalty=0, presence_penalty=0),
        name=name,
    )
    assert stopped == text[: text.index(stop)]
    assert same == text and low != text


OLD_REFUSED: Any = [
    ("temperature", 1.1), ("max_tokens", 0), ("top_k", 0), ("top_p", 1.1), ("frequency_penalty", 3),
    ("presence_penalty", -3), ("stop_sequences", ["a", "b", "c", "d", "e"]), ("colour", "red"),
]  # fmt: skip


def test_a_wrong_older_parameter_is_refused_by_its_name(scale: Scale) -> None:
    names = {"top_k": "topK", "top_p": "topP"}
    for name in (OLD_CHAT, OLD_TEXT):
        results = scale.call(*((name, {"model_parameters": {field: value}}) for field, value in OLD_REFUSED))
        for (field, _), result in zip(OLD_REFUSED, results, strict=True):
            assert list_fields(result) == [f"model_parameters.{names.get(field, field)}"]


def test_instructions_are_a_system_message(scale: Scale) -> None:
    system = {"role": "system", "content": "You are a pirate."}
    plain, told, first = scale.answers(
        old(),
        old() | {"instructions": system["content"]},
        old() | {"messages": [system, *HELLO]},
        name=OLD_CHAT,
    )
    assert told["token_usage"]["prompt"] == first["token_usage"]["prompt"] > plain["token_usage"]["prompt"]
    assert read_text(told) == read_text(first)


def test_an_older_chat_takes_a_template_and_its_own_answer(scale: Scale) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    plain, short = scale.answers(old(), old() | {"chat_template": template}, name=OLD_CHAT)
    assert short["token_usage"]["prompt"] < plain["token_usage"]["prompt"]
    (again,) = scale.answers(
        old() | {"messages": [*HELLO, plain["chat_completion"]["message"], *HELLO]}, name=OLD_CHAT
    )
    assert again["token_usage"]["prompt"] > plain["token_usage"]["prompt"]


def test_the_older_memory_strategy_keeps_the_last_messages(scale: Scale) -> None:
    history = [*HELLO, {"role": "assistant", "content": "I am cantor."}, *HELLO]
    short, whole, last = scale.answers(
        old(),
        old() | {"messages": history},
        old() | {"messages": history, "memory_strategy": {"name": "last_k", "params": {"k": 1}}},
        name=OLD_CHAT,
    )
    assert last["token_usage"]["prompt"] == short["token_usage"]["prompt"] < whole["token_usage"]["prompt"]


# --- models ---


def test_the_pager_gives_each_model_once(scale: Scale) -> None:
    (whole, paged, first, second, none) = scale.call(
        ("models.list", {}),
        ("models.list", {"limit": 2}),
        ("models.list", {"limit": 2, "page": 1}),
        ("models.list", {"limit": 2, "page": 2}),
        ("models.list", {"limit": 2, "page": 3}),
    )
    names = [model["id"] for model in whole["chunks"]]
    assert names == ["cantor", "encoder", "reranker"]
    assert [model["id"] for model in paged["chunks"]] == names
    assert [[model["id"] for model in each["chunks"]] for each in (first, second, none)] == [
        names[:2], names[2:], [],
    ]  # fmt: skip
    (later,) = scale.call(("models.list", {"limit": 2}), later=True)
    assert later["chunks"] == paged["chunks"]


def test_models_are_chosen_and_sorted_by_what_they_are(scale: Scale) -> None:
    vectors, sorted_, strange, other, mine = scale.call(
        ("models.list", {"model_type": "EMBEDDING"}),
        ("models.list", {"sort_by": ["model_type:desc", "name:asc"]}),
        ("models.list", {"account_id": "another"}),
        ("models.list", {"model_group_id": "none"}),
        ("models.list", {"account_id": "default"}),
    )
    assert [model["id"] for model in vectors["chunks"]] == ["encoder"]
    types = [model["model_type"] for model in sorted_["chunks"]]
    assert types == ["GENERIC", "EMBEDDING", "CHAT_COMPLETION"]
    assert strange["chunks"] == other["chunks"] == [] and len(mine["chunks"]) == 3


def test_a_page_that_cannot_be_is_refused_by_its_name(scale: Scale) -> None:
    wrong: Any = [
        ("page", 0),
        ("limit", 0),
        ("limit", 10_001),
        ("sort_by", ["model_card:asc"]),
        ("view", ["Deployments"]),
    ]
    results = scale.call(*(("models.list", {name: value}) for name, value in wrong))
    assert [read_error(result)[2][0]["loc"] for result in results] == [["query", name] for name, _ in wrong]


def test_one_model_is_shown_by_its_name(scale: Scale) -> None:
    model, none = scale.call(
        ("models.retrieve", {"model_id": "cantor"}), ("models.retrieve", {"model_id": "org/none"})
    )
    shown = model["answer"]
    assert (shown["id"], shown["model_type"], shown["supports_multi_turn"]) == (
        "cantor",
        "CHAT_COMPLETION",
        True,
    )
    assert read_error(none)[:2] == ("NotFoundError", 404)
