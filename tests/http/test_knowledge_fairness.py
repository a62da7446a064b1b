"""One project's documents hold up no other project: not at its limit, not while they are read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from antiphon.assembly.knowledge import ServedEmbeddingModels
from antiphon.domain.context import Context
from antiphon.domain.request import EmbeddingRequest, Embeddings
from antiphon.domain.tenancy import ProjectRole
from antiphon.errors import RateLimited
from antiphon_testing import EmbeddingScript
from tests.support.http_server import PROCESS_PATIENCE, at_most
from tests.support.knowledge_server import TABLES, HeldReader, Tenants, form, opened
from tests.support.waiting import await_until


async def upload(
    made: Tenants, key: str, table: str, name: str, text: str = "apples", wait: bool = False
) -> Any:
    parts = (("file", text, name), *((("wait", "true", None),) if wait else ()))
    return await made.server.asked(key, f"{TABLES}/{table}/documents", **form(*parts))


async def create_words_table(made: Tenants, key: str) -> None:
    body = {"name": "w", "embedding_model": None}
    assert (await made.server.asked(key, TABLES, body)).status == 201


async def until_all_wait(made: Tenants, count: int) -> None:
    """Waits until so many documents of the other project say what they wait for."""
    async with at_most(PROCESS_PATIENCE):
        while True:
            listed = (await made.ask(made.other, "GET", "/t/documents")).json()["data"]
            waiting = [each for each in listed if each["state"] == "indexing" and each["error"]]
            if len(waiting) == count:
                assert all("the limit is reached" in each["error"] for each in waiting)
                return
            await asyncio.sleep(0.05)


async def test_a_project_at_its_limit_holds_up_no_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as made:
        member = made.callers[ProjectRole.MEMBER]
        await create_words_table(made, member)
        await create_words_table(made, made.other)
        refused = RateLimited("the limit is reached", retry_after=3600)
        made.knowledge.engine.behaviour = EmbeddingScript(error=refused, error_after=0)
        for number in range(5):
            assert (await upload(made, made.other, "t", f"{number}.txt")).status == 202
        await until_all_wait(made, 5)
        for key in (member, made.other):  # the project's own other documents do not wait either
            added = await upload(made, key, "w", "b.txt", "twenty-three bytes text", wait=True)
            assert (added.status, added.json()["state"]) == (200, "ready"), added.body


async def test_a_limit_loses_no_vectors_that_were_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    calls = 0
    embed = ServedEmbeddingModels.embed

    async def embed_some(
        models: ServedEmbeddingModels, request: EmbeddingRequest, context: Context
    ) -> Embeddings:
        nonlocal calls
        calls += 1
        if calls in (2, 5):
            raise RateLimited("the limit is reached")
        made_vectors = await embed(models, request, context)
        texts.extend(prompt.text or "" for prompt in request.inputs)
        return made_vectors

    async with opened(tmp_path) as made:
        monkeypatch.setattr(ServedEmbeddingModels, "embed", embed_some)
        sizes = (("chunk_size", "16", None), ("chunk_overlap", "0", None), ("chunk_unit", "characters", None))
        text = "\n\n".join(f"number {number:05}" for number in range(500))
        parts = (("file", text, "long.txt"), *sizes, ("wait", "true", None))
        added = await made.server.asked(made.other, f"{TABLES}/t/documents", **form(*parts))
        assert (added.status, added.json()["chunks"]) == (200, 500), added.body
    assert sorted(texts) == text.split("\n\n")  # each once


async def test_files_that_take_long_hold_up_their_project_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as made:
        member = made.callers[ProjectRole.MEMBER]
        await create_words_table(made, member)
        reader = HeldReader()
        reader.patch(monkeypatch)
        for number in range(6):
            assert (await upload(made, made.other, "t", f"held{number}.txt")).status == 202
        async with at_most():
            await await_until(lambda: len(reader.names) >= 2)
        async with at_most(PROCESS_PATIENCE):
            added = await upload(made, member, "w", "b.txt", "twenty-three bytes text", wait=True)
        assert (added.status, added.json()["state"]) == (200, "ready"), added.body
        assert [name[:4] for name in reader.names] == ["held", "held", "b.tx"]
        reader.go.set()
