"""The field memory_strategy: two layouts, three strategies, and what is refused by name."""

import json

import pytest

from antiphon.dialects.fireworks import decode as fireworks
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.domain.memory import LastMessages, LastTokens, RelevantTurns, Summary
from antiphon.errors import AntiphonError

PARAMS = "memory_strategy.params"
MESSAGES = [{"role": "user", "content": "hi"}]
DECODERS = [pytest.param(decode_chat, id="openai"), pytest.param(fireworks.decode_chat, id="fireworks")]


def body(strategy, **fields) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, "memory_strategy": strategy} | fields).encode()


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("strategy", "read"),
    [
        ({"name": "last_k", "k": 3}, LastMessages(3)),
        ({"name": "last_k", "params": {"k": 3}}, LastMessages(3, PARAMS)),
        ({"k": 3}, LastMessages(3)),
        ({"params": {"k": 3}}, LastMessages(3, PARAMS)),
        ({"name": "last_k", "k": 3, "params": {}}, LastMessages(3)),
        ({"name": "last_k", "k": 3, "params": None}, LastMessages(3)),
        ({"name": "last_tokens", "tokens": 400}, LastTokens(400)),
        ({"tokens": 400}, LastTokens(400)),
        ({"params": {"tokens": 400}}, LastTokens(400, PARAMS)),
        ({"name": "summary"}, Summary()),
        ({"name": "relevant", "model": "e", "tokens": 9}, RelevantTurns(9, "e")),
        ({"name": "summary", "tokens": 400}, Summary(400)),
        ({"name": "summary", "params": {"tokens": 400, "model": "x"}}, Summary(400, "x", PARAMS)),
        ({"model": "x"}, Summary(None, "x")),
        (None, None),
    ],
)
def test_both_layouts_are_read(decode, strategy, read):
    assert decode(body(strategy)).request.memory == read


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    ("strategy", "code", "param"),
    [
        ({"name": "last_k", "k": 0}, "invalid_value", "memory_strategy.k"),
        ({"name": "last_k", "params": {"k": 0}}, "invalid_value", "memory_strategy.params.k"),
        ({"name": "last_k", "k": "3"}, "invalid_value", "memory_strategy.k"),
        ({"name": "last_tokens", "tokens": 0}, "invalid_value", "memory_strategy.tokens"),
        ({"name": "summary", "tokens": 0}, "invalid_value", "memory_strategy.tokens"),
        ({"name": "nearest", "k": 3}, "invalid_value", "memory_strategy.name"),
        ({"name": "relevant", "k": 3}, "invalid_value", "memory_strategy.k"),
        ({"name": "relevant", "tokens": 3}, "missing_required_parameter", "memory_strategy.model"),
        ({"name": "last_k", "tokens": 3}, "invalid_value", "memory_strategy.tokens"),
        ({"name": "last_k", "k": 3, "model": "x"}, "invalid_value", "memory_strategy.model"),
        ({"k": 3, "params": {"k": 3}}, "invalid_value", "memory_strategy.params"),
        ({"name": "last_k"}, "missing_required_parameter", "memory_strategy.k"),
        (
            {"name": "last_tokens", "params": {}},
            "missing_required_parameter",
            "memory_strategy.params.tokens",
        ),
        ({}, "missing_required_parameter", "memory_strategy.name"),
        ({"k": 3, "keep": 1}, "unknown_parameter", "memory_strategy.keep"),
        ({"params": {"kk": 3}}, "unknown_parameter", "memory_strategy.params.kk"),
        ("last_k", "invalid_value", "memory_strategy"),
    ],
)
def test_errors_name_the_parameter(decode, strategy, code, param):
    with pytest.raises(AntiphonError) as caught:
        decode(body(strategy))
    assert (caught.value.code, caught.value.param, caught.value.status) == (code, param, 400)
    assert param in caught.value.message


@pytest.mark.parametrize("decode", [decode_text, fireworks.decode_text], ids=["openai", "fireworks"])
def test_a_raw_prompt_is_refused_by_name(decode):
    raw = {"model": "m", "prompt": "hi", "memory_strategy": {"k": 3}}
    with pytest.raises(AntiphonError, match="chat/completions") as caught:
        decode(json.dumps(raw).encode())
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "memory_strategy")
