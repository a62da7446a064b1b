"""Whatever a body holds, Fireworks' endpoints end in a call or in a refusal that the envelope can carry."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.dialects.common.endpoints import GenerationCodec
from antiphon.dialects.fireworks.dialect import Fireworks, FireworksChatCompletions, FireworksCompletions
from antiphon.dialects.fireworks.fields import TABLES, FireworksScope
from antiphon.errors import RequestError

DIALECT = Fireworks()
OPERATIONS = (FireworksCompletions(report_unknown=False), FireworksChatCompletions(report_unknown=False))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
WORDS = st.sampled_from(
    ["text", "json_object", "grammar", "json_schema", "any", "enabled", "truncate", "<image>"]
)
KEYS = st.sampled_from(["type", "schema", "grammar", "function", "name", "budget_tokens", "role", "content"])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
USUAL: dict[FireworksScope, dict[str, Any]] = {
    FireworksScope.TEXT: {"model": "m", "prompt": "a"},
    FireworksScope.CHAT: {"model": "m", "messages": [{"role": "user", "content": "a"}]},
}


def refusal(operation: GenerationCodec, body: bytes) -> RequestError | None:
    try:
        operation.decode(body)
    except RequestError as error:
        return error
    return None


def settle(operation: GenerationCodec, body: bytes) -> None:
    if (error := refusal(operation, body)) is not None:
        assert DIALECT.get_status(error) == 400 and error.message
        told = json.loads(DIALECT.encode_error(error))["error"]
        assert (told["code"], told["param"]) == ("INVALID_ARGUMENT", error.param)
        assert len(error.message) < 400 and len(error.param or "") < 200


@pytest.mark.parametrize("operation", OPERATIONS, ids=["text", "chat"])
@given(data=st.data())
def test_any_object_is_decoded_or_refused(operation: GenerationCodec, data: st.DataObject) -> None:
    place = FireworksScope.TEXT if operation is OPERATIONS[0] else FireworksScope.CHAT
    known = st.sampled_from(sorted(TABLES[place])) | st.text(max_size=4)
    body = USUAL[place] | data.draw(st.dictionaries(known, VALUES, max_size=3))
    settle(operation, json.dumps(body).encode())


@pytest.mark.parametrize("operation", OPERATIONS, ids=["text", "chat"])
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,0e-.\\u \n', max_size=60).map(str.encode))
@example(body=b'{"model":"m","prompt":"a","response_format":{"type":"json_object","schema":"[[[["}}')
@example(
    body=b'{"model":"m","prompt":"a","response_format":{"type":"json_object","schema":"%b"}}' % (b"[" * 9000)
)
@example(body=b'{"model":"m","prompt":"a","images":[[[]]]}')
@example(body=b'{"model":"m","prompt":[[1],"a"],"images":[[]]}')
def test_any_bytes_are_decoded_or_refused(operation: GenerationCodec, body: bytes) -> None:
    settle(operation, body)
