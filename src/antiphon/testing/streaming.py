"""Prepares a request and streams it, as the pipeline does, for tests and kits that have no pipeline."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.request import GenerationRequest
from antiphon.engines.base import Engine


@asynccontextmanager
async def open_stream(
    engine: Engine, request: GenerationRequest, context: Context
) -> AsyncGenerator[AsyncIterator[Event], None]:
    """The events of a request; leaving ends the work."""
    prepared = await engine.prepare(request, context)
    async with prepared.stream(context) as events:
        yield events
