"""What the decode thread says of one sequence, as its reader hears it."""

from antiphon.engines.llama.mailboxes import EventMailbox, StreamEnd
from antiphon.errors import EngineError
from tests.support.references import is_freed


async def test_nothing_stays_of_a_stream_that_failed():
    async def read():
        mailbox = EventMailbox[object](0.0)
        mailbox.put(StreamEnd(EngineError("gone")))
        await mailbox.take()

    assert await is_freed(read, EngineError)
