"""scale-gp, unchanged, against Scale's dialect of a server with keys and cantor. It is told to raise on an
answer that is not of its types. Every parameter of the page that it can send."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from antiphon.dialects.common.product_pages import SGP
from tests.contract.sgp.caller import (
    CHAT,
    GENERATING,
    HELLO,
    OLD_CHAT,
    OLD_TEXT,
    RAW_CHAT,
    TEXT,
    Scale,
    join_chunks,
    list_fields,
    read_error,
    read_text,
)
from tests.e2e.furnished import Place, furnished

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather of a city.", "parameters": CITY},
}
BERLIN: Any = {"role": "user", "content": "What is the weather in Berlin?"}
PROMPT_LONG = "Once upon a time there was a"
GREEDY: Any = {"temperature": 0, "max_tokens": 12}
HOT: Any = {"temperature": 2, "max_tokens": 12, "seed": 1}
SEEDED: Any = {"temperature": 0.8, "seed": 11, "max_tokens": 12}
PICTURE = "data:image/png;base64,AAAA"

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and the client's interpreter."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("sgp")) as made:
        yield made


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


# --- parameters of the page ---

TAKEN: Any = {
    "model": "cantor",
    "messages": HELLO,
    "chat_template": "{{ messages[0].content }}",
    "chat_template_kwargs": {},
    "guided_json": PERSON,
    "guided_regex": "[a-z]{3}",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "John"',
    "guided_decoding_backend": "lm-format-enforcer",
    "include_stop_str_in_output": True,
    "stream": False,
    "stop": ["§", "¶"],
    "frequency_penalty": -2,
    "logit_bias": {"300": 1},
    "logprobs": True,
    "max_tokens": 2,
    "n": 2,
    "presence_penalty": 2,
    "seed": 7,
    "temperature": 2,
    "top_p": 0.5,
    "response_format": "Person",
    "user": "ada",
    "max_completion_tokens": 2,
    "tools": [WEATHER],
    "best_of": 2,
    "top_k": 3,
    "memory_strategy": {"name": "last_k", "k": 2},
    "inference_timeout": 30,
    "inference_extra_params": {"top_k": 3},
    "inference_extra_headers": {"x-colour": "red"},
}
"""A value of each parameter that this server takes alone."""

TOGETHER: Any = {
    "guided_whitespace_pattern": {"guided_json": PERSON, "guided_whitespace_pattern": "[ ]?"},
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "top_logprobs": {"logprobs": True, "top_logprobs": 20},
    "tool_choice": {"tools": [WEATHER], "tool_choice": "required"},
    "parallel_tool_calls": {"tools": [WEATHER], "parallel_tool_calls": False},
}
"""Parameters that are taken only beside others."""

SPOKEN: Any = {"modalities": ["text", "audio"], "audio": {"format": "wav", "voice": "alloy"}}
HOSTED: Any = [
    ("suffix", {"suffix": "the end"}),
    ("modalities", SPOKEN),
    ("audio", {"audio": SPOKEN["audio"]}),
    ("prediction", {"prediction": {"type": "content", "content": "I am"}}),
]
"""Parameters that no model of this server can follow: the field that is named, and what is sent."""

RANGES: Any = [
    ("temperature", 2.1), ("temperature", -0.1), ("top_p", 1.1), ("n", 0), ("n", 129), ("max_tokens", 0),
    ("frequency_penalty", 2.1), ("presence_penalty", -2.1), ("stop", ["a", "b", "c", "d", "e"]),
    ("top_logprobs", 2), ("logit_bias", {"300": 101}), ("best_of", 21), ("guided_grammar", "start: ("),
    ("tool_choice", "any"), ("parallel_tool_calls", True), ("stream_options", {"include_usage": True}),
    ("guided_regex", "["), ("guided_decoding_backend", "xgrammar"),
    ("logprobs", "yes"), ("messages", []), ("top_k", -2), ("seed", "x"),
]  # fmt: skip


def test_every_parameter_of_the_page_is_taken_or_refused(scale: Scale) -> None:
    assert {row.name for row in SGP.rows} == TAKEN.keys() | TOGETHER.keys() | {name for name, _ in HOSTED}
    bodies = [*({name: value} for name, value in TAKEN.items()), *TOGETHER.values()]
    for result in scale.call(*((CHAT, {"max_tokens": 3} | body) for body in bodies)):
        assert "error" not in result, result


def test_what_only_vendors_do_is_refused_or_named(scale: Scale) -> None:
    results = scale.call(*((RAW_CHAT, body) for _, body in HOSTED))
    for (name, _), result in zip(HOSTED, results, strict=True):
        if "answer" in result:
            assert result["answer"]["headers"]["x-antiphon-ignored"] == name
        else:
            assert [field.partition(".")[0] for field in list_fields(result)] == [name]


def test_a_cache_mark_is_named_where_no_vendor_gets_it(scale: Scale) -> None:
    marked = WEATHER | {"cache_control": {"type": "ephemeral"}}
    (answer,) = scale.answers({"tools": [marked], "max_tokens": 2}, name=RAW_CHAT)
    assert answer["headers"]["x-antiphon-ignored"] == "tools[].cache_control"


def test_what_the_page_does_not_allow_is_refused_by_its_name(scale: Scale) -> None:
    results = scale.call(*((CHAT, {name: value}) for name, value in RANGES))
    for (name, _), result in zip(RANGES, results, strict=True):
        assert [field.partition(".")[0] for field in list_fields(result)] == [name]


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}])
def test_what_leaves_one_token_is_greedy(scale: Scale, fields: Any) -> None:
    greedy, first, second, free = scale.texts(
        GREEDY, HOT | fields, HOT | {"seed": 2} | fields, HOT | {"seed": 3}
    )
    assert first == second == greedy != free


def test_a_seed_repeats_the_draws(scale: Scale) -> None:
    one, same, other = scale.texts(SEEDED, SEEDED, SEEDED | HOT | {"seed": 12})
    assert one == same != other


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_penalties_act_in_both_directions(scale: Scale, name: str) -> None:
    asked = {"prompt": PROMPT_LONG, "temperature": 0, "max_tokens": 60}
    usual, unset, low = scale.texts(asked, asked | {name: 0}, asked | {name: -2}, name=TEXT)
    assert usual == unset != low


def test_a_bias_bans_a_token_and_a_stop_text_ends_the_answer(scale: Scale) -> None:
    (whole,) = scale.answers(GREEDY | {"logprobs": True, "top_logprobs": 2}, name=TEXT)
    (choice,) = whole["choices"]
    first = choice["logprobs"]["content"][0]
    assert len(first["top_logprobs"]) == 2 and first["top_logprobs"][0]["token"] == first["token"]
    stop = choice["text"][3:6]
    cut, kept = scale.texts(
        GREEDY | {"stop": stop}, GREEDY | {"stop": [stop], "include_stop_str_in_output": True}, name=TEXT
    )
    until = choice["text"].index(stop)
    assert (cut, kept) == (choice["text"][:until], choice["text"][: until + 3])


def test_each_guide_shapes_the_answer(scale: Scale) -> None:
    hot = {"temperature": 1.5, "seed": 3, "max_tokens": 150}
    for name in (CHAT, TEXT):
        shaped, regex, choice, grammar = scale.texts(
            hot | {"guided_json": PERSON},
            hot | {"guided_regex": "[a-z]{3}-[0-9]{2}"},
            hot | {"guided_choice": ["yes", "no"]},
            hot | {"guided_grammar": 'start: "John"'},
            name=name,
        )
        Draft202012Validator(PERSON).validate(json.loads(shaped))
        assert regex[3] == "-" and len(regex) == 6
        assert choice in ("yes", "no") and grammar == "John"
    both = {"guided_regex": "a", "guided_choice": ["b"]}
    (refused,) = scale.call((CHAT, both))
    assert read_error(refused)[2][0]["msg"].startswith("Only one of guided_json, guided_choice")


def test_whitespace_of_guided_json_is_the_callers(scale: Scale) -> None:
    asked = {"temperature": 0, "max_tokens": 150, "guided_json": PERSON}
    usual, none = scale.texts(asked, asked | {"guided_whitespace_pattern": "[\\t]"})
    assert usual.startswith('{"name": "') and none.startswith('{"name":"') and json.loads(none)


def test_a_response_format_is_one_of_three_a_schema_or_a_class(scale: Scale) -> None:
    """The client itself takes only a class; the rest is sent beside its fields."""
    hot = {"temperature": 1.5, "seed": 3, "max_tokens": 150}
    formats: Any = [
        {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        PERSON,
        {"type": "json_object"},
        {"type": "text"},
    ]
    named, bare, some, text = scale.texts(
        *(hot | {"extra_body": {"response_format": form}} for form in formats)
    )
    (of_class,) = scale.texts(hot | {"response_format": "Person"})
    for shaped in (named, bare, of_class):
        Draft202012Validator(PERSON).validate(json.loads(shaped))
    assert some.startswith("{") and not text.startswith("{")


def test_choices_and_candidates_are_as_many_as_requested(scale: Scale) -> None:
    many, best = scale.answers(HOT | {"n": 3}, HOT | {"n": 1, "best_of": 3})
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    assert len(best["choices"]) == 1
    assert best["usage"]["completion_tokens"] > len(best["choices"]) * 12
    (streamed,) = scale.call((CHAT, {"best_of": 2, "stream": True}))
    assert list_fields(streamed) == ["best_of"]


def test_the_newer_name_of_max_tokens_wins(scale: Scale) -> None:
    both = {"max_tokens": 9, "max_completion_tokens": 4, "temperature": 0}
    (answer,) = scale.answers(both, name=RAW_CHAT)
    assert answer["parsed"]["usage"]["completion_tokens"] == 4
    assert answer["headers"]["x-antiphon-ignored"] == "max_tokens"


def test_the_twin_has_older_names_of_its_own(scale: Scale) -> None:
    few, scored, stopped = scale.answers(
        {"max_new_tokens": 3, "temperature": 0},
        GREEDY | {"return_token_log_probs": True},
        GREEDY | {"stop_sequences": ["a"]},
        name=TEXT,
    )
    assert few["usage"]["completion_tokens"] == 3
    (choice,) = scored["choices"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["text"]
    assert "a" not in stopped["choices"][0]["text"]


def test_a_template_of_the_request_takes_the_place_of_the_models(scale: Scale) -> None:
    template = "{% for message in messages %}{{ message.content }}{{ mark }}{% endfor %}"
    bare, marked = scale.answers(
        GREEDY | {"chat_template": template},
        GREEDY | {"chat_template": template, "chat_template_kwargs": {"mark": " word" * 20}},
    )
    assert marked["usage"]["prompt_tokens"] > bare["usage"]["prompt_tokens"] + 20


def test_a_memory_strategy_keeps_the_last_messages(scale: Scale) -> None:
    history = GREEDY | {"messages": [*HELLO, {"role": "assistant", "content": "I am cantor."}, *HELLO]}
    short, whole, flat, nested = scale.answers(
        GREEDY,
        history,
        history | {"memory_strategy": {"name": "last_k", "k": 1}},
        history | {"memory_strategy": {"name": "last_k", "params": {"k": 1}}},
        name=RAW_CHAT,
    )
    counts = [each["parsed"]["usage"]["prompt_tokens"] for each in (short, whole, flat, nested)]
    assert counts[0] == counts[2] == counts[3] < counts[1]
    assert flat["headers"]["x-antiphon-memory"] == "kept=1, dropped=2, summarised=0"
    wrong = scale.call(
        *((CHAT, {"memory_strategy": each}) for each in ({"name": "last_k"}, {"name": "last_k", "k": 0}))
    )
    assert [list_fields(each) for each in wrong] == [["memory_strategy.k"]] * 2


def test_an_extra_parameter_acts_as_the_field_of_its_name(scale: Scale) -> None:
    for name in (CHAT, TEXT):
        greedy, extra = scale.texts(GREEDY, HOT | {"inference_extra_params": {"top_k": 1}}, name=name)
        assert extra == greedy
        (unknown,) = scale.call((name, {"inference_extra_params": {"colour": "red"}}))
        assert list_fields(unknown) == ["inference_extra_params.colour"]


def test_extra_headers_are_named_where_no_vendor_gets_them(scale: Scale) -> None:
    (answer,) = scale.answers(GREEDY | {"inference_extra_headers": {"x-colour": "red"}}, name=RAW_CHAT)
    assert answer["headers"]["x-antiphon-ignored"] == "inference_extra_headers"


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
        ("models.list", {"limit": 1}),
        ("models.list", {"limit": 1, "page": 1}),
        ("models.list", {"limit": 1, "page": 2}),
        ("models.list", {"limit": 1, "page": 3}),
    )
    names = [model["id"] for model in whole["chunks"]]
    assert names == ["cantor", "encoder"]
    assert [model["id"] for model in paged["chunks"]] == names
    assert [[model["id"] for model in each["chunks"]] for each in (first, second, none)] == [
        names[:1], names[1:], [],
    ]  # fmt: skip
    (later,) = scale.call(("models.list", {"limit": 1}), later=True)
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
    assert [model["model_type"] for model in sorted_["chunks"]] == ["EMBEDDING", "CHAT_COMPLETION"]
    assert strange["chunks"] == other["chunks"] == [] and len(mine["chunks"]) == 2


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
