"""Whatever a body holds, decoding ends in a call or in a refusal that the flat error can carry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.dialect import decode_deploy
from antiphon.dialects.empower.encode import encode_flat_error
from antiphon.dialects.empower.fields import TABLES, EmpowerScope
from antiphon.errors import RequestError
from antiphon.weights.hub.adapters import HubAdapters

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
PATHS = st.text(alphabet="ab/.:@-_\\%* \0\n", max_size=24)
SAID = VALUES | PATHS | st.sampled_from(["HF_HUB", "LOCAL", "ada/pirate"])
USUAL: dict[EmpowerScope, dict[str, Any]] = {
    EmpowerScope.CHAT: {"model": "m", "messages": "hi"},
    EmpowerScope.DEPLOY: {"model_name": "ada/pirate", "model_source": "HF_HUB"},
}


def bodies(place: EmpowerScope) -> st.SearchStrategy[dict[str, Any]]:
    known = st.dictionaries(st.sampled_from(sorted(TABLES[place])) | st.text(max_size=4), SAID, max_size=4)
    return known.map(lambda given: USUAL[place] | given)


def decode_and_check_deploy(body: bytes) -> None:
    """Decodes a deployment, and checks it as the hub's client does before it fetches anything."""
    HubAdapters(["ada/*"], Path("unused"), 1).require_allowed(decode_deploy(body))


DECODERS: dict[EmpowerScope, Callable[[bytes], object]] = {
    EmpowerScope.CHAT: decode_chat,
    EmpowerScope.DEPLOY: decode_and_check_deploy,
}


def refusal(place: EmpowerScope, body: bytes) -> RequestError | None:
    try:
        DECODERS[place](body)
    except RequestError as error:
        return error
    return None


def settle(place: EmpowerScope, body: bytes) -> None:
    if (error := refusal(place, body)) is not None:
        assert error.status in (400, 403) and error.message
        assert json.loads(encode_flat_error(error))["code"] == error.code
        assert len(error.message) < 400 and len(error.param or "") < 200


@pytest.mark.parametrize("place", DECODERS)
@given(data=st.data())
def test_any_object_is_decoded_or_refused(place: EmpowerScope, data: st.DataObject) -> None:
    settle(place, json.dumps(data.draw(bodies(place))).encode())


@pytest.mark.parametrize("place", DECODERS)
@given(body=st.binary(max_size=60) | st.text(alphabet='{}[]":,0e-.\\u \n', max_size=60).map(str.encode))
@example(body=b'{"\\u0000":1}')
@example(body=b'{"model":"m","messages":' + b"[" * 50_000)
@example(body=b'{"model":"m","messages":"\\ud800"}')
@example(body=b'{"model":"m","model":"n"}')
@example(body=b'{"model":"m","messages":"a","temperature":NaN}')
@example(body=b'{"model":"m","messages":"a","temperature":1e999}')
def test_any_bytes_are_refused_with_a_reason(place: EmpowerScope, body: bytes) -> None:
    settle(place, body)
