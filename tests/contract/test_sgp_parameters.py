"""scale-gp, unchanged: every parameter of Scale's page that it can send, on a server with keys and cantor."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from antiphon.dialects.sgp.page import PAGE as SGP
from tests.contract.sgp.caller import (
    CHAT,
    GREEDY,
    HELLO,
    RAW_CHAT,
    TEXT,
    WEATHER,
    Scale,
    list_fields,
    read_error,
)
from tests.e2e.furnished import Place

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPT_LONG = "Once upon a time there was a"
HOT: Any = {"temperature": 2, "max_tokens": 12, "seed": 1}
SEEDED: Any = {"temperature": 0.8, "seed": 11, "max_tokens": 12}

pytestmark = pytest.mark.timeout(480)
"""The first of them starts a server, and the client's interpreter."""


@pytest.fixture
def scale(place: Place) -> Scale:
    return Scale(place.server.url, place.key, "cantor")


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
    "prediction": {"type": "content", "content": "I am"},
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
