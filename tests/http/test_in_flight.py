"""Running requests by themselves, without a server."""

import asyncio

import pytest

from antiphon.domain.context import RequestProgress
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.http.connection import Connection, Flow
from antiphon.http.in_flight import InFlight, InFlightRegistry


class OpenFlow(Flow):
    """A connection whose client reads all the time."""

    write_paused = False

    def resume_reading(self) -> None:
        pass

    async def drain(self) -> None:
        pass


def test_a_registry_belongs_to_one_event_loop():
    registry = InFlightRegistry()

    async def serve() -> None:
        connection = Connection(lambda: None, 0.0, OpenFlow())
        with InFlight(connection, registry, 1.0, LOCAL_ANONYMOUS, RequestProgress()):
            assert len(registry) == 1

    asyncio.run(serve())
    with pytest.raises(RuntimeError, match="its registry's event loop"):
        asyncio.run(serve())
    assert len(registry) == 0
