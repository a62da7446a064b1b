"""Running requests by themselves, without a server."""

import asyncio

import pytest

from antiphon.domain.context import RequestProgress
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.http.in_flight import InFlight, InFlightRegistry
from antiphon.http.protocol import Exchange
from tests.support.bare_connection import connect
from tests.support.http_server import request_bytes


def test_a_registry_belongs_to_one_event_loop():
    registry = InFlightRegistry()

    async def handle(exchange: Exchange) -> None:
        with InFlight(exchange, registry, 1.0, LOCAL_ANONYMOUS, RequestProgress()):
            assert len(registry) == 1

    async def serve() -> None:
        connection, _ = connect(handle)
        connection.data_received(request_bytes("/"))
        (task,) = connection.server.tasks
        try:
            await task
        finally:
            connection.connection_lost(None)

    asyncio.run(serve())
    with pytest.raises(RuntimeError, match="its registry's event loop"):
        asyncio.run(serve())
    assert len(registry) == 0
