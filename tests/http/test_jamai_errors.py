"""Every error of JamAI Base's endpoints is valid JSON, whatever the body, the query and the headers hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from antiphon_testing import ScriptedAnswer
from tests.support.http_server import request_bytes, serving, targets_of, thin_out
from tests.support.knowledge_server import opened

CANARY = "canary-5d1c"
BODIES = {
    "NaN": b'{"model": NaN, "id": "canary-5d1c"}',
    "infinity": b'{"temperature": -Infinity, "id": "canary-5d1c"}',
    "lone surrogate": b'{"model": "canary-5d1c \\ud800"}',
    "surrogate as key": b'{"id": "canary-5d1c", "\\udfff": 1}',
    "invalid UTF-8": b'{"model": "canary-5d1c \xff\xfe"}',
    "control characters": b'{"model": "canary-5d1c \x00\x01\n"}',
    "no JSON": b'canary-5d1c", "error": "forged',
    "two values": b'{"id": "canary-5d1c"} {}',
    "repeated key": b'{"id": "canary-5d1c", "id": 1}',
    "deep": b'{"id": "canary-5d1c", "a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "huge number": b'{"id": "canary-5d1c", "a": ' + b"9" * 5_000 + b"}",
    "large": b'{"id": "canary-5d1c ' + b"a" * 70_000 + b'"}',
    "list": b'["canary-5d1c"]',
    "two byte order marks": b'\xef\xbb\xbf\xef\xbb\xbf{"id": "canary-5d1c"}',
}
"""Bodies that are no small JSON object."""

QUERIES = ("", "?canary=1", "?offset=x&limit=%00&table_id=%ff", "?pat_id=%ed%a0%80&project_id=%22%0a")


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def require_error(body: bytes, case: object) -> Any:
    """Returns the error, which must be JSON by its letter."""
    error = json.loads(body.decode(), parse_constant=refuse_constant)
    assert error["object"] == "error", case
    return error


async def test_no_error_repeats_a_body_that_is_no_json(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        server, quoted = made.server, 0
        targets = [
            (method, re.sub(r"{\w+}", "x", path))
            for method, path in thin_out(targets_of(server.edge), 40)
            if path.startswith("/jamai/") and method in ("POST", "PATCH", "DELETE", "GET")
        ]
        assert len(targets) > 30
        for number, (method, path) in enumerate(targets):
            for at, (name, body) in enumerate([*BODIES.items()][number % 3 :: 3]):
                headers = {
                    "authorization": f"Bearer {made.other}",
                    "content-length": str(len(body)),
                    "content-type": "application/json",
                    "x-request-id": 'a"b\\c\xff',
                }
                query = QUERIES[(number + at) % len(QUERIES)]
                raw = request_bytes(path + query, body, method=method, headers=headers)
                reply = await server.raw(raw)
                case = (method, path + query, name, reply.body[:300])
                if reply.status < 400:
                    assert method == "GET", case  # such a body is refused wherever it is read
                    continue
                require_error(reply.body, case)
                assert CANARY.encode() not in reply.body, case
                quoted += b'"body"' in reply.body
        assert quoted > 30  # validation errors, which repeat only bodies that are JSON


@pytest.mark.parametrize("number", ["1e999", "123456789012345678901234567890"])
async def test_a_body_on_several_lines_stays_one_line_of_an_error(number: str) -> None:
    body = b'{\n  "messages": [{"role": "user",\r\n "content": "Hi"}],\n  "seed": %b, "temperature": 7}'
    async with serving(ScriptedAnswer()) as server:
        reply = await server.ask("/jamai/api/v1/chat/completions?x=1", body % number.encode())
    error = require_error(reply.body, reply.body)
    assert reply.status == 422 and b"\n" not in reply.body
    assert error["body"] is None or error["body"]["messages"] == [{"role": "user", "content": "Hi"}]
