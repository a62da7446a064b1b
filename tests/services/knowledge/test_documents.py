"""Documents of knowledge tables: read in the background, once, by one process, and resumed by another."""

import asyncio
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from antiphon.assembly.knowledge import ServedEmbeddingModels
from antiphon.domain.context import Context
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.request import EmbeddingRequest, Embeddings
from antiphon.domain.values import replace
from antiphon.errors import (
    AntiphonError,
    Conflict,
    EngineBusy,
    EngineDied,
    EngineError,
    InvalidValue,
    KnowledgeLimitReached,
    KnowledgeUnavailable,
    NotFound,
    UnsupportedMediaType,
)
from antiphon.retrieval.base import (
    ChunkInput,
    DocumentInfo,
    DocumentInput,
    DocumentState,
    IndexLimits,
    SizeUnit,
    TableSettings,
)
from antiphon.retrieval.ingest.document_reader import SandboxedReader
from antiphon.retrieval.knowledge import (
    ChunkSizes,
    FileUpload,
    SplitDocument,
    StoredFile,
    TableRequest,
    TableSearch,
    TokenRule,
)
from antiphon.services.knowledge import documents
from antiphon.services.knowledge.uploads import UploadFolder
from antiphon_testing import EmbeddingScript
from tests.support.knowledge import ALICE, BOB, Knowledge, build_context, list_texts, open_service, wait_for
from tests.support.waiting import PATIENCE, await_until

WORDS = " ".join(f"word{number}" for number in range(3000))
LONG = FileUpload("long.txt", WORDS.encode(), chunk_size=40, chunk_overlap=0, chunk_unit=SizeUnit.CHARACTERS)
"""More than ten batches of chunks."""


async def open_table(at: Knowledge, **wanted: object) -> None:
    await at.service.create_table(TableRequest("t", **wanted), build_context())  # type: ignore[arg-type]


async def add(at: Knowledge, name: str, text: str, **wanted: object) -> DocumentInfo:
    upload = FileUpload(name, text.encode(), **wanted)  # type: ignore[arg-type]
    return await at.service.add_document("t", upload, build_context(), wait=True)


async def wait_for_note(at: Knowledge) -> DocumentInfo:
    """The table's only document, once it says why it waits. Each try removes the note until it fails."""
    async with asyncio.timeout(PATIENCE):
        while (document := await wait_for(at, DocumentState.INDEXING)).error is None:
            await asyncio.sleep(0.01)
    return document


def has_asked(at: Knowledge, times: int) -> bool:
    return len(at.engine.asked) > times


async def test_a_file_becomes_chunks_that_search_finds(tmp_path: Path) -> None:
    async with open_service(tmp_path, isolated=True) as at:
        await open_table(at)
        document = await add(at, "guide.md", "# Fruit\n\nApples are red.\n\n# Sea\n\nThe sea is blue.")
        assert (document.state, document.progress, document.error) == (DocumentState.READY, 100, None)
        (hit, *_) = await at.service.search("t", TableSearch("sea"), build_context())
        assert (hit.chunk.file_name, hit.chunk.document) == ("guide.md", document.id)
        assert "The sea is blue." in hit.chunk.text
        assert at.list_uploads() == []


async def test_the_same_file_is_read_once(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        one = await add(at, "a.txt", "apples")
        asked = len(at.engine.asked)
        assert await add(at, "a.txt", "apples") == one
        assert len(at.engine.asked) == asked
        assert (await add(at, "b.txt", "apples")).id != one.id
        assert (await add(at, "a.txt", "apples", chunk_size=20)).id != one.id
        assert at.list_uploads() == []


async def test_a_new_version_embeds_only_what_is_new(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        how = {"chunk_size": 16, "chunk_overlap": 0, "chunk_unit": SizeUnit.CHARACTERS}
        await add(at, "a.txt", "apples are red\n\nthe sea is blue", **how)
        asked = len(at.engine.asked)
        await add(at, "a.txt", "apples are red\n\nthe sea is grey", **how)
        assert [len(request.texts) for request in at.engine.asked[asked:]] == [1]
        assert await list_texts(at) == ["apples are red", "the sea is grey"]
        assert (await at.service.list_documents(ALICE, "t")).total == 1


@pytest.mark.parametrize(
    ("upload", "error", "words"),
    [
        (FileUpload("a.exe", b"MZ"), UnsupportedMediaType, "cannot be read"),
        (FileUpload("a.txt", b""), InvalidValue, "is empty"),
        (FileUpload("a.txt", b"a", chunk_size=3), InvalidValue, "chunk_size"),
        (FileUpload("a.txt", b"a", chunk_size=20, chunk_overlap=20), InvalidValue, "chunk_overlap"),
        (FileUpload("", b"a"), InvalidValue, "document's name"),
        (FileUpload("a\nb.txt", b"a"), InvalidValue, "control characters"),
    ],
)
async def test_a_file_that_cannot_be_taken_leaves_nothing(
    tmp_path: Path, upload: FileUpload, error: type[AntiphonError], words: str
) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        with pytest.raises(error, match=words):
            await at.service.add_document("t", upload, build_context())
        assert (await at.service.list_documents(ALICE, "t")).total == 0
        assert at.list_uploads() == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b'{"a": ', "is not JSON"),
        ("a.txt", b"\x89PNG\r\n\x1a\n" + b"x" * 99, "its content is a PNG image"),
        ("a.pdf", b"%PDF-1.7 broken", "a.pdf"),
        ("a.txt", b"  \n ", "has no text"),
    ],
)
async def test_a_file_that_cannot_be_read_fails_with_a_sentence(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        with pytest.raises(AntiphonError, match=words):
            await at.service.add_document("t", FileUpload(name, content), build_context(), wait=True)
        failed = await wait_for(at, DocumentState.FAILED)
        assert words in (failed.error or "")
        assert (failed.chunks, await list_texts(at), at.list_uploads()) == (0, [], [])
        begun = await at.service.add_document("t", FileUpload(name, content), build_context())
        assert begun.state is DocumentState.INDEXING  # it is tried again
        await wait_for(at, DocumentState.FAILED)


async def test_chunks_fit_what_the_model_reads(tmp_path: Path) -> None:
    async with open_service(tmp_path, context_length=60) as at:
        await open_table(at, chunk_size=2000, chunk_unit=SizeUnit.CHARACTERS)
        document = await add(at, "a.txt", "some words " * 100)
        assert document.chunks > 1
        assert "reads at most 54 tokens" in document.warnings[0]
        assert max(len(text) for request in at.engine.asked for text in request.texts) <= 60


async def test_a_document_goes_on_in_another_process(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with open_service(tmp_path) as at:
        await open_table(at)
        whole = await at.service.add_document(
            "t", replace(LONG, name="other.txt"), build_context(), wait=True
        )
        expected = await list_texts(at)
        await at.service.delete_document(ALICE, "t", whole.id)
        at.engine.behaviour = EmbeddingScript(hold)
        begun = await at.service.add_document("t", LONG, build_context())
        await await_until(lambda: at.engine.asked[-1].texts[1:])
        hold.set()
        await await_until(lambda: len(at.engine.asked) > 20)
        hold.clear()
        part = await at.service.get_document(ALICE, "t", begun.id)
        assert begun.total_chunks is None and 0 < part.chunks < len(expected) == part.total_chunks
    async with open_service(tmp_path) as at:
        document = await wait_for(at, DocumentState.READY)
        assert document.id == begun.id
        assert await list_texts(at) == expected
        batches = -(-len(expected) // documents.CHUNKS_PER_BATCH)
        assert len(at.engine.asked) < batches  # what was kept is not made again
        await await_until(lambda: at.list_uploads() == [])


async def test_one_of_two_processes_works_on_a_document(tmp_path: Path) -> None:
    hold = asyncio.Event()
    async with (
        open_service(tmp_path) as one,
        open_service(tmp_path, index=one.index) as two,
    ):
        await open_table(one)
        one.engine.behaviour = EmbeddingScript(hold)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(one.service.add_document("t", LONG, build_context(), wait=True))
            await await_until(lambda: len(one.engine.asked) > 1)
            second = group.create_task(two.service.add_document("t", LONG, build_context(), wait=True))
            await asyncio.sleep(0.1)
            hold.set()
        assert first.result() == second.result()
        assert two.engine.asked == []


async def test_a_job_ends_with_the_key_that_uploaded(tmp_path: Path) -> None:
    async with open_service(tmp_path, EmbeddingScript(asyncio.Event())) as at:
        await open_table(at)
        await at.service.add_document("t", LONG, build_context())
        await await_until(lambda: len(at.engine.asked) > 1)
        del at.callers.actors[ALICE.id]
        at.engine.behaviour.hold.set()  # type: ignore[union-attr]
        failed = await wait_for(at, DocumentState.FAILED)
        await await_until(lambda: at.list_uploads() == [])
    assert failed.error == "the key that uploaded this file has ended: upload the file again with another key"
    assert failed.chunks == 0


async def test_a_model_that_is_gone_fails_the_document(tmp_path: Path) -> None:
    async with open_service(tmp_path, EmbeddingScript(asyncio.Event())) as at:
        await open_table(at)
        await at.service.add_document("t", LONG, build_context())
        await await_until(lambda: len(at.engine.asked) > 1)
    async with open_service(tmp_path, names=()) as at:
        failed = await wait_for(at, DocumentState.FAILED)
        assert "'e'" in (failed.error or "") or " e" in (failed.error or "")
        assert (failed.chunks, await list_texts(at)) == (0, [])
        await await_until(lambda: at.list_uploads() == [])


async def test_errors_that_pass_are_tried_again(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        at.engine.behaviour = EmbeddingScript(error=EngineBusy("busy", retry_after=0.05), error_after=None)
        await at.service.add_document("t", FileUpload("a.txt", b"apples"), build_context())
        await await_until(lambda: len(at.engine.asked) > 2)
        at.engine.behaviour = EmbeddingScript()
        assert (await wait_for(at, DocumentState.READY)).chunks == 1


async def test_a_document_that_waits_says_so_and_resumes(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        busy = EngineBusy("the queue is full")
        at.engine.behaviour = EmbeddingScript(error=busy, error_after=None)
        with pytest.raises(EngineBusy) as caught:
            await add(at, "a.txt", "apples")
        assert caught.value.message == "the document is kept, and goes on by itself: the queue is full"
        assert busy.message == "the queue is full", "others that wait for the job get the same error"
        waiting = await wait_for_note(at)
        async with asyncio.timeout(PATIENCE):
            while await at.service.get_document(ALICE, "t", waiting.id) != waiting:  # it was tried meanwhile
                waiting = await wait_for_note(at)
        assert waiting.error == "is kept, and goes on by itself: the queue is full"
        assert await list_texts(at) == []
        at.engine.behaviour = EmbeddingScript()  # a later look goes on
        ready = await wait_for(at, DocumentState.READY)
        assert (ready.error, await list_texts(at), ready.id) == (None, ["apples"], waiting.id)
        await await_until(lambda: at.list_uploads() == [])


@pytest.mark.parametrize("deaths", [2, 3])
async def test_an_engine_that_dies_is_tried_again_twice(tmp_path: Path, deaths: int) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        at.engine.behaviour = EmbeddingScript(error=EngineDied("the engine died"), error_after=0)
        asked = len(at.engine.asked)
        await at.service.add_document("t", FileUpload("a.txt", b"apples"), build_context())
        if deaths == 2:
            await await_until(lambda: len(at.engine.asked) >= asked + 2)
            at.engine.behaviour = EmbeddingScript()
            assert (await wait_for(at, DocumentState.READY)).error is None
        else:
            assert (await wait_for(at, DocumentState.FAILED)).error == "the engine died"
            assert len(at.engine.asked) == asked + 3
        assert await list_texts(at) == (["apples"] if deaths == 2 else [])


async def test_a_model_of_other_dimensions_names_both(tmp_path: Path) -> None:
    settings = TableSettings("t", "e", 999)
    async with open_service(tmp_path) as at:
        await at.index.create_table(ALICE.project, settings)
        expected = r"the table has vectors of 999 numbers, and e now returns vectors of \d+"
        with pytest.raises(InvalidValue, match=expected):
            await add(at, "a.txt", "apples")
        with pytest.raises(InvalidValue, match=expected):
            await at.service.search("t", TableSearch("apples"), build_context())
        with pytest.raises(InvalidValue, match=expected):
            await at.service.add_chunks("t", [ChunkInput("apples")], build_context())
        assert await list_texts(at) == []


async def test_an_error_that_stays_fails_the_document(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        await open_table(at)
        at.engine.behaviour = EmbeddingScript(error=EngineError("it broke"), error_after=0)
        with pytest.raises(EngineError, match="it broke"):
            await add(at, "a.txt", "apples")
        assert (await wait_for(at, DocumentState.FAILED)).error == "it broke"


async def test_a_file_sent_again_while_it_fails_fails_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_removing, may_remove = threading.Event(), threading.Event()
    remove = UploadFolder.remove

    def wait_and_remove(folder: UploadFolder, upload_id: str) -> None:
        is_removing.set()
        assert may_remove.wait(PATIENCE)
        remove(folder, upload_id)

    monkeypatch.setattr(UploadFolder, "remove", wait_and_remove)
    async with open_service(tmp_path) as at:
        await open_table(at)
        upload = FileUpload("a.json", b'{"a": ')
        await at.service.add_document("t", upload, build_context())
        await await_until(is_removing.is_set)
        again = await at.service.add_document("t", upload, build_context())
        assert again.state is DocumentState.INDEXING
        may_remove.set()
        await await_until(lambda: at.list_uploads() == [] and not at.jobs._results)
        await wait_for(at, DocumentState.FAILED)


@pytest.mark.parametrize("is_other_process", [False, True])
async def test_a_file_sent_again_while_the_tables_pause_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other_process: bool
) -> None:
    async with open_service(tmp_path) as at, open_service(tmp_path, index=at.index) as other:
        await open_table(at)
        begin, request, is_accepted = at.index.begin_document, asyncio.current_task(), False

        async def begin_once(project: str, table: str, document: DocumentInput) -> DocumentInfo:
            if is_accepted or asyncio.current_task() is not request:  # a job
                raise KnowledgeUnavailable("the tables pause")
            return await begin(project, table, document)

        with monkeypatch.context() as pausing:
            pausing.setattr(at.index, "begin_document", begin_once)
            upload = FileUpload("a.txt", b"apples")
            accepted = await at.service.add_document("t", upload, build_context())
            is_accepted = True
            await await_until(
                lambda: not at.jobs._results
            )  # its job ended, and a later search starts it again
            stored = at.list_uploads()
            with pytest.raises(KnowledgeUnavailable):
                await (other if is_other_process else at).service.add_document("t", upload, build_context())
            assert at.list_uploads() == stored != []
        assert (await wait_for(at, DocumentState.READY)).id == accepted.id


def name_readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the files that are read from now on."""
    names: list[str] = []
    read = SandboxedReader.read

    async def read_named(
        reader: SandboxedReader, file: StoredFile, sizes: ChunkSizes, tokens: TokenRule | None
    ) -> SplitDocument:
        names.append(file.name)
        return await read(reader, file, sizes, tokens)

    monkeypatch.setattr(SandboxedReader, "read", read_named)
    return names


APPLES = FileUpload("a.txt", b"apples are red", chunk_size=16, chunk_unit=SizeUnit.CHARACTERS)


async def test_split_documents_of_all_projects_have_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_RUNNING_CHARACTERS", 10)  # one document is longer
    names, may_embed = name_readings(monkeypatch), asyncio.Event()
    embed = ServedEmbeddingModels.embed

    async def embed_late(
        models: ServedEmbeddingModels, request: EmbeddingRequest, context: Context
    ) -> Embeddings:
        await may_embed.wait()
        return await embed(models, request, context)

    async with open_service(tmp_path) as at:
        actors = (ALICE, BOB, LOCAL_ANONYMOUS)
        for actor in actors:
            await at.service.create_table(TableRequest("t"), build_context(actor))
        monkeypatch.setattr(ServedEmbeddingModels, "embed", embed_late)
        turns = at.jobs._turns
        await at.service.add_document("t", APPLES, build_context())
        await await_until(lambda: turns.running_characters)
        for actor in (BOB, LOCAL_ANONYMOUS):
            for name in ("b.txt", "c.txt"):
                await at.service.add_document("t", replace(APPLES, name=name), build_context(actor))
        await await_until(lambda: turns.readings.waiting_count or names[1:])  # all reading places are taken
        assert (names, turns.running_characters) == (["a.txt"], len(APPLES.content))
        may_embed.set()
        await await_until(lambda: at.list_uploads() == [])
        for actor in actors:
            listed = await at.service.list_documents(actor, "t")
            assert {document.state for document in listed.items} == {DocumentState.READY}
        await await_until(lambda: not at.jobs._results)
        assert (len(names), turns.running_characters, turns.kept_characters) == (5, 0, 0)


async def test_a_document_that_waits_for_its_turn_counts_and_holds_up_no_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_RUNNING_CHARACTERS", 10)  # one document is longer
    monkeypatch.setattr(documents, "MAX_TRIES", sys.maxsize)
    monkeypatch.setattr(documents, "MAX_PAUSE_S", 0.1)
    names = name_readings(monkeypatch)
    async with open_service(tmp_path) as at:
        await open_table(at)
        at.engine.behaviour = EmbeddingScript(error=EngineBusy("busy"), error_after=None)
        for name in ("a.txt", "b.txt", "c.txt"):
            await at.service.add_document("t", replace(APPLES, name=name), build_context())
        await await_until(lambda: len(names) == 3)  # each fails, and waits with its split document
        begin, hold = at.index.begin_document, asyncio.Event()

        async def begin_late(project: str, table: str, document: DocumentInput) -> DocumentInfo:
            await hold.wait()
            return await begin(project, table, document)

        monkeypatch.setattr(at.index, "begin_document", begin_late)
        turns = at.jobs._turns
        size = len(APPLES.content)
        await await_until(lambda: turns.jobs.waiting_count == 1 and turns.running_characters == 2 * size)
        assert turns.kept_characters == size
        at.engine.behaviour = EmbeddingScript()
        hold.set()
        await await_until(lambda: at.list_uploads() == [] and not at.jobs._results)
        assert (len(names), turns.running_characters, turns.kept_characters) == (3, 0, 0)


async def test_what_is_removed_while_it_is_read_leaves_nothing(tmp_path: Path) -> None:
    async with open_service(tmp_path) as at:
        for remove_table in (False, True):
            await open_table(at)
            hold = asyncio.Event()
            at.engine.behaviour = EmbeddingScript(hold)
            asked = len(at.engine.asked)
            document = await at.service.add_document("t", LONG, build_context())
            await await_until(partial(has_asked, at, asked + 1))
            with pytest.raises(Conflict, match="is being read"):
                await at.service.rename_table(ALICE, "t", "u")
            await at.service.delete_document(ALICE, "t", document.id)
            if remove_table:
                await at.service.add_document("t", replace(LONG, name="b.txt"), build_context())
            await at.service.delete_table(ALICE, "t")
            hold.set()
            await await_until(lambda: at.list_uploads() == [])
            assert await at.index.list_tables(ALICE.project) == ()
            # A job that ends later would remove the next upload of the same file.
            await await_until(lambda: not at.jobs._results)


async def test_a_project_without_room_keeps_no_file(tmp_path: Path) -> None:
    async with open_service(tmp_path, limits=IndexLimits(documents=1)) as at:
        await open_table(at)
        await add(at, "a.txt", "apples")
        with pytest.raises(KnowledgeLimitReached):
            await add(at, "b.txt", "pears")
        await await_until(lambda: at.list_uploads() == [])  # the search for files may have started a job
        with pytest.raises(NotFound):
            await at.service.get_document(ALICE, "t", "nowhere")
