"""How an HTTP process opens knowledge tables."""

import asyncio
import os
from pathlib import Path

from antiphon.assembly.knowledge import open_knowledge
from antiphon.engines.host.control import ChildState, HttpConfig, Status, StatusPipe
from antiphon.processes.ipc import from_line
from antiphon.settings.schema import Settings
from antiphon.settings.server import KnowledgeSettings

PATIENCE = 10.0


async def test_the_first_call_starts_the_process(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    config = HttpConfig(0, writing, str(tmp_path), {})
    settings = Settings(knowledge=KnowledgeSettings(directory=str(tmp_path / "knowledge")))
    with os.fdopen(reading, "rb") as reports, os.fdopen(writing, "wb"):
        async with open_knowledge(settings, config, StatusPipe(writing)) as index:
            assert index is not None
            async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
                asking = group.create_task(index.list_tables("default"))
                line = await asyncio.to_thread(reports.readline)
                asking.cancel()
    assert from_line(line, Status).state is ChildState.ASKS_KNOWLEDGE


async def test_without_a_directory_there_is_no_index() -> None:
    async with open_knowledge(Settings(), HttpConfig(0, 0, "", {}), StatusPipe(0)) as index:
        assert index is None
