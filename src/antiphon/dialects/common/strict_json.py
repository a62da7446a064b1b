"""Reads a request body as JSON, strictly: UTF-8, one object, no key twice, no NaN, no lone surrogate.

The parser of the wire types keeps the last of two equal keys in silence, so bodies are read by the standard
library's, which shows every pair. Reading is safe to run in a thread: it never keeps the others waiting for
long, and what would for the number of its objects, lists and keys is refused by counting them first.
"""

import json
import re
import sys
from collections.abc import Iterator
from typing import Any

from antiphon.dialects.common.json_place import outside_strings, place
from antiphon.errors import MalformedBody

DENSE_BODY = 1 << 16
"""Bytes from which elements are counted before reading: a smaller body cannot hold enough of them to matter.
"""

MAX_NODES = 1 << 17
"""Objects, lists and keys in one body: reading as many takes about a tenth of a second, and 4,096 messages
have a tenth."""

MAX_SHOWN_KEY = 64
"""Characters of a caller's own key that an error repeats."""

STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string, or all that follows the quote of one that never ends: every byte is looked at once."""


class _TwiceError(ValueError):
    """An object holds this key twice."""


class _ConstantError(ValueError):
    """NaN or an infinity, which JSON does not have."""


def read_object(body: bytes) -> dict[str, Any]:
    """The object that a body holds. Raises MalformedBody, which says what is wrong and where."""
    text = _decoded(body)
    if len(body) > DENSE_BODY:
        _refuse_crowd(body)
    try:
        value = _parsed(text, _PATIENT if len(body) > DENSE_BODY else _SWIFT)
        if "\\ud" in text or "\\uD" in text:
            _refuse_lone_surrogates(value)
    except RecursionError:
        raise MalformedBody("the body is nested too deep") from None
    if not isinstance(value, dict):
        raise MalformedBody(f"the body must be a JSON object; got {kind(value)}")
    return value


def kind(value: object) -> str:
    """What a JSON value is, in words. Shows numbers and nothing of a text."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            shown = repr(value)
            return shown if len(shown) <= 40 else "a number of many digits"
        case str():
            return "an empty string" if not value else "a string"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            return "an object"


def shown_key(key: str) -> str:
    """A caller's key as an error may repeat it: printable and short."""
    plain = key.encode("ascii", "backslashreplace").decode()
    plain = "".join(character if character.isprintable() else "?" for character in plain[: MAX_SHOWN_KEY + 1])
    return plain if len(plain) <= MAX_SHOWN_KEY else plain[:MAX_SHOWN_KEY] + "..."


def _decoded(body: bytes) -> str:
    if not body:
        raise MalformedBody("the body is empty; send a JSON object")
    if body.startswith(b"\xef\xbb\xbf"):
        raise MalformedBody("the body begins with a byte order mark; send UTF-8 without one")
    try:
        return body.decode()
    except UnicodeDecodeError as problem:
        raise MalformedBody(f"the body is not valid UTF-8 (byte {problem.start})") from None


def _parsed(text: str, decoder: json.JSONDecoder) -> object:
    try:
        return decoder.decode(text)
    except _TwiceError as problem:
        key = str(problem)
        raise MalformedBody(f"the key {key!r} stands twice in one object; send it once", param=key) from None
    except _ConstantError as problem:
        param = _named(text, rf"(?<!\w){problem}")
        raise MalformedBody(f"{problem} is not a JSON number", param=param) from None
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno} column {problem.colno}"
        param = place(text, problem.pos) if len(text) <= DENSE_BODY else None
        raise MalformedBody(f"the body is not valid JSON: {problem.msg} at {where}", param=param) from None
    except ValueError:
        param = _named(text, rf"\d{{{sys.get_int_max_str_digits() or 1}}}")
        raise MalformedBody("the body holds a number of too many digits", param=param) from None


def _named(text: str, wanted: str) -> str | None:
    """The field of what no JSON text holds; None in a large one, which would take long to search."""
    found = outside_strings(text, wanted) if len(text) <= DENSE_BODY else None
    return None if found is None else place(text, found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(shown_key(key))
            seen.add(key)
    return found


def _refuse_constant(name: str) -> float:
    raise _ConstantError(name)


def _whole(digits: str) -> int:
    return int(digits)


def _real(digits: str) -> float:
    return float(digits)


_SWIFT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)
_PATIENT = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_int=_whole, parse_float=_real
)
"""For large bodies, which are read in a thread: numbers pass through Python, so the other threads get their
turn."""


def _refuse_crowd(body: bytes) -> None:
    """Counts bytes that may open a node; only if there are many, those that do. The exact count lets other
    threads run."""
    if sum(body.count(mark) for mark in (b"[", b"{", b":")) <= MAX_NODES:
        return
    nodes = 0
    for start, end in _outside_strings(body):
        nodes += sum(body.count(mark, start, end) for mark in (b"[", b"{", b":"))
        if nodes > MAX_NODES:
            raise MalformedBody(f"the body holds more than {MAX_NODES:,} objects, lists and keys")


def _outside_strings(body: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    for string in STRING.finditer(body):
        yield at, string.start()
        at = string.end()
    yield at, len(body)


def _refuse_lone_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        where = next(_broken_texts(value, ""), None)
        raise MalformedBody(
            "a text holds half of a surrogate pair, which is no character", param=where
        ) from None


def _broken_texts(value: object, where: str) -> Iterator[str]:
    """Paths of the texts that UTF-8 cannot hold."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            yield where
    elif isinstance(value, dict):
        for key, inner in value.items():
            path = f"{where}.{shown_key(key)}" if where else shown_key(key)
            yield from _broken_texts(key, path)
            yield from _broken_texts(inner, path)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _broken_texts(inner, f"{where}[{index}]")
