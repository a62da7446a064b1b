"""Knowledge tables that are made before their server starts."""

from pathlib import Path

from antiphon.domain.context import SystemClock
from antiphon.domain.tenancy import DEFAULT_PROJECT
from antiphon.retrieval.base import ChunkInput, IndexLimits, TableSettings
from antiphon.retrieval.sqlite.index import SqliteIndex

SEA = ("The red boat sleeps in the harbour.", "An island has a white tower.")


async def fill_table(directory: Path, project: str = DEFAULT_PROJECT) -> None:
    """Makes the table `sea` with two chunks. `directory`: that of all knowledge tables."""
    index = SqliteIndex(directory, SystemClock(), IndexLimits())
    await index.create_table(project, TableSettings("sea"))
    chunks = [ChunkInput(text, "Sea", position + 1, "sea.md") for position, text in enumerate(SEA)]
    await index.add_chunks(project, "sea", chunks)
    await index.aclose()
