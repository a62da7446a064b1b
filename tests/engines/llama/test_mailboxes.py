"""What the decode thread says of one sequence, as its reader hears it."""

from antiphon.engines.llama.mailboxes import Ended, Mailbox
from antiphon.errors import EngineError
from tests.support.references import is_freed


async def test_nothing_stays_of_a_stream_that_failed():
    async def read():
        mailbox = Mailbox[object](0.0)
        mailbox.put(Ended(EngineError("gone")))
        await mailbox.take()

    assert await is_freed(read, EngineError)
