"""Whatever a body holds, decoding ends in a call or in a refusal that the envelope can carry."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.dialects.common.encode import encode_error
from antiphon.dialects.common.fields import TABLES, FieldScope
from antiphon.dialects.openai import dialect, tokens
from antiphon.dialects.openai.dialect import decode_chat, decode_text
from antiphon.errors import RequestError

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "name", "tool_calls", "type", "text"]),
        VALUES
        | st.sampled_from(["user", "system", "tool", [{"type": "text", "text": "a"}], [{"type": "file"}]]),
    ),
    max_size=3,
)
DECODERS: dict[FieldScope, Callable[[bytes], object]] = {
    FieldScope.CHAT: decode_chat,
    FieldScope.TEXT: decode_text,
    FieldScope.TOKENIZE: tokens.decode_tokenize,
    FieldScope.DETOKENIZE: tokens.decode_detokenize,
    FieldScope.LOAD: dialect.decode_load_request,
    FieldScope.UNLOAD: dialect.decode_unload_request,
}


def bodies(place: FieldScope) -> st.SearchStrategy[dict[str, Any]]:
    known = st.dictionaries(st.sampled_from(sorted(TABLES[place])) | st.text(max_size=4), VALUES, max_size=4)
    base = {"model": "m", "messages": [{"role": "user", "content": "a"}], "prompt": "a", "tokens": [1]}
    base |= {"lora_name": "a", "lora_path": "a"}
    usual = {name: value for name, value in base.items() if name in TABLES[place]}
    return st.tuples(known, st.booleans(), MESSAGES).map(
        lambda parts: (
            (usual | parts[0] if parts[1] else parts[0]) | ({"messages": parts[2]} if parts[2] else {})
        )
    )


def refusal(place: FieldScope, body: bytes) -> RequestError | None:
    try:
        DECODERS[place](body)
    except RequestError as error:
        return error
    return None


def settle(place: FieldScope, body: bytes) -> None:
    if (error := refusal(place, body)) is not None:
        assert error.status == 400 and error.message
        assert json.loads(encode_error(error))["error"]["code"] == error.code
        assert len(error.message) < 400 and len(error.param or "") < 200


@pytest.mark.parametrize("place", DECODERS)
@given(data=st.data())
def test_any_object_is_decoded_or_refused(place: FieldScope, data: st.DataObject) -> None:
    settle(place, json.dumps(data.draw(bodies(place))).encode())


@pytest.mark.parametrize("place", DECODERS)
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,0e-.\\u \n', max_size=60).map(str.encode))
@example(body=b'{"\\u0000":1}')
@example(body=b'{"messages":{"role":"user"}}')
@example(body=b'{"model":"m","messages":[{"role":["user"],"content":"a"}]}')
@example(body=b'{"model":"m","messages":[{"role":"user","content":[{"type":["text"],"text":"a"}]}]}')
@example(body=b'{"model":"m","messages":[{"role":"user","content":[[]]}]}')
def test_any_bytes_are_decoded_or_refused(place: FieldScope, body: bytes) -> None:
    settle(place, body)
