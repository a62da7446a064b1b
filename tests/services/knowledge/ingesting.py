"""A process that adds a document, to be killed: python ingesting.py DIRECTORY WORDS. It prints how many
batches are kept."""

import asyncio
import sys
from pathlib import Path

from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.knowledge import FileUpload, TableRequest
from tests.support.knowledge import ALICE, act, open_service


def make_text(words: int) -> str:
    return " ".join(f"word{number}" for number in range(words))


def make_upload(words: int) -> FileUpload:
    text = make_text(words).encode()
    return FileUpload("long.txt", text, chunk_size=40, chunk_overlap=0, chunk_unit=SizeUnit.CHARACTERS)


async def main(directory: Path, words: int) -> None:
    async with open_service(directory) as at:
        if not await at.service.list_tables(ALICE):
            await at.service.create_table(TableRequest("t"), act())
        document = await at.service.add_document("t", make_upload(words), act())
        kept: tuple[int, ...] = ()
        while document.state == "indexing":
            document = await at.service.get_document(ALICE, "t", document.id)
            if document.batches != kept:
                kept = document.batches
                sys.stdout.write(f"{len(kept)}\n")
                sys.stdout.flush()
            await asyncio.sleep(0.001)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
