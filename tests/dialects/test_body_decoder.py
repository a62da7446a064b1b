"""Where its wire type decodes a body alone, the table of fields reads the same and reports nothing."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.empower import decode as empower
from antiphon.dialects.empower import dialect as empower_dialect
from antiphon.dialects.fireworks import decode as fireworks
from antiphon.dialects.jamai import decode as jamai
from antiphon.dialects.openai import dialect, embeddings, rerank, tokens
from antiphon.dialects.sgp import decode as sgp
from antiphon.dialects.sgp import legacy
from antiphon.domain.request import RawPrompt
from antiphon.errors import AntiphonError, MalformedBody

Json = dict[str, Any]

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather: now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": ""}}},
    },
}
PARTS = [
    {"type": "text", "text": "Look:", "cache_control": {"type": "ephemeral"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
]
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": PARTS, "name": "ada"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm: it"},
    {"role": "tool", "content": 'rain: \u2602 "much"', "tool_call_id": "c1"},
]
PLAIN = [{"role": "user", "content": "Hello: you"}]
CHAT: Json = {"model": "m", "messages": HISTORY, "tools": [TOOL], "stream": True, "temperature": 0.5, "n": 2}
OPENAI: Json = CHAT | {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "stream_options": {"include_usage": True},
    "logit_bias": {"5": 1, "6": -2.5},
    "metadata": {"team": "a:b"},
    "tool_choice": {"type": "function", "function": {"name": "weather"}},
    "chat_template_kwargs": {"a": [1, -0.0, 12345678901234567890123, None, {"b": True}]},
    "prediction": {"type": "content", "content": [{"type": "text", "text": "x"}]},
    "memory_strategy": {"name": "last_k", "k": 2},
}
TEXT: Json = {"model": "m", "prompt": ["a:", "b"], "stop": [":"], "max_tokens": 5, "logprobs": 1}

BODIES: dict[str, tuple[BodyDecoder[Any], list[Json]]] = {
    "openai chat": (dialect.CHAT_BODY, [OPENAI, CHAT, {"model": "m", "messages": PLAIN}]),
    "openai text": (dialect.TEXT_BODY, [TEXT, {"model": "m", "prompt": [[1, 2], [3]]}]),
    "embeddings": (embeddings.EMBEDDINGS_BODY, [{"model": "m", "input": ["a", "b:"], "dimensions": 3}]),
    "rerank": (rerank.RERANK_BODY, [{"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}]),
    "tokenize": (tokens.TOKENIZE_BODY, [{"messages": HISTORY, "tools": [TOOL]}, {"prompt": "a"}]),
    "apply": (tokens.APPLY_BODY, [{"messages": HISTORY, "documents": [{"a": 1}]}]),
    "detokenize": (tokens.DETOKENIZE_BODY, [{"tokens": [1, 2]}]),
    "load": (dialect.LOAD_BODY, [{"lora_name": "a", "lora_path": "b:c"}]),
    "unload": (dialect.UNLOAD_BODY, [{"lora_name": "a"}]),
    "fireworks chat": (
        fireworks.CHAT_BODY,
        [CHAT | {"reasoning_effort": 5, "response_format": {"type": "json_object", "schema": {"a": 1}}}],
    ),
    "fireworks text": (fireworks.TEXT_BODY, [TEXT | {"images": [["a"]], "logprobs": True}]),
    "empower chat": (empower.CHAT_BODY, [CHAT, {"model": "m", "messages": ["a", "b"]}]),
    "deploy": (empower_dialect.DEPLOY_BODY, [{"model_name": "a/b", "model_source": "HF_HUB"}]),
    "sgp chat": (sgp.CHAT_BODY, [CHAT | {"inference_timeout": "3", "response_format": {"type": "text"}}]),
    "sgp text": (sgp.TEXT_BODY, [{"model": "m", "prompt": "a:", "stop_sequences": ["b"]}]),
    "legacy chat": (
        legacy.CHAT_BODY,
        [{"model": "m", "messages": PLAIN, "model_parameters": {"topK": 3, "temperature": 1}}],
    ),
    "legacy text": (
        legacy.TEXT_BODY,
        [{"model": "m", "prompt": "a", "images": [{"image_url": "data:image/png;base64,AAAA"}]}],
    ),
    "jamai chat": (jamai.CHAT_BODY, [{"model": "m", "messages": HISTORY, "id": "x", "top_p": 1}]),
    "jamai embeddings": (jamai.EMBEDDINGS_BODY, [{"model": "m", "input": "a:"}]),
    "jamai rerank": (jamai.RERANK_BODY, [{"query": "q", "documents": ["a"]}]),
}

ALL_BODIES = [(decoder, body) for decoder, bodies in BODIES.values() for body in bodies]

LONG_NUMBERS = (
    "1e400",
    "-0",
    "-0.0",
    "1" + "0" * 30,
    "9223372036854775808",
    "1.0",
    "1E2",
    "01",
    "NaN",
    "1" * 5000,
)
ODD_TEXTS = (
    '"\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\u003a:"',
    '"a\\u003A\\u0022"',
    '"\x01"',
    '""',
    '"\\/\\b\\n"',
)
DEEP = '{"a":' * 900 + "1" + "}" * 900
ODD_VALUES = (*LONG_NUMBERS, *ODD_TEXTS, "null", "true", "[]", "{}", "[null]", '{"a":1,"a":2}', DEEP)
OTHER_KEYS = (
    "unknown", "functions", "refusal", "annotations", "extra_content", "media_type", "guided_regex",
    "best_of", "stream_options", "reasoning_summary", "inference_extra_params", "name", "type", "a:b",
    "logit_bias", "content",
)  # fmt: skip


class Writer:
    """Writes a value as JSON, with mistakes and unusual spellings."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices
        self.mistake_rate = choices.choice([0, 0, 0.01, 0.03])

    def write(self, value: object) -> str:
        if self.is_drawn():
            return self.choices.choice(ODD_VALUES)
        if isinstance(value, dict):
            members = [(key, self.write(member)) for key, member in value.items()]
            if self.is_drawn():
                members.append((self.choices.choice(OTHER_KEYS), self.choices.choice(ODD_VALUES)))
            if members and self.is_drawn():
                key, text = self.choices.choice(members)
                members.insert(self.choices.randint(0, len(members)), (key, self.choices.choice([text, "1"])))
            if members and self.is_drawn():
                members.pop(self.choices.randrange(len(members)))
            return "{" + ",".join(f"{self.spell(key)}{self.space()}:{text}" for key, text in members) + "}"
        if isinstance(value, list):
            return "[" + ",".join(self.space() + self.write(item) for item in value) + "]"
        return self.spell(value) if isinstance(value, str) else json.dumps(value)

    def is_drawn(self) -> bool:
        return self.choices.random() < self.mistake_rate

    def space(self) -> str:
        return self.choices.choice(["", "", " ", "\r\n\t"])

    def spell(self, text: str) -> str:
        if self.choices.random() < 0.05:
            return '"' + "".join(f"\\u{ord(character):04x}" for character in text) + '"'
        return json.dumps(text, ensure_ascii=self.choices.random() < 0.5)


def write_body(body: Json, seed: int) -> bytes:
    choices = random.Random(seed)
    text = Writer(choices).write(body).encode()
    match choices.randrange(60):
        case 0:
            return b"\xef\xbb\xbf" + text
        case 1:
            return text[: choices.randrange(len(text))]
        case 2:
            place = choices.randrange(len(text))
            return text[:place] + choices.choice([b"\xff", b"\xed\xa0\x80", b'"', b":", b"\\"]) + text[place:]
        case _:
            return text


def require_same(decoder: BodyDecoder[Any], body: bytes) -> None:
    """Requires that the table reads the same as the type alone, if the type alone decodes the body."""
    at_once = read_outcome(lambda: decoder.decode_at_once(body))
    if at_once != "None":
        report = FieldReport()
        assert read_outcome(lambda: decoder.decode_by_table(body, report)) == at_once, body
        assert report.names == (), body


def read_outcome(decode: Callable[[], object]) -> str:
    """Returns what decoding returns, or the error that it raises, as a text."""
    try:
        return repr(decode())
    except AntiphonError as error:
        return repr((type(error), error.message, error.param))


@given(seed=st.integers(0, 1 << 62))
def test_the_type_and_the_table_read_the_same(seed: int) -> None:
    for index, (decoder, body) in enumerate(ALL_BODIES):
        require_same(decoder, write_body(body, seed + index))


@pytest.mark.parametrize("name", BODIES)
def test_usual_bodies_need_no_table(name: str) -> None:
    decoder, bodies = BODIES[name]
    for body in bodies:
        assert decoder.decode_at_once(json.dumps(body, ensure_ascii=False).encode()) is not None
        assert decoder.decode_at_once(json.dumps(body, separators=(",", ":")).encode()) is not None


@pytest.mark.parametrize(
    ("member", "param"),
    [
        ('"user":"a:b","user":"c"', "user"),
        ('"user":"a","us\\u0065r":"b"', "user"),
        ('"user":"\\u003a","user":""', "user"),
        ('"user":"\\u003A\\u003a","n":2,"n":1', "n"),
        ('"metadata":{"a":"1","a":"2"}', "a"),
        ('"chat_template_kwargs":{"a":{"b":":","b":1}}', "b"),
        ('"user":null,"user":null', "user"),
        ('"stop":"a","stop":["a"]', "stop"),
    ],
)
def test_a_repeated_key_is_found_anywhere(member: str, param: str) -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":":"}],%b}' % member.encode()
    with pytest.raises(MalformedBody) as caught:
        dialect.decode_chat(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("message", "ignored"),
    [
        ({"role": "assistant", "content": "a", "refusal": "b"}, ("messages[].refusal",)),
        ({"role": "assistant", "content": "", "refusal": "b"}, ()),
        (
            {"role": "assistant", "tool_calls": [CALL | {"extra_content": {"other": 1}}]},
            ("messages[].tool_calls[].extra_content",),
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [CALL | {"extra_content": {"google": {"thought_signature": "x"}}}],
            },
            (),
        ),
    ],
)
def test_an_ignored_part_that_the_type_accepts_is_named(message: Json, ignored: tuple[str, ...]) -> None:
    body = json.dumps({"model": "m", "messages": [message]}).encode()
    assert dialect.decode_chat(body).ignored == ignored


@pytest.mark.parametrize(
    "name", ["openai chat", "fireworks chat", "empower chat", "sgp chat", "tokenize", "apply"]
)
def test_an_ignored_part_is_left_to_the_table(name: str) -> None:
    decoder, (first, *_) = BODIES[name]
    body = first | {"messages": [{"role": "assistant", "content": "a", "refusal": "b"}]}
    assert decoder.decode_at_once(json.dumps(body).encode()) is None


def list_structs(kind: inspect.Type, in_union: bool = False) -> list[tuple[inspect.StructType, bool]]:
    """Lists the structs of a type, each with whether it is part of a union of structs."""
    match kind:
        case inspect.UnionType():
            structs = [each for each in kind.types if isinstance(each, inspect.StructType)]
            return [pair for each in kind.types for pair in list_structs(each, len(structs) > 1)]
        case inspect.ListType():
            return list_structs(kind.item_type)
        case inspect.DictType():
            return list_structs(kind.value_type)
        case inspect.StructType():
            inner = [pair for field in kind.fields for pair in list_structs(field.type)]
            return [(kind, in_union), *inner]
        case _:
            return []


@pytest.mark.parametrize("name", BODIES)
def test_a_decoded_value_never_has_more_keys_than_its_body(name: str) -> None:
    """A field is encoded only if it was sent, and an unknown one is not skipped. A tag outside a union need
    not be sent."""
    for kind, in_union in list_structs(inspect.type_info(BODIES[name][0].shape)):
        config = kind.cls.__struct_config__
        assert config.omit_defaults and config.forbid_unknown_fields, kind.cls
        assert config.tag is None or in_union, kind.cls


def test_null_and_escapes_need_no_table() -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"\\u003a","name":null}],"user":null,"stop":null}'
    )
    wire = dialect.CHAT_BODY.decode_at_once(body)
    assert wire is not None and wire == dialect.CHAT_BODY.decode_by_table(body, FieldReport())
    with pytest.raises(AntiphonError, match="unknown field guided_regex"):
        empower.decode_chat(b'{"model":"m","messages":"a","guided_regex":null}')


def test_a_large_body_of_many_parts_is_left_to_the_table() -> None:
    long_text = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a b, " * 60_000}]})
    assert dialect.CHAT_BODY.decode_at_once(long_text.encode()) is not None
    for count, is_at_once in ((65_000, True), (66_000, False), (100_000, False)):
        many_tokens = json.dumps({"model": "m", "prompt": [1] * count}, separators=(",", ":")).encode()
        assert (dialect.TEXT_BODY.decode_at_once(many_tokens) is not None) == is_at_once
        (prompt,) = dialect.decode_text(many_tokens).request.prompts
        assert prompt == RawPrompt(tokens=(1,) * count)


def test_every_error_comes_from_the_table() -> None:
    for decoder, body in ALL_BODIES:
        with pytest.raises(AntiphonError):
            decoder.decode(json.dumps(body | {"no_such_field": 1}).encode())
        _, report = decoder.decode(json.dumps(body | {"no_such_field": 1}).encode(), report_unknown=True)
        assert "no_such_field" in report.names
