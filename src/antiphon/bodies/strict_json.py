"""Parses a request body strictly: UTF-8, one JSON object, no repeated key, no NaN, no lone surrogate. Then
converts it to a type.

msgspec's parser would keep only the last of two equal keys. The standard library's parser reports every pair,
so it is used. A large body can be parsed in a thread without blocking other threads for long. In a large
body, objects, lists and keys are counted before parsing, and too many of them are refused. Errors name the
wrong field, even in invalid JSON.
"""

import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from antiphon import validation_messages
from antiphon.errors import AntiphonError, InvalidValue, MalformedBody, MissingParameter, UnknownParameter

DENSE_BODY = 1 << 16
"""A larger body is checked for too many elements before it is parsed. A smaller body cannot contain too
many."""

MAX_NODES = 1 << 17
"""The most objects, lists and keys in one body. Parsing this many takes about 0.1 seconds. A body with 4,096
messages has a tenth of them."""

NODES = (b"[", b"{", b":")
"""Each of these bytes stands for a list, an object or a key, unless it is part of a string."""

MAX_SHOWN_KEY = 64
"""The most characters of a caller's key in an error."""

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string, or the rest of the text after an unclosed quote. The time of a match is linear in its
length."""

TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[{}\[\],:]', re.DOTALL)
"""Matches strings, even unclosed ones, and JSON's punctuation."""

LONGEST_PATH = 200
"""The most characters of a path that an error repeats."""

SHORT_WORD = re.compile(r"[\w.:/ -]{1,32}", re.ASCII)
"""A wrong choice that an error quotes: no longer than a misspelled name, and shorter than a key."""

LENGTH_UNITS = (" items", " characters")
"""The units of limits on a length. An error about such a limit also contains the actual length."""

EXPECTED = "expected"
"""The key in `Meta.extra` of a text with a pattern. Its value says what an error asks for."""

_type_info = cache(inspect.type_info)
"""Looks into a wire type once, not for each refused body."""

Wire = TypeVar("Wire", bound=msgspec.Struct)


class _RepeatedKeyError(ValueError):
    """Raised if an object contains a key twice. The message is the key."""


class _ConstantError(ValueError):
    """Raised for NaN or an infinity, which JSON does not have. The message is the constant."""


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        keys: set[str] = set()
        for key, _ in pairs:
            if key in keys:
                raise _RepeatedKeyError(sanitize_key(key))
            keys.add(key)
    return members


def _refuse_constant(name: str) -> float:
    raise _ConstantError(name)


_FAST_DECODER = json.JSONDecoder(object_pairs_hook=_require_unique_keys, parse_constant=_refuse_constant)

_YIELDING_DECODER = json.JSONDecoder(
    object_pairs_hook=_require_unique_keys,
    parse_constant=_refuse_constant,
    parse_int=lambda digits: int(digits),  # noqa: PLW0108
    parse_float=lambda digits: float(digits),  # noqa: PLW0108
)
"""The decoder for large bodies, which are parsed in a thread. It calls Python functions for numbers, so other
threads can run in between."""


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the object in a body. Raises MalformedBody with the error and its position."""
    body = body.removeprefix(BOM_UTF8)  # some programs of Windows write a byte order mark
    if not body:
        raise MalformedBody("the body is empty; send a JSON object")
    try:
        text = body.decode()
    except UnicodeDecodeError as problem:
        raise MalformedBody(f"the body is not valid UTF-8 (byte {problem.start})") from None
    if len(body) > DENSE_BODY:
        _require_few_nodes(body)
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
    """Describes a JSON value for an error. Contains numbers, but no text of the caller."""
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
    printable = _escape_unprintable(key[: MAX_SHOWN_KEY + 1])
    return printable if len(printable) <= MAX_SHOWN_KEY else printable[:MAX_SHOWN_KEY] + "..."


def _parse_json(text: str, decoder: json.JSONDecoder) -> object:
    """Parses JSON. Raises MalformedBody with the position of the error."""
    try:
        return decoder.decode(text)
    except _RepeatedKeyError as problem:
        key = str(problem)
        raise MalformedBody(f"the key {key!r} is twice in one object; send it once", param=key) from None
    except _ConstantError as problem:
        param = _locate(text, rf"(?<!\w){problem}")
        raise MalformedBody(f"{problem} is not a JSON number", param=param) from None
    except json.JSONDecodeError as problem:
        position = f"line {problem.lineno} column {problem.colno}"
        param = _find_path(text, problem.pos) if len(text) <= DENSE_BODY else None
        raise MalformedBody(f"the body is not valid JSON: {problem.msg} at {position}", param=param) from None
    except ValueError:
        param = _locate(text, rf"\d{{{sys.get_int_max_str_digits() or 1}}}")
        raise MalformedBody("the body has a number with too many digits", param=param) from None


def _locate(text: str, pattern: str) -> str | None:
    """Returns the path of the value at the pattern's first match outside strings. Returns None for a large
    text, because the search takes too long."""
    if len(text) > DENSE_BODY:
        return None
    combined = re.compile(rf"(?P<string>{TOKENS.pattern})|(?P<found>{pattern})", re.DOTALL)
    for match in combined.finditer(text):
        if match["found"] is not None:
            return _find_path(text, match.start())
    return None


def _require_few_nodes(body: bytes) -> None:
    """Raises MalformedBody if the body has too many nodes. Counts certain bytes first, and those outside
    strings only if there are many. Other threads can run meanwhile."""
    if sum(map(body.count, NODES)) <= MAX_NODES:
        return
    nodes = start = 0
    for string in STRING.finditer(body):
        nodes += sum(body.count(byte, start, string.start()) for byte in NODES)
        start = string.end()
        if nodes > MAX_NODES:
            break
    if nodes + sum(body.count(byte, start) for byte in NODES) > MAX_NODES:
        raise MalformedBody(f"the body has more than {MAX_NODES:,} objects, lists and keys")


def _refuse_lone_surrogates(value: object) -> None:
    """Raises MalformedBody if a text contains half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        path = next(_find_unencodable(value, ""), None)
        raise MalformedBody(
            "a text has half of a surrogate pair, which is not a character", param=path
        ) from None


def _find_unencodable(value: object, path: str) -> Iterator[str]:
    """Yields the paths of the texts that UTF-8 cannot encode."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield path
    elif isinstance(value, dict):
        for key, member in value.items():
            member_path = f"{path}.{sanitize_key(key)}" if path else sanitize_key(key)
            yield from _find_unencodable(key, member_path)
            yield from _find_unencodable(member, member_path)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            yield from _find_unencodable(member, f"{path}[{index}]")


def _find_path(text: str, position: int) -> str | None:
    """Returns the path of the value at a position, such as `messages[0].role`; None for the outermost value.
    A long path is cut."""
    steps: list[str | int | None] = []
    """For each open object or list: its current key or index. None before an object's first key."""
    last_text = ""
    for token in TOKENS.finditer(text, 0, position):
        character = token.group()
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
            steps[-1] = last_text
        else:
            last_text = character[1:-1]
    path = ""
    for step in steps:
        if step is None:
            break
        path += f"[{step}]" if isinstance(step, int) else f".{_escape_unprintable(step)}"
    return path.removeprefix(".")[:LONGEST_PATH] or None


def _escape_unprintable(key: str) -> str:
    ascii_key = key.encode("ascii", "backslashreplace").decode()
    return "".join(character if character.isprintable() else "?" for character in ascii_key)


def decode_json(body: bytes, shape: type[Wire]) -> Wire:
    """Decodes a body as `shape`. Raises MalformedBody, InvalidValue, MissingParameter or UnknownParameter."""
    return convert(read_object(body), shape)


def convert(value: dict[str, Any], shape: type[Wire]) -> Wire:
    """Converts a value to the wire type `shape`. Raises InvalidValue, MissingParameter or
    UnknownParameter."""
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
    if "[...]" in path:
        # msgspec does not report which of an object's values is wrong.
        name = path.partition("[...]")[0]
        return InvalidValue(f"{name} must have {problem.expected_value} at each key", param=name)
    expected, received = problem.expected_value, validation_messages.find_value(value, path)
    types = _list_types(shape, path)
    if problem.is_pattern:
        described = [
            kind.extra[EXPECTED] for kind in types if isinstance(kind, inspect.Metadata) and kind.extra
        ]
        expected = described[0] if described else expected
    elif (problem.is_choice or path.endswith("role")) and (accepted_words := _list_choices(types)):
        *words, last_word = accepted_words
        expected = f"{', '.join(words)} or {last_word}" if words else last_word
        if isinstance(received, str) and SHORT_WORD.fullmatch(received):
            return InvalidValue(f"{path} must be {expected}; got {received!r}", param=path)
    received_text = (
        str(len(received))
        if isinstance(received, list | str | dict) and expected.endswith(LENGTH_UNITS)
        else describe_value(received)
    )
    return InvalidValue(f"{path or 'the body'} must be {expected}; got {received_text}", param=path or None)


def _list_types(shape: type[msgspec.Struct], path: str) -> list[inspect.Type]:
    """Returns the types that a wire type accepts at a path, each after what `Meta` says of it."""
    types = _list_alternatives(_type_info(shape))
    for name, _ in validation_messages.STEP.findall(path):
        members: list[inspect.Type] = []
        for kind in types:
            if isinstance(kind, inspect.ListType):
                members += _list_alternatives(kind.item_type)
            elif isinstance(kind, inspect.StructType):
                for field in kind.fields:
                    if field.encode_name == name:
                        members += _list_alternatives(field.type)
        types = members
    return types


def _list_alternatives(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return [kind, *_list_alternatives(kind.type)]
    if isinstance(kind, inspect.UnionType):
        return [alternative for each in kind.types for alternative in _list_alternatives(each)]
    return [kind]


def _list_choices(types: list[inspect.Type]) -> list[str]:
    """Returns the words that types accept; empty if they accept no fixed words."""
    values: list[object] = []
    for kind in types:
        if isinstance(kind, inspect.LiteralType):
            values += kind.values
        elif isinstance(kind, inspect.EnumType):
            values += [member.value for member in kind.cls]
    return [word for word in values if isinstance(word, str)]
