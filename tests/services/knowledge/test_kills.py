"""Kills a process while it reads a document: what was kept is there, nothing is there twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.retrieval.base import DocumentState
from tests.services.knowledge.ingesting import make_text, open_place
from tests.support.docs import ROOT
from tests.support.knowledge import list_texts, wait_for
from tests.support.knowledge_database import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.waiting import await_until


def kill_after(directory: Path, words: int, reports: int, address: str | None) -> int:
    """Runs the process until it has reported so often. Returns how many batches it had kept by then."""
    command = [sys.executable, "-m", "tests.services.knowledge.ingesting", str(directory), str(words)]
    command += [str(reports), address] if address else [str(reports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        seen = [int(line) for _, line in zip(range(reports), process.stdout, strict=False)]
        process.kill()
    assert process.returncode == -9
    return seen[-1]


SOAK = {
    "3 kills": (4_000, (1, 3, 2)),
    "20 kills": (20_000, tuple(1 + number % 3 for number in range(20))),
}


@pytest.mark.parametrize(
    ("place", "words", "kills"),
    [
        pytest.param("files", 2_000, (1, 2), id="files-2 kills"),
        pytest.param("database", 2_000, (2,), id="database-1 kill"),
        *(
            pytest.param(place, *counts, id=f"{place}-{name}", marks=pytest.mark.soak)
            for place in ("files", "database")
            for name, counts in SOAK.items()
        ),
    ],
)
async def test_a_killed_ingest_goes_on(
    tmp_path: Path, words: int, kills: tuple[int, ...], place: str, request: pytest.FixtureRequest
) -> None:
    address = request.getfixturevalue("knowledge_database") if place == "database" else None
    at_least = 0
    for reports in kills:
        seen = kill_after(tmp_path, words, reports, address)
        assert seen >= at_least  # nothing that was kept is lost
        at_least = seen
    async with open_place(tmp_path, address) as at:
        document = await wait_for(at, DocumentState.READY)
        texts = await list_texts(at)
        assert " ".join(texts) == make_text(words)
        assert (document.chunks, len(set(texts))) == (len(texts), len(texts))
        await await_until(lambda: at.list_uploads() == [])
