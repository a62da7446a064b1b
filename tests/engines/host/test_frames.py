"""Frames: what is written is read, and what breaks the protocol is seen."""

import time
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.media import MediumShape, build_picture
from antiphon.domain.messages import MediaKind
from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    MEDIUM_CELL,
    Counts,
    MediumLayout,
    MediumSpan,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenRequest,
)
from antiphon.engines.host.frames import (
    TO_CLIENT,
    TO_HOST,
    CancelCall,
    ErrorReply,
    FinishedReply,
    GenerateCall,
    HeldReply,
    HoldCall,
    LayOutCall,
    LayoutsReply,
    MediumPart,
    StartedReply,
    StepsReply,
    ToClient,
    ToHost,
    TokenizePiecesCall,
)
from antiphon.errors import ErrorReport
from antiphon.processes.ipc import (
    HEADER_BYTES,
    MAX_FRAME,
    MAX_MESSAGE,
    PROTOCOL,
    Frame,
    FrameError,
    FrameReader,
    FrameWriter,
    Hello,
)

TO_GATEWAY_EXAMPLES: list[Frame] = [
    Hello(PROTOCOL, "1.2.3"),
    StartedReply(7, SequenceStarted(3, 2, 0.5)),
    StepsReply(7, Steps((5,))),
    StepsReply(8, Steps((5, 6), (-0.5, -1.0), (((5, -0.5), (9, -2.0)), ()))),
    FinishedReply(7, SequenceFinished(StopCause.LENGTH, Counts(3, 2, 1))),
    HeldReply(7, 6),
    LayoutsReply(7, (MediumLayout((5, MEDIUM_CELL), (MediumSpan(1, 1, MediaKind.IMAGE, "d", 2),)),)),
    ErrorReply(8, ErrorReport("engine_died", "gone", "prompt", 1.5)),
]
TO_HOST_EXAMPLES: list[Frame] = [
    Hello(PROTOCOL, "1.2.3"),
    GenerateCall(1, TokenRequest(PromptTokens((1, 2)), 5, Sampling(seed=2**63 - 1), (2,), 3, "group", 1)),
    CancelCall(1),
    TokenizePiecesCall(3, (TextPiece("a 😀\x00", True),), False),
    HoldCall(4, build_picture(2, 1, bytes(range(250, 256))), 6, "salt"),
    MediumPart(4, b"\0\1"),
    LayOutCall(5, (MediumShape(MediaKind.AUDIO, samples=2**33),)),
]

PER_EVENT = 10e-6
"""Seconds that one event of a token may cost each side; the test allows ten times as much."""


def frames(*groups: list[Frame]) -> list[bytes]:
    writer = FrameWriter()
    return [writer.encode_frame([writer.encode_message(message) for message in group]) for group in groups]


def gateway() -> FrameReader[ToClient]:
    return FrameReader(TO_CLIENT)


def host() -> FrameReader[ToHost]:
    return FrameReader(TO_HOST)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def test_messages_of_both_directions_come_out_as_they_went_in() -> None:
    assert list(gateway().feed(b"".join(frames(TO_GATEWAY_EXAMPLES)))) == TO_GATEWAY_EXAMPLES
    assert list(host().feed(b"".join(frames(TO_HOST_EXAMPLES)))) == TO_HOST_EXAMPLES


@given(st.lists(st.integers(0, 10_000), max_size=30))
def test_bytes_may_come_in_any_pieces(cuts: list[int]) -> None:
    data = b"".join(frames(*([message] for message in TO_GATEWAY_EXAMPLES)))
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    reader = gateway()
    heard = [message for start, end in pairwise(places) for message in reader.feed(data[start:end])]
    assert heard == TO_GATEWAY_EXAMPLES


@pytest.mark.parametrize(
    ("order", "sentence"),
    [
        ([1], "received frame 1 instead of frame 0"),
        ([0, 2], "received frame 2 instead of frame 1"),
        ([0, 0], "received frame 0"),
    ],
)
def test_a_lost_or_doubled_frame_is_an_error(order: list[int], sentence: str) -> None:
    messages: list[list[Frame]] = [[CancelCall(number)] for number in range(3)]
    sent = frames(*messages)
    with pytest.raises(FrameError, match=sentence):
        list(host().feed(b"".join(sent[index] for index in order)))


def test_what_came_before_a_broken_frame_is_heard() -> None:
    first, _, third = frames([CancelCall(1)], [CancelCall(2)], [CancelCall(3)])
    heard = host().feed(first + third)
    assert next(heard) == CancelCall(1)
    with pytest.raises(FrameError):
        next(heard)


def test_a_frame_over_the_limit_is_refused_before_it_is_there() -> None:
    with pytest.raises(FrameError, match="over the limit"):
        list(host().feed((MAX_FRAME + 1).to_bytes(HEADER_BYTES, "big")))


def test_a_message_too_large_for_a_frame_is_refused_alone() -> None:
    writer = FrameWriter()
    with pytest.raises(FrameError, match="over the limit"):
        writer.encode_message(TokenizePiecesCall(1, (TextPiece("x" * MAX_MESSAGE),), False))
    assert list(host().feed(writer.encode_frame([writer.encode_message(CancelCall(1))]))) == [CancelCall(1)]


def test_the_largest_message_fits_a_frame() -> None:
    text = "x" * (MAX_MESSAGE - 100)
    assert list(host().feed(frames([TokenizePiecesCall(1, (TextPiece(text),), False)])[0])) == [
        TokenizePiecesCall(1, (TextPiece(text),), False)
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x91" * 5000,
        msgspec.msgpack.encode({"sequence": 0}),
        msgspec.msgpack.encode([0]),
        msgspec.msgpack.encode([0, [[99, 1]]]),
        msgspec.msgpack.encode([0, [[2, "one"]]]),
        msgspec.msgpack.encode([0, [[4, 1, [{"text": b"\xff"}], False]]]),
        msgspec.msgpack.encode([0, [[4, 1, [{"text": 5}], False]]]),
    ],
)
def test_anything_else_is_an_error_that_says_it_cannot_be_read(body: bytes) -> None:
    with pytest.raises(FrameError, match="cannot be read"):
        list(host().feed(framed(body)))


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader_in_another_way(body: bytes) -> None:
    try:
        list(host().feed(framed(body)))
    except FrameError:
        return


def test_an_event_costs_microseconds() -> None:
    count, batch = 300, 16
    messages: list[Frame] = [StepsReply(number, Steps((number,), (-0.5,))) for number in range(batch)]
    writer, reader = FrameWriter(), gateway()
    begun = time.thread_time()
    sent = [
        writer.encode_frame([writer.encode_message(message) for message in messages]) for _ in range(count)
    ]
    encoded = time.thread_time()
    for frame in sent:
        list(reader.feed(frame))
    decoded = time.thread_time()
    assert (encoded - begun) / count / batch < 10 * PER_EVENT
    assert (decoded - encoded) / count / batch < 10 * PER_EVENT
