"""Bodies are read strictly, and quickly even when they are hostile."""

import json
import threading
import time

import pytest

from antiphon.bodies.strict_json import MAX_NODES, describe_value, read_object, sanitize_key
from antiphon.errors import MalformedBody

LONG = 1 << 17


def refusal(body: bytes) -> MalformedBody:
    with pytest.raises(MalformedBody) as caught:
        read_object(body)
    return caught.value


def test_an_object_is_read_as_it_is():
    value = {"a": [1, 2.5, True, None, "é\u2603😀"], "b": {"c": "\0"}}
    assert read_object(json.dumps(value).encode()) == value
    assert read_object(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON"),
        (b'{"a":1,}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1} x', "not valid JSON"),
        (b'{"a":"\n"}', "not valid JSON"),
        (b"[]", "an empty list"),
        (b'"text"', "a string"),
        (b"null", "null"),
        (b"3", "3"),
        (b"\xef\xbb\xbf", "empty"),
        (b'{"a":"\xff"}', "UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b'{"a":NaN}', "NaN is not"),
        (b'{"a":-Infinity}', "-Infinity is not"),
        (b'{"a":' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"a":' + b"[" * 100_000, "too deep"),
        (b'{"a":' * 20_000, "too deep"),
        (b'{"a":' * 100_000, "more than"),
        (b'{"a":' * 900 + b'"\\ud800"' + b"}" * 900, ""),
        (b'{"a":' + b"[" * 100_000 + b'"\\ud800"', "too deep"),
    ],
)
def test_what_is_not_one_json_object_is_refused_with_a_reason(body, says):
    assert says in refusal(body).message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a":1,"a":1}', "a"),
        (b'{"a":{"b":[{"c":1,"d":2,"c":3}]}}', "c"),
        (b'{"\\u0061":1,"a":2}', "a"),
        (b'{"a\\n":1,"a\\n":2}', "a?"),
    ],
)
def test_a_key_that_stands_twice_is_refused_by_name(body, param):
    assert refusal(body).param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a":NaN}', "a"),
        (b'{"b":"NaN","c":[0,{"d":-Infinity}]}', "c[1].d"),
        (b'{"b":"\\"Infinity","a":Infinity}', "a"),
        (b'{"a":' + b"1" * 5000 + b"}", "a"),
        (b'{"temperature":hot,"b":1}', "temperature"),
        (b'{"a":{"b":[1,2,]}}', "a.b[2]"),
        (b'{"a":"x\ny"}', "a"),
        (b'{"a":{},"b":"never ends', "b"),
        (b'{"a":1 "b":2}', "a"),
        (b'{"a\x00":1x}', None),
        (b'{"a":1,}', None),
        (b"{'a':1}", None),
        (b'{"a":1} x', None),
        (b'{"a":[' + b"1," * LONG + b"]}", None),
    ],
)
def test_invalid_json_is_refused_with_its_place_if_it_has_one(body, param):
    assert refusal(body).param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a":"\\ud800"}', "a"),
        (b'{"a":[1,{"b":"x\\udfff"}]}', "a[1].b"),
        (b'{"a":{"b\\ud83d":1}}', "a.b\\ud83d"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_place(body, param):
    assert refusal(body).param == param


def test_whole_surrogate_pairs_and_their_spelling_are_text():
    assert read_object(b'{"a":"\\ud83d\\ude00 \\\\ud800"}') == {"a": "😀 \\ud800"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"[]," * LONG + b"1]}",
        b'{"a":[' + b'{"b":1},' * LONG + b"1]}",
        b"{" + b",".join(b'"%x":""' % number for number in range(LONG + 1)) + b"}",
        b'{"a":["' + b"\\\\" * LONG + b'",' + b"[]," * LONG + b"1]}",
    ],
)
def test_a_crowd_of_nodes_is_refused(body):
    assert f"{MAX_NODES:,}" in refusal(body).message


@pytest.mark.parametrize("text", ["[{:" * LONG, '{"b": [1]}' * LONG, '\\"[[[' * LONG])
def test_brackets_inside_a_text_are_no_nodes(text):
    assert read_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_a_text_that_never_ends_is_looked_at_once():
    began = time.process_time()
    assert "Unterminated" in refusal(b'{"a":"' + b'\\"[' * (1 << 20)).message
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"1," * (1 << 20) + b"1]}",
        b'{"a":[' + b"1.5," * (1 << 20) + b"1]}",
        b'{"a":[' + b"[]," * (1 << 20) + b"1]}",
        b'{"a":"' + b"x" * (4 << 20) + b'"}',
    ],
    ids=["integers", "numbers", "lists", "text"],
)
def test_other_threads_run_while_a_large_body_is_read(body):
    """The longest that another thread waits is a small part of a second, of this process's own time: what
    others have of a busy machine does not count.
    """
    longest, stop = 0.0, threading.Event()

    def watch():
        nonlocal longest
        last = time.process_time()
        while not stop.is_set():
            time.sleep(0.001)
            now = time.process_time()
            longest, last = max(longest, now - last), now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        read_object(body)
    except MalformedBody:
        pass
    finally:
        stop.set()
        watcher.join()
    assert longest < 1.0  # stated: a tenth of a second


def test_values_are_named_without_their_text():
    values = ["secret", "", [1], [], {"a": 1}, True, None, 7, 2.5, 10**50]
    assert [describe_value(value) for value in values] == [
        "a string",
        "an empty string",
        "a list",
        "an empty list",
        "an object",
        "true",
        "null",
        "7",
        "2.5",
        "a number of many digits",
    ]


def test_a_key_is_shown_short_and_printable():
    assert sanitize_key("a\r\nb: c") == "a??b: c"
    assert sanitize_key("x" * 100_000) == "x" * 64 + "..."
    assert sanitize_key("é\ud800") == "\\xe9\\ud800"
