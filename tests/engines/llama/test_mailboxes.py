"""What the decode thread says of one sequence, as its reader hears it."""

import asyncio

from antiphon.engines.base import Steps, TokenEvent
from antiphon.engines.llama.mailboxes import FEW_EVENTS, EventMailbox, EventPost, SequenceStream, StreamEnd
from antiphon.errors import EngineError
from tests.engines.llama.simulation import sequence
from tests.support.references import is_freed


async def test_nothing_stays_of_a_stream_that_failed():
    async def read():
        mailbox = EventMailbox[object](0.0)
        mailbox.put(StreamEnd(EngineError("gone")))
        await mailbox.take()

    assert await is_freed(read, EngineError)


class Sink:
    """Notes the events that it was given, and how many of them it was told to send."""

    def __init__(self) -> None:
        self.taken: list[TokenEvent] = []
        self.sent = 0

    def put(self, event: TokenEvent) -> None:
        self.taken.append(event)

    def flush(self) -> None:
        self.sent = len(self.taken)


async def test_few_events_go_to_their_sinks_at_once_and_never_overtake_others():
    """This test holds the event loop, which runs only when it is awaited."""
    post, sinks = EventPost(asyncio.get_running_loop()).post, [Sink() for _ in range(FEW_EVENTS + 1)]
    streams = [SequenceStream(sequence(), 0.0, sink) for sink in sinks]
    post([(stream, Steps((1,))) for stream in streams[:FEW_EVENTS]])
    assert [sink.sent for sink in sinks] == [1] * FEW_EVENTS + [0]
    post([(stream, Steps((2,))) for stream in streams])
    post([(streams[0], Steps((3,)))])
    assert [sink.sent for sink in sinks] == [1] * FEW_EVENTS + [0]
    await asyncio.sleep(0)
    assert [sink.sent for sink in sinks] == [3] + [2] * (FEW_EVENTS - 1) + [1]
    assert sinks[0].taken == [Steps((1,)), Steps((2,)), Steps((3,))]
    post([(streams[0], Steps((4,)))])
    assert sinks[0].sent == 4


async def test_an_end_wakes_its_reader_after_the_events_before_it_were_sent():
    post, sink = EventPost(asyncio.get_running_loop()).post, Sink()
    pushed, pulled = SequenceStream(sequence(), 0.0, sink), SequenceStream(sequence(), 0.0)
    post([(pulled, Steps((1,))), (pushed, Steps((2,))), (pushed, StreamEnd())])
    assert sink.sent == 0 and pushed.end_event is None
    assert await pushed.take() is None
    assert sink.sent == 1
    assert await pulled.take() == Steps((1,))
