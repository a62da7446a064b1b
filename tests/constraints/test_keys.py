"""One key has one spelling, and no object has a key twice: the check beside the mask."""

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import convert, to_builtins

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_builder import COMPACT, STRICT, build_json_grammar
from antiphon.constraints.grammar_types import (
    WHOLE_TEXT,
    CallFormat,
    CallGroup,
    Grammar,
    Prelude,
    TextAround,
    TextFrame,
)
from antiphon.constraints.json_text import JsonFinder, JsonMode, JsonText
from antiphon.constraints.key_guard import has_open_objects
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import EngineError

KIND = ConstraintKind
END, CONTROL = 256, 257
# fmt: off
SEVERAL = (
    '"":', '""', '"": "", "": ""', '"a": 1, "a"', '", "a"', ', "a', '{"a": 1, "a": 2', '{"', '"}, "', "\\u00",
    "\\u0061", '\\"', '"\\', '"\\/', 'a"', 'a": ', 'a": 1, "b"', 'a": {"a": {"a', '}}, "a"', '], "a": 1',
    "61", "u0061", '"a\\"', "0a", 'a": [{"b": 1, "b', '{"a": 1}, {"a', "\\\\", '\\""', "1b", "001", "ä",
)
# fmt: on
PIECES = (*(bytes([byte]) for byte in range(256)), b"", b"", *(text.encode() for text in SEVERAL))
WORDS = CompilerVocabulary(TokenTable(PIECES, (END,)))
LIKELY = [*map(ord, '{}[]":, ab1\\u06/n'), *range(CONTROL + 1, len(PIECES))]
"""Tokens of which keys are made that come again."""

ODD = 'q"\\\n\x01\x7f/é😀'
OPEN: list[Any] = [
    {},
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "null"}},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
    {"type": "object", "properties": {"x": False, "größe": {"type": "integer"}}},
    {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "object"}}, "maxItems": 3},
    {"type": "object", "properties": {ODD: {"type": "null"}}, "required": [ODD]},
    {"anyOf": [{"type": "object", "additionalProperties": {"$ref": "#"}}, {"type": "boolean"}]},
]
CLOSED: list[Any] = [
    {"type": "string"},
    {"enum": [{"a": 1}, [], "b"]},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"type": ["string", "null"]}}},
    {"anyOf": [{"type": "null"}, {"type": "object", "additionalProperties": False}]},
]


def grammar_of(schema: Any, **more: Any) -> Grammar:
    return check_constraint(Constraint(KIND.JSON_SCHEMA, json.dumps(schema), **more), WORDS)


@lru_cache(maxsize=32)
def compile_grammar(grammar: Grammar) -> Matcher:
    return Matcher(grammar, WORDS)


def begin(grammar: Grammar) -> Matcher:
    """A new text of a grammar. A grammar is compiled once, which takes ten times as long as most texts."""
    return compile_grammar(grammar).copy()


def takes(grammar: Grammar, text: str) -> bool:
    """Whether a text is allowed, byte by byte: by the mask, and when it comes. Where text is forced a mask
    shows only the tokens that the tokenizer would make of it."""
    matcher = begin(grammar)
    for byte in text.encode():
        shown = bool(matcher.find_forced()) or has(matcher.compute_mask(), byte)
        try:
            matcher.consume([byte])
        except EngineError:
            return False
        assert shown
    return True


def has(mask: bytes, token: int) -> bool:
    return bool(mask[token >> 3] >> (token & 7) & 1)


def walk(grammar: Grammar, seed: int, most: int = 60) -> list[int]:
    """Tokens that masks allow, with many keys alike; perhaps not to the end."""
    chosen, matcher, made = Random(seed), begin(grammar), list[int]()
    while len(made) < most:
        forced = matcher.find_forced()
        matcher.consume([token for token in forced if token != END])
        made += forced
        if END in forced:
            break
        mask = matcher.compute_mask()
        likely = [token for token in LIKELY if has(mask, token)]
        token = chosen.choice(likely) if likely and chosen.random() < 0.95 else None
        token = pick_allowed(mask, chosen, WORDS.size) if token is None else token
        assert token is not None, "the walk ends where nothing may follow"
        made.append(token)
        if token == END:
            break
        matcher.consume([token])
    return made


def text_of(tokens: Sequence[int]) -> str:
    return b"".join(PIECES[token] for token in tokens).decode(errors="ignore")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def require_sound_keys(text: str) -> Any:
    """The value of a text in which no key is repeated or misspelled."""
    for key, is_key in re.findall(r'("(?:\\.|[^"\\])*")(:?)', text):
        assert not is_key or key == json.dumps(json.loads(key), ensure_ascii=False), key
    return json.loads(text, object_pairs_hook=once)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1, "b', '{"a": 1, "\\u006'),
        ({"properties": {"größe": {"type": "integer"}}}, '{"größe": 1', '{"gr\\u00f'),
        ({"properties": {"größe": {"type": "integer"}}}, '{"grö\\u', '{"grö\\u00d'),
        ({"properties": {"x": False}}, '{"y', '{"\\u007'),
        ({}, '{"/": ', '{"\\/'),
        ({}, '{"😀": ', '{"\\ud'),
        ({}, '{"\\n": ', '{"\\u000a'),
        ({}, '{"\\u001f": ', '{"\\u001F'),
        ({}, '{"\\"": ', '{"\\u002'),
        ({}, '{"\\\\": ', '{"\\u005'),
        ({}, '{"a": 1, "A": 1', '{"a": 1, "a"'),
        ({}, '{"": "", "a": ""', '{"": "", ""'),
        ({}, '{"a": {"a": [{"a": 1}, {"a": 2}]}, "b": 1', '{"a": {"a": [{"a": 1}, {"a": 2}]}, "a"'),
        ({}, '{"a": 1, "a\\"": 2, "a\\"b": 3, "b": 4', '{"a": 1, "a\\"": 2, "a\\""'),
        ({}, '{"é": 1, "è": 2', '{"é": 1, "é"'),
        ({}, '{"\\u0001": 1, "\\u0002": 2', '{"\\u0001": 1, "\\u0001"'),
    ],
)
def test_a_key_has_one_spelling_and_stands_once(schema: Any, good: str, bad: str) -> None:
    grammar = grammar_of({"type": "object", **schema})
    assert takes(grammar, good) and takes(grammar, bad[:-1]) and not takes(grammar, bad)
    with pytest.raises(EngineError):
        begin(grammar).consume([*bad.encode()])


def test_values_are_spelled_as_before() -> None:
    grammar = grammar_of({"type": "object"})
    assert takes(grammar, '{"a": "\\u000a\\u001F\\"a\\" a", "b": "a", "c": "a"}')


def test_a_declared_key_can_be_written_whatever_is_in_it() -> None:
    text = json.dumps({ODD: None}, ensure_ascii=False)
    assert takes(grammar_of(OPEN[6]), text)


@given(schema=some.sampled_from(OPEN), seed=some.integers(0, 2**32))
def test_every_text_has_sound_keys(schema: Any, seed: int) -> None:
    made = walk(grammar_of(schema), seed)
    if made[-1] == END:
        require_sound_keys(text_of(made))


@pytest.mark.parametrize("schema", OPEN, ids=range(len(OPEN)))
def test_a_mask_lacks_what_would_be_refused_and_nothing_else(schema: Any) -> None:
    grammar = grammar_of(schema)
    finder = JsonFinder(grammar.places or WHOLE_TEXT, WORDS.key_tables.spellings.__getitem__)
    for seed in range(2):
        matcher, free = begin(grammar), begin(Grammar(grammar.text))
        found = finder.start
        for token in walk(grammar, seed):
            mask, before = matcher.compute_mask(), free.compute_mask()
            for each in range(WORDS.size):
                refused = finder.read(found, WORDS.key_tables.spellings[each]) is None
                assert has(mask, each) == (has(before, each) and not refused), (found, PIECES[each])
            if token == END:
                break
            for follower in (matcher, free):
                follower.consume([token])
            found = finder.read(found, PIECES[token]) or found


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.text(max_size=3),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@given(value=VALUES, data=some.data())
def test_json_is_read_alike_however_it_is_cut(value: Any, data: some.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
    read = JsonText()
    cuts = sorted(data.draw(some.lists(some.integers(0, len(text)), max_size=8)))
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        read, _ = read.read(text[start:end])
    read, end = read.read(b"\n")
    assert read.mode is JsonMode.DONE and not read.levels


@given(pairs=some.lists(some.tuples(some.sampled_from(["", "a", "ab", '"', "\\"]), VALUES), max_size=4))
def test_a_repeated_key_is_refused_where_it_ends(pairs: list[tuple[str, Any]]) -> None:
    items = [f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False)}" for key, value in pairs]
    read, _ = JsonText().read(f"{{{','.join(items)}}}".encode())
    keys = [key for key, _ in pairs]
    assert read.mode is (JsonMode.DONE if len({*keys}) == len(keys) else JsonMode.REFUSED)


@pytest.mark.parametrize("text", ["<b>", "{a", '{"a" 1', "[1}", '{"a": 1]', "{,", '{"a": ,', "[,"])
def test_what_is_no_json_is_left_alone(text: str) -> None:
    assert JsonText().read(text.encode())[0].mode is JsonMode.BROKEN


@pytest.mark.parametrize("schema", CLOSED, ids=range(len(CLOSED)))
def test_closed_schemas_are_not_watched(schema: Any) -> None:
    assert not has_open_objects(schema) and grammar_of(schema).places is None


@pytest.mark.parametrize(
    "schema",
    [
        *OPEN,
        {"type": ["null", "object"]},
        {"type": "array"},
        {"properties": {}, "additionalProperties": False},
        {"type": "object", "patternProperties": {"a": {"type": "null"}}, "additionalProperties": False},
        {"type": "array", "prefixItems": [{"type": "null"}, {"type": "object"}], "items": False},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "object"}}},
        {"type": "object", "properties": {"a": {"type": "object"}}, "additionalProperties": False},
    ],
    ids=str,
)
def test_open_schemas_are_watched(schema: Any) -> None:
    assert has_open_objects(schema)


# --- JSON in other text

THOUGHT = TextFrame(("<think>",), ("</think>", "\n"))


@pytest.mark.parametrize("thought", ["", '<think>{"a": 1, "a": 2, "\\u0061"</think>\n'])
def test_keys_are_watched_after_reasoning_and_not_in_it(thought: str) -> None:
    grammar = grammar_of({"type": "object"}, prelude=Prelude((THOUGHT,), optional=True).dump())
    assert takes(grammar, thought + '{"a": 1, "b": 2}') and takes(
        grammar, thought + '{"a": "</think>", "b": 1}'
    )
    assert not takes(grammar, thought + '{"a": 1, "a"') and not takes(grammar, thought + '{"\\u0061')


def test_keys_are_watched_after_a_channel() -> None:
    prelude = Prelude(
        (TextFrame((CONTROL, "think"), (CONTROL, "end")),), optional=True, answer=(CONTROL, "final")
    )
    grammar = grammar_of({"type": "object"}, prelude=prelude.dump())
    for thought in ([], [CONTROL, *b'think{"a": 1, "a": 2}', CONTROL, *b"end"]):
        before = [*thought, CONTROL, *b"final"]
        begin(grammar).consume([*before, *b'{"a": 1, "b": 2}'])
        for bad in (b'{"a": 1, "a"', b'{"\\u0061'):
            with pytest.raises(EngineError):
                begin(grammar).consume([*before, *bad])


TOOL = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def calls(around: TextAround, **more: Any) -> Grammar:
    layout: dict[str, Any] = {"open": ("<call>",), "close": ("</call>",), **more}
    each = tuple(CallFormat((f"{name}(",), TOOL, (")",), "tools") for name in ("f", "ff"))
    return check_constraint(Constraint(KIND.CALLS, CallGroup(around, calls=each, **layout).dump()), WORDS)


@pytest.mark.parametrize(
    ("grammar", "before"),
    [
        (calls(TextAround.NOTHING), "<call>f("),
        (calls(TextAround.TEXT, between_groups=("\n",)), 'Say {"a": 1, "a": 2}: <call>ff('),
        (calls(TextAround.TEXT, between_groups=("\n",)), '<call>f({"a": 1})</call>\n<call>f('),
        (calls(TextAround.NOTHING, between=("; ",)), '<call>f({"a": 1, "b": "; f("}); ff('),
        (calls(TextAround.TEXT, open=(), close=(), between=("; ",), call_pattern=r"f+\("), "f("),
        (
            calls(TextAround.TEXT, open=(), close=(), between=("; ",), call_pattern=r"f+\("),
            'ff({"a": 1}); f(',
        ),
    ],
)
def test_keys_are_watched_in_the_arguments_of_calls(grammar: Grammar, before: str) -> None:
    assert takes(grammar, before + '{"a": 1, "b": {"a": 2}})')
    for bad in ('{"a": 1, "a"', '{"a": 1, "\\u006', '{"a": 1, "b": {"c": 1, "c"', '{"a": 1, "b": 1, "b"'):
        assert takes(grammar, before + bad[:-1]) and not takes(grammar, before + bad)


# --- what is forced, copied and carried

REPEATING = {
    "type": "object",
    "patternProperties": {"^a$": {"type": "null"}},
    "additionalProperties": False,
    "minProperties": 2,
}


def test_what_is_forced_ends_before_a_key_that_is_there() -> None:
    matcher = Matcher(build_json_grammar(REPEATING, COMPACT | STRICT), WORDS)
    made = b""
    while forced := matcher.find_forced():
        matcher.consume(forced)
        made += b"".join(PIECES[token] for token in forced)
    assert made.startswith(b'{"a": null, "') and made.count(b'"a"') == 1
    assert not any(matcher.compute_mask())


def test_a_copy_knows_the_keys_and_goes_its_own_way() -> None:
    matcher = Matcher(grammar_of({"type": "object"}), WORDS)
    matcher.consume([*b'{"a": 1, "'])
    other = matcher.copy()
    other.consume([*b'b": 1, "'])
    matcher.consume([*b"b"])
    other.consume([*b"b"])
    assert has(matcher.compute_mask(), ord('"')) and not has(other.compute_mask(), ord('"'))


def test_a_grammar_is_read_back_as_it_was_written() -> None:
    for grammar in (grammar_of(CLOSED[0]), grammar_of({}), calls(TextAround.NOTHING, open=(CONTROL, "x"))):
        assert convert(to_builtins(grammar), Grammar) == grammar


# --- keys that run out


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("^[ab]$", {"a", "b"}),
        ("^a$", {"a"}),
        ("^(a1b|a6b|ab)$", {"a1b", "a6b", "ab"}),
        ("^[a6]{2}$", {"aa", "a6", "6a", "66"}),
        ("^(a|ab)*$", None),
    ],
)
def test_no_text_is_led_to_where_only_a_known_key_fits(pattern: str, keys: set[str] | None) -> None:
    schema = {
        "type": "object",
        "patternProperties": {pattern: {"type": "null"}},
        "additionalProperties": False,
    }
    grammar = build_json_grammar(schema, COMPACT | STRICT)
    seen = set[str]()
    for seed in range(12):
        made = walk(grammar, seed, 120)
        assert keys is None or made[-1] == END
        if made[-1] == END:
            seen |= require_sound_keys(text_of(made)).keys()
    assert seen == keys if keys else seen
