"""A process that adds a document, to be killed: python ingesting.py DIRECTORY WORDS REPORTS [DATABASE]. It
prints how many batches are kept, and keeps one more after each of so many reports. With the address of a
database the tables are there."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from antiphon.retrieval.base import DocumentInfo, SizeUnit
from antiphon.retrieval.knowledge import FileUpload, TableRequest
from tests.support.knowledge import ALICE, Knowledge, build_context, open_service
from tests.support.knowledge_database import open_postgres


def make_text(words: int) -> str:
    return " ".join(f"word{number}" for number in range(words))


def make_upload(words: int) -> FileUpload:
    text = make_text(words).encode()
    return FileUpload("long.txt", text, chunk_size=40, chunk_overlap=0, chunk_unit=SizeUnit.CHARACTERS)


@asynccontextmanager
async def open_place(directory: Path, address: str | None) -> AsyncIterator[Knowledge]:
    """A service whose tables are in a directory, or in a database."""
    if address is None:
        async with open_service(directory) as at:
            yield at
        return
    index = open_postgres(address)
    try:
        async with open_service(directory, index=index) as at:
            yield at
    finally:
        await index.aclose()


def pace(at: Knowledge) -> asyncio.Semaphore:
    """Makes each batch wait for a turn before it is kept. Otherwise the document could be ready, and this
    process could end, before it is killed."""
    put_chunks, turns = at.index.put_chunks, asyncio.Semaphore(1)

    async def put_in_turn(*arguments: Any) -> DocumentInfo:
        await turns.acquire()
        return await put_chunks(*arguments)

    at.index.put_chunks = put_in_turn  # type: ignore[assignment, method-assign]
    return turns


async def main(directory: Path, words: int, reports: int, address: str | None) -> None:
    async with open_place(directory, address) as at:
        turns = pace(at)
        if not await at.index.list_tables(ALICE.project):
            await at.service.create_table(TableRequest("t"), build_context())
        document = await at.service.add_document("t", make_upload(words), build_context())
        kept: tuple[int, ...] = ()
        reported = 0
        while document.state == "indexing":
            document = await at.service.get_document(ALICE, "t", document.id)
            if document.batches != kept:
                kept = document.batches
                sys.stdout.write(f"{len(kept)}\n")
                sys.stdout.flush()
                reported += 1
                if reported <= reports:
                    turns.release()
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    place, words, reports, *database = sys.argv[1:]
    asyncio.run(main(Path(place), int(words), int(reports), database[0] if database else None))
