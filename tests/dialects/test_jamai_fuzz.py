"""Whatever a body holds, decoding ends in a call or in a refusal that JamAI's envelope can carry."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.dialects.http_types import Request
from antiphon.dialects.jamai.decode import decode_chat, decode_embeddings, decode_rerank
from antiphon.dialects.jamai.errors import encode_jamai_error, get_error_name
from antiphon.dialects.jamai.fields import TABLES, JamaiScope
from antiphon.errors import RequestError

WORDS = ("role", "content", "name", "type", "text", "function", "parameters", "properties", "enum", "k")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["user", "system", "assistant", "text", "function", "", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WORDS) | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=10,
)
DECODERS: dict[JamaiScope, Callable[[bytes], object]] = {
    JamaiScope.CHAT: decode_chat,
    JamaiScope.EMBEDDINGS: decode_embeddings,
    JamaiScope.RERANK: decode_rerank,
}
USUAL: dict[JamaiScope, dict[str, Any]] = {
    JamaiScope.CHAT: {"messages": [{"role": "user", "content": "Hi"}]},
    JamaiScope.EMBEDDINGS: {"input": "Hi"},
    JamaiScope.RERANK: {"query": "Hi", "documents": ["a"]},
}


def bodies(scope: JamaiScope) -> st.SearchStrategy[dict[str, Any]]:
    known = st.dictionaries(st.sampled_from(sorted(TABLES[scope])) | st.text(max_size=4), VALUES, max_size=4)
    return known.map(lambda given: USUAL[scope] | given)


def refusal(scope: JamaiScope, body: bytes) -> RequestError | None:
    try:
        DECODERS[scope](body)
    except RequestError as error:
        return error
    return None


def settle(scope: JamaiScope, body: bytes) -> None:
    if (error := refusal(scope, body)) is not None:
        request = Request("r", "POST", scope, {b"authorization": [b"Bearer k"]}, body=body)
        told = json.loads(encode_jamai_error(error, request))
        assert (told["object"], told["error"]) == ("error", "validation_error")
        assert get_error_name(error).status == 422 and len(told["message"]) < 500
        assert told["detail"][0]["loc"][0] == "body"
        assert told["request_headers"] == {"authorization": "***"}


@pytest.mark.parametrize("scope", DECODERS)
@given(data=st.data())
def test_any_object_is_decoded_or_refused(scope: JamaiScope, data: st.DataObject) -> None:
    settle(scope, json.dumps(data.draw(bodies(scope))).encode())


@pytest.mark.parametrize("scope", DECODERS)
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,0e-.\\u \n', max_size=60).map(str.encode))
@example(body=b'{"messages":' + b"[" * 50_000)
@example(body=b'{"messages":"\\ud800"}')
@example(body=b'{"messages":[],"messages":[]}')
@example(body=b'{"temperature":NaN}')
@example(body=b'{"temperature":1e999}')
@example(body=b'{"rag_params":{"k":1e999}}')
@example(body=b'{"query":{"role":Infinity},"documents":["a"]}')
def test_any_bytes_are_refused_with_a_reason(scope: JamaiScope, body: bytes) -> None:
    settle(scope, body)
