"""Servers for tests of the edge."""

from collections.abc import AsyncIterator

import pytest

from tests.support.http_server import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server without a key over an engine that says `Hello world!`."""
    async with serving() as running:
        yield running
