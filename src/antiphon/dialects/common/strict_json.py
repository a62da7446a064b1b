"""Reads a request body strictly: UTF-8, one JSON object, no repeated key, no NaN, no lone surrogate. Then
converts it to a wire type.

The parser for wire types would keep only the last of two equal keys. So the standard library's parser reads
bodies, because it reports every pair. A thread can read a body without blocking others for long. Objects,
lists and keys are counted first, and a body with too many of them is refused. Errors name the wrong field,
even in text that is not valid JSON.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from antiphon import validation_messages
from antiphon.errors import AntiphonError, InvalidValue, MalformedBody, MissingParameter, UnknownParameter

DENSE_BODY = 1 << 16
"""The size in bytes from which elements are counted before reading. A smaller body cannot contain too many
elements."""

MAX_NODES = 1 << 17
"""The most objects, lists and keys in one body. Reading this many takes about 0.1 seconds. A body with 4,096
messages has a tenth of them."""

MAX_SHOWN_KEY = 64
"""The most characters of a caller's key that an error repeats."""

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string, or the rest of the text after a quote that is never closed. The time of a match is linear in
its length."""


class _TwiceError(ValueError):
    """Raised if an object contains a key twice. The message is the key."""


class _ConstantError(ValueError):
    """Raised for NaN or an infinity, which JSON does not have. The message is the constant."""


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the object in a body. Raises MalformedBody with the error and its place."""
    text = _decode_utf8(body)
    if len(body) > DENSE_BODY:
        _refuse_crowd(body)
    try:
        value = _parse_json(text, _YIELDING_DECODER if len(body) > DENSE_BODY else _FAST_DECODER)
        if "\\ud" in text or "\\uD" in text:
            _refuse_lone_surrogates(value)
    except RecursionError:
        raise MalformedBody("the body is nested too deep") from None
    if not isinstance(value, dict):
        raise MalformedBody(f"the body must be a JSON object; got {describe_value(value)}")
    return value


def describe_value(value: object) -> str:
    """Describes a JSON value for an error. The description repeats numbers, but no text."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            text = repr(value)
            return text if len(text) <= 40 else "a number of many digits"
        case str():
            return "an empty string" if not value else "a string"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            return "an object"


def sanitize_key(key: str) -> str:
    """Returns a caller's key in a printable, short form for an error."""
    plain = key.encode("ascii", "backslashreplace").decode()
    plain = "".join(character if character.isprintable() else "?" for character in plain[: MAX_SHOWN_KEY + 1])
    return plain if len(plain) <= MAX_SHOWN_KEY else plain[:MAX_SHOWN_KEY] + "..."


def _decode_utf8(body: bytes) -> str:
    """Decodes a body. Raises MalformedBody if it is empty, has a byte order mark, or is not UTF-8."""
    if not body:
        raise MalformedBody("the body is empty; send a JSON object")
    if body.startswith(b"\xef\xbb\xbf"):
        raise MalformedBody("the body begins with a byte order mark; send UTF-8 without one")
    try:
        return body.decode()
    except UnicodeDecodeError as problem:
        raise MalformedBody(f"the body is not valid UTF-8 (byte {problem.start})") from None


def _parse_json(text: str, decoder: json.JSONDecoder) -> object:
    """Parses JSON. Raises MalformedBody that names the place of the error."""
    try:
        return decoder.decode(text)
    except _TwiceError as problem:
        key = str(problem)
        raise MalformedBody(f"the key {key!r} stands twice in one object; send it once", param=key) from None
    except _ConstantError as problem:
        param = _locate(text, rf"(?<!\w){problem}")
        raise MalformedBody(f"{problem} is not a JSON number", param=param) from None
    except json.JSONDecodeError as problem:
        position = f"line {problem.lineno} column {problem.colno}"
        param = find_path(text, problem.pos) if len(text) <= DENSE_BODY else None
        raise MalformedBody(f"the body is not valid JSON: {problem.msg} at {position}", param=param) from None
    except ValueError:
        param = _locate(text, rf"\d{{{sys.get_int_max_str_digits() or 1}}}")
        raise MalformedBody("the body holds a number of too many digits", param=param) from None


def _locate(text: str, character: str) -> str | None:
    """Returns the path of the first match outside strings. Returns None for a large text, because searching
    it takes too long."""
    matches = find_outside_strings(text, character) if len(text) <= DENSE_BODY else None
    return None if matches is None else find_path(text, matches)


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds an object from its pairs. Raises _TwiceError if a key is repeated."""
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(sanitize_key(key))
            seen.add(key)
    return members


def _refuse_constant(name: str) -> float:
    """Raises _ConstantError."""
    raise _ConstantError(name)


def _parse_int(digits: str) -> int:
    return int(digits)


def _parse_float(digits: str) -> float:
    return float(digits)


_FAST_DECODER = json.JSONDecoder(object_pairs_hook=_require_unique_keys, parse_constant=_refuse_constant)
_YIELDING_DECODER = json.JSONDecoder(
    object_pairs_hook=_require_unique_keys,
    parse_constant=_refuse_constant,
    parse_int=_parse_int,
    parse_float=_parse_float,
)
"""The decoder for large bodies, which a thread reads. It calls Python functions to parse numbers, so other
threads can run in between."""


def _refuse_crowd(body: bytes) -> None:
    """Raises MalformedBody if the body has too many nodes. It counts certain bytes first, and nodes only if
    there are many such bytes. Other threads can run meanwhile."""
    if sum(body.count(mark) for mark in (b"[", b"{", b":")) <= MAX_NODES:
        return
    nodes = 0
    for start, end in _split_outside_strings(body):
        nodes += sum(body.count(mark, start, end) for mark in (b"[", b"{", b":"))
        if nodes > MAX_NODES:
            raise MalformedBody(f"the body holds more than {MAX_NODES:,} objects, lists and keys")


def _split_outside_strings(body: bytes) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each section between two strings."""
    at = 0
    for string in STRING.finditer(body):
        yield at, string.start()
        at = string.end()
    yield at, len(body)


def _refuse_lone_surrogates(value: object) -> None:
    """Raises MalformedBody if a text contains half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        path = next(_broken_texts(value, ""), None)
        raise MalformedBody(
            "a text holds half of a surrogate pair, which is no character", param=path
        ) from None


def _broken_texts(value: object, where: str) -> Iterator[str]:
    """Yields the paths of the texts that UTF-8 cannot encode."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield where
    elif isinstance(value, dict):
        for key, inner in value.items():
            path = f"{where}.{sanitize_key(key)}" if where else sanitize_key(key)
            yield from _broken_texts(key, path)
            yield from _broken_texts(inner, path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _broken_texts(inner, f"{where}[{index}]")


MARKS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]', re.DOTALL)
"""Matches strings, even unclosed ones, and JSON's punctuation."""

LONGEST_PATH = 200
"""The most characters of a path that an error repeats."""


def find_path(text: str, position: int) -> str | None:
    """Returns the path of the value at a position; None for the outermost value."""
    steps: list[str | int | None] = []
    """For each open object or list: its current key or its current index. The item is None before an object's
    first key."""
    last = ""
    for mark in MARKS.finditer(text, 0, position):
        character = mark.group()
        if character == "{":
            steps.append(None)
        elif character == "[":
            steps.append(0)
        elif character in "}]" and steps:
            steps.pop()
        elif character == "," and steps:
            index = steps[-1]
            steps[-1] = index + 1 if isinstance(index, int) else None
        elif character == ":" and steps and steps[-1] is None:
            steps[-1] = last
        else:
            last = character[1:-1]
    return _join_path(steps)


def find_outside_strings(text: str, wanted: str) -> int | None:
    """Returns the position of the first match outside all strings, or None."""
    pattern = re.compile(rf"(?P<string>{MARKS.pattern})|(?P<found>{wanted})", re.DOTALL)
    matches = (match for match in pattern.finditer(text) if match["found"] is not None)
    first = next(matches, None)
    return None if first is None else first.start()


def _join_path(steps: list[str | int | None]) -> str | None:
    """Returns the steps as one path, such as `messages[0].role`. The path is cut if it is too long."""
    path = ""
    for step in steps:
        if step is None:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{_printable(step)}" if path else _printable(step)
    return path[:LONGEST_PATH] or None


def _printable(key: str) -> str:
    """Returns the key in printable ASCII."""
    plain = key.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in plain)


COUNTED = (" items", " characters")
"""The units of a bound on a length. An error about such a bound also says how many items or characters were
sent."""

Wire = TypeVar("Wire", bound=msgspec.Struct)


def convert(value: dict[str, Any], shape: type[Wire]) -> Wire:
    """Converts a value to `shape`. Raises InvalidValue, MissingParameter or UnknownParameter."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise _explain(validation_messages.parse_message(str(error)), value, shape) from None


def _explain(
    problem: validation_messages.ValidationProblem, value: dict[str, Any], shape: type[msgspec.Struct]
) -> AntiphonError:
    """Converts a validation problem of msgspec to the error that the caller gets."""
    path = problem.path
    if name := problem.missing_field:
        return MissingParameter(f"{name} is missing", param=name)
    if name := problem.unknown_field:
        return UnknownParameter(f"unknown field {name}", param=name)
    if path.endswith("role"):
        return InvalidValue(f"{path} must be {_join_words(_list_choices(shape, path))}", param=path)
    if "[...]" in path:
        # msgspec does not tell which of an object's values is wrong.
        name = path.partition("[...]")[0]
        return InvalidValue(f"{name} must have {problem.expected_value} at each key", param=name)
    expected, received = problem.expected_value, validation_messages.find_value(value, path)
    if problem.is_choice and (words := _list_choices(shape, path)):
        expected = _join_words(words)
    got = (
        str(len(received))
        if isinstance(received, list | str | dict) and expected.endswith(COUNTED)
        else describe_value(received)
    )
    return InvalidValue(f"{path} must be {expected}; got {got}", param=path or None)


def _join_words(words: Sequence[str]) -> str:
    """Joins words with commas, and the last one with `or`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _list_choices(shape: type[msgspec.Struct], path: str) -> tuple[str, ...]:
    """Returns the words that a wire type accepts at a path. The result is empty if other values are accepted
    too."""
    alternatives = _list_alternatives(inspect.type_info(shape))
    for name, _ in validation_messages.STEP.findall(path):
        alternatives = [inner for each in alternatives for inner in _list_members(each, name)]
    return tuple(
        word
        for each in alternatives
        if isinstance(each, inspect.LiteralType)
        for word in each.values
        if isinstance(word, str)
    )


def _list_alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """Returns the types of a union, or the type itself."""
    return list(kind.types) if isinstance(kind, inspect.UnionType) else [kind]


def _list_members(kind: inspect.Type, name: str) -> list[inspect.Type]:
    """Returns the types of a struct's member, or of a list's items."""
    if isinstance(kind, inspect.ListType):
        return _list_alternatives(kind.item_type)
    fields = kind.fields if isinstance(kind, inspect.StructType) else ()
    return [
        inner for field in fields if field.encode_name == name for inner in _list_alternatives(field.type)
    ]
