"""Any sequence of steps of documents leaves what a plain model of the rules says."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain.context import SystemClock
from antiphon.errors import Conflict, NotFound
from antiphon.retrieval.base import DocumentState, IndexLimits, SearchQuery
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.retrieval.knowledge import DIMENSIONS, PROJECT, VECTORS, make_chunks, make_document, make_vector

TABLE = VECTORS.name
STEP = st.one_of(
    st.tuples(st.just("begin"), st.sampled_from("ab"), st.integers(0, 2)),
    st.tuples(
        st.sampled_from(["put", "put", "finish", "fail", "delete"]), st.integers(0, 5), st.integers(0, 2)
    ),
)


@dataclass
class Kept:
    """A document as the rules say it is."""

    name: str
    digest: str
    number: int
    """Later ones began later."""
    state: DocumentState = DocumentState.INDEXING
    batches: dict[int, list[str]] = field(default_factory=dict)

    @property
    def texts(self) -> list[str]:
        return [text for texts in self.batches.values() for text in texts]


class Model:
    """The rules of `KnowledgeIndex`, in dictionaries."""

    def __init__(self) -> None:
        self.documents: dict[str, Kept] = {}
        self.order: list[str] = []
        """Ids in the order in which they were first seen."""
        self.begun = 0

    def begin(self, id_: str, name: str, digest: str) -> None:
        kept = self.documents.get(id_)
        if kept is None or kept.state is DocumentState.FAILED:
            self.begun += 1
            self.documents[id_] = Kept(name, digest, self.begun)
        if id_ not in self.order:
            self.order.append(id_)

    def finish(self, id_: str) -> None:
        kept = self.documents[id_]
        if kept.state is DocumentState.INDEXING:
            older = [
                other
                for other, each in self.documents.items()
                if each.name == kept.name and each.number < kept.number
            ]
            for other in older:
                del self.documents[other]
            kept.state = DocumentState.READY

    @property
    def searchable(self) -> list[str]:
        ready = [kept for kept in self.documents.values() if kept.state is DocumentState.READY]
        return sorted(text for kept in ready for text in kept.texts)


async def run_step(index: SqliteIndex, model: Model, step: tuple[str, str | int, int]) -> None:
    """Does one step in both, and expects the same outcome."""
    kind, which, value = step
    if kind == "begin":
        document = make_document(str(which), str(value))
        begun = await index.begin_document(PROJECT, TABLE, document)
        model.begin(begun.id, document.name, document.digest)
        return
    if not model.order:
        return
    id_ = model.order[int(which) % len(model.order)]
    kept = model.documents.get(id_)
    texts = [f"apple {id_} {value} {place}" for place in range(3)]
    try:
        match kind:
            case "put":
                await index.put_chunks(PROJECT, TABLE, id_, value, make_chunks(texts, DIMENSIONS, value))
            case "finish":
                await index.finish_document(PROJECT, TABLE, id_)
            case "fail":
                await index.fail_document(PROJECT, TABLE, id_, "no reason")
            case _:
                await index.delete_document(PROJECT, TABLE, id_)
    except NotFound:
        assert kept is None
    except Conflict:
        assert kept is not None and kept.state is DocumentState.FAILED and kind in ("put", "finish")
    else:
        assert kept is not None
        change_model(model, id_, kind, value, texts)


def change_model(model: Model, id_: str, kind: str, value: int, texts: list[str]) -> None:
    kept = model.documents[id_]
    if kind == "delete":
        del model.documents[id_]
    elif kind == "finish":
        model.finish(id_)
    elif kept.state is DocumentState.INDEXING and kind == "put":
        kept.batches.setdefault(value, texts)
    elif kept.state is DocumentState.INDEXING:
        kept.state, kept.batches = DocumentState.FAILED, {}


async def compare(index: SqliteIndex, model: Model) -> None:
    """Expects that every way to read shows what the model has."""
    page = await index.list_documents(PROJECT, TABLE)
    assert {document.id: (document.state, document.chunks) for document in page.items} == {
        id_: (kept.state, len(kept.texts)) for id_, kept in model.documents.items()
    }
    assert sorted(chunk.text for chunk in (await index.list_chunks(PROJECT, TABLE)).items) == model.searchable
    for query in (SearchQuery("apple", k=100, depth=100), SearchQuery(None, make_vector(0), 100, 100)):
        hits = await index.search(PROJECT, TABLE, query)
        assert sorted(hit.chunk.text for hit in hits) == model.searchable
    table = await index.get_table(PROJECT, TABLE)
    assert table.chunks == sum(len(kept.texts) for kept in model.documents.values())


async def check_steps(directory: Path, steps: list[tuple[str, str | int, int]], looks: int) -> None:
    index, model = SqliteIndex(directory, SystemClock(), IndexLimits()), Model()
    await index.create_table(PROJECT, VECTORS)
    for number, step in enumerate(steps):
        await run_step(index, model, step)
        if number == looks:
            await compare(index, model)  # from here on the vectors are in memory
    await compare(index, model)
    await index.aclose()
    index = SqliteIndex(directory, SystemClock(), IndexLimits())
    await compare(index, model)
    await index.aclose()


@given(st.lists(STEP, max_size=25), st.integers(0, 25))
def test_documents_follow_the_rules(steps: list[tuple[str, str | int, int]], looks: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(check_steps(Path(directory), steps, looks))
