"""Waits until an engine runs so many sequences and none is queued."""

import asyncio

from antiphon.domain.models import Load
from antiphon_testing import ScriptedTokenEngine

PATIENCE = 20.0
"""Seconds to wait for what takes milliseconds."""


async def load_when(engine: ScriptedTokenEngine, running: int) -> Load:
    async with asyncio.timeout(PATIENCE):
        while (load := (await engine.info()).load).running != running or load.queued:
            await asyncio.sleep(0.005)
    return load
