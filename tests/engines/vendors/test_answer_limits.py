"""The limits of a vendor's answer, and the work that its parts cause."""

import asyncio
import json
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from antiphon.domain.events import Event, ToolCallStarted
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, EmbeddingRequest, GenerationRequest, Output, RawPrompt
from antiphon.engines.vendors.anthropic.decode import MessagesDecoder
from antiphon.engines.vendors.base import (
    BYTES_PER_VECTOR,
    MAX_FREE_VALUES,
    StreamDecoder,
    StreamFailure,
    read_free_json,
    require_bounded,
)
from antiphon.engines.vendors.engine import INLINE_BYTES, run_decode
from antiphon.engines.vendors.gemini.dialect import GeminiUpstream
from antiphon.engines.vendors.openai.decode import AnswerReader, CallReader
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream

REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Count."),)),))

SCORED_REQUEST = GenerationRequest("m", REQUEST.prompts, output=Output(logprobs=1))

OBJECT = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab\\"{}[]é'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"\\{', max_size=3), inner),
    max_leaves=8,
)


def measure(decoder: StreamDecoder, build: Callable[[int], bytes], count: int) -> float:
    """Returns the CPU seconds of as many events."""
    events = [build(number) for number in range(count)]
    began_at = time.process_time()
    for data in events:
        decoder.feed("", data)
    return time.process_time() - began_at


def build_call_part(number: int) -> bytes:
    """A part of a call that repeats the call's name, with another id."""
    function = {"name": "f", "arguments": "x" * 100 if number else '{"a": "'}
    calls = [{"index": 0, "id": f"c{number}", "function": function}]
    return json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}).encode()


def build_score(number: int) -> bytes:
    """Log-probabilities without text."""
    scores = [{"token": "a", "logprob": -1.0}] * 20
    return json.dumps({"choices": [{"index": 0, "delta": {}, "logprobs": {"content": scores}}]}).encode()


def build_signature(number: int) -> bytes:
    """A part of the signature of a block of reasoning."""
    delta = {"type": "signature_delta", "signature": "x" * 1000}
    return json.dumps({"type": "content_block_delta", "index": 0, "delta": delta}).encode()


def start_signature() -> StreamDecoder:
    """A decoder within a block of reasoning."""
    decoder = MessagesDecoder(shows_reasoning=True)
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"type": "message", "content": [], "usage": usage}
    decoder.feed("message_start", json.dumps({"message": message}).encode())
    block = {"index": 0, "content_block": {"type": "thinking"}}
    decoder.feed("content_block_start", json.dumps(block).encode())
    return decoder


@pytest.mark.parametrize(
    ("start", "build"),
    [
        (lambda: AnswerReader(REQUEST), build_call_part),
        (lambda: AnswerReader(SCORED_REQUEST), build_score),
        (start_signature, build_signature),
    ],
    ids=["calls", "scores", "signature"],
)
def test_the_work_of_a_part_does_not_grow_with_the_parts_before_it(
    start: Callable[[], StreamDecoder], build: Callable[[int], bytes]
):
    measure(start(), build, 100)
    assert measure(start(), build, 16_000) < 30 * max(measure(start(), build, 2_000), 0.01)


@given(OBJECT.map(lambda value: json.dumps({"a": value}, ensure_ascii=False)), st.integers(1, 5))
def test_arguments_are_whole_exactly_at_their_end(text: str, size: int):
    reader = CallReader(0, "c", "f")
    for begin in range(0, len(text), size):
        assert not reader.has_whole_arguments()
        reader.add_arguments(text[begin : begin + size])
    assert reader.has_whole_arguments()


def test_a_call_with_the_index_of_a_whole_one_is_another_call():
    decoder = AnswerReader(REQUEST)
    events: list[Event] = []
    for id_, arguments in (("c1", '{"a": "}'), ("c1", '{"}'), ("c2", "{}")):
        calls = [{"index": 0, "id": id_, "function": {"name": "f", "arguments": arguments}}]
        events += decoder.feed(
            "", json.dumps({"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}).encode()
        )
    assert [event.id for event in events if isinstance(event, ToolCallStarted)] == ["c1", "c2"]


async def test_large_json_is_decoded_in_a_thread():
    here = threading.get_ident()
    assert await run_decode(threading.get_ident, b"x" * INLINE_BYTES) == here
    assert await run_decode(threading.get_ident, b"x" * (INLINE_BYTES + 1)) != here
    with pytest.raises(ValueError, match="too many parts"):
        await run_decode(threading.get_ident, b"{}" * INLINE_BYTES, 1000, 1000)


def test_objects_and_elements_are_counted_apart():
    data = b'[{"a": [1, 2]}, {}]'
    require_bounded(data, 2, 4)
    for limits in ((1, 4), (2, 3)):
        with pytest.raises(ValueError, match="too many parts"):
            require_bounded(data, *limits)


def test_a_part_of_unknown_fields_has_a_limit():
    names = ",".join(f'"{number}":0' for number in range(MAX_FREE_VALUES + 2))
    with pytest.raises(ValueError, match="too many parts"):
        read_free_json(Raw(f"{{{names}}}".encode()), dict[str, int])


@pytest.mark.parametrize("upstream", [OpenAIUpstream(), GeminiUpstream()], ids=["openai", "gemini"])
def test_a_vector_has_a_limit(upstream: OpenAIUpstream | GeminiUpstream):
    numbers = ",".join(["0.5"] * (BYTES_PER_VECTOR // 4))
    vector = f'[{{"index": 0, "embedding": [{numbers}], "values": [{numbers}]}}]'
    request = EmbeddingRequest("m", (RawPrompt("a"),))
    body = f'{{"data": {vector}, "embeddings": {vector}}}'
    with pytest.raises(ValueError, match="too long"):
        upstream.decode_embedding(request, body.encode())


@pytest.mark.parametrize("error", ['{"message": "bad"}', '"bad"', "{}", '""'])
def test_an_error_of_any_shape_is_no_answer(error: str):
    with pytest.raises(StreamFailure):
        AnswerReader(REQUEST).feed("", b'{"choices": [], "error": %b}' % error.encode())


async def test_other_tasks_run_while_a_large_answer_is_decoded():
    """A sleep in the thread ends only when the event loop has gone on."""
    goes_on = threading.Event()
    asyncio.get_running_loop().call_later(0.01, goes_on.set)
    assert await run_decode(lambda: goes_on.wait(50), b"x" * (INLINE_BYTES + 1))
