"""What a host answered, one after the other; the error that ends a call is kept by nobody."""

from antiphon.engines.host.pending_calls import PendingCall
from antiphon.errors import EngineDied
from tests.support.references import is_freed


async def test_nothing_stays_of_a_call_that_was_ended():
    async def waited():
        call = PendingCall()
        call.push(EngineDied("gone"))
        await call.next()

    assert await is_freed(waited, EngineDied)
