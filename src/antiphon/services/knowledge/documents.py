"""Adds documents: stores an uploaded file, reads it, embeds its chunks and puts the chunks into the index.

A job continues after its request, and after the end of its process. The file stays in `uploads` until the
document is READY or FAILED. A process that finds a file without a running job continues at the next missing
batch. Only one process works on a document.

No project alone can hold up the documents of another: projects take turns for reading files, which is
bounded in time, and a job that waits after an error holds no place. All wait while the split documents of
running jobs fill the memory that they may have.
"""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from hashlib import sha256
from typing import TypeVar

from antiphon.domain.context import Clock, Context, Origin
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.identity import Actor
from antiphon.domain.values import Struct, replace
from antiphon.errors import (
    AntiphonError,
    EngineDied,
    InternalError,
    InvalidValue,
    KnowledgeUnavailable,
    NotFound,
    PermissionDenied,
)
from antiphon.retrieval.base import (
    MAX_PAGE,
    ChunkInput,
    DocumentInfo,
    DocumentState,
    IndexLimits,
    IndexUsage,
    KnowledgeIndex,
    SizeUnit,
    TableInfo,
    require_file_name,
)
from antiphon.retrieval.knowledge import (
    MAX_READINGS,
    ChunkSizes,
    DocumentReader,
    FileUpload,
    SplitDocument,
    StoredFile,
    TokenRule,
)
from antiphon.services.knowledge.uploads import Uploader, UploadFolder, UploadOrder, digest_upload, make_id
from antiphon.services.knowledge.vectors import OVERLAP_DIVISOR, EmbeddingModels, embed_texts
from antiphon.task_group import task_group
from antiphon.telemetry.logs import record

JOB_TURNS = QueueLimits(sys.maxsize, sys.maxsize, sys.maxsize, at_once_per_actor=2)
"""The most documents of one project that one process works on at the same time. Jobs of a project wait for
each other, and for no other project."""

READING_TURNS = QueueLimits(
    MAX_READINGS, sys.maxsize, sys.maxsize, at_once_per_actor=JOB_TURNS.at_once_per_actor
)
"""The most documents that are read at the same time. No project can have all places, so a project whose files
take long holds up its own documents only."""

MAX_RUNNING_CHARACTERS = 1 << 26
"""The characters of split documents whose jobs run, above which no other document is read. The documents of
one project do not reach it, if their chunks do not overlap. Those that are being read come on top."""

MAX_KEPT_CHARACTERS = 1 << 25
"""The most characters of split documents in memory whose jobs wait. The others are read again after the
wait."""

CHUNKS_PER_BATCH = 64
"""Chunks per batch."""

MAX_BATCHES_AHEAD = 2
"""The most batches that are embedded before the first of them is in the index."""

SEARCH_INTERVAL_S = 15.0
"""Seconds between two searches for files without a running job."""

STATE_POLL_S = 0.2
"""Seconds between two reads of the state of a document that another process works on."""

MAX_TRIES = 6
"""The most attempts without progress at a document whose job fails with temporary errors. After them the job
ends, so that whoever waits for it gets the error. The next search for files starts the job again."""

MAX_ENGINE_DEATHS = 2
"""How many deaths of the engine a document survives without progress. At the next death it fails, because it
may be the cause."""

FIRST_PAUSE_S = 1.0
"""Seconds before the second attempt. Each later pause is twice as long."""

MAX_PAUSE_S = 60.0

EMBEDDING_TIMEOUT_S = 600.0
"""The time limit of one embedding call in seconds."""

WAITING_TEXT = "is kept, and goes on by itself"
"""The words of messages about a document that waits for its model. They follow `the document`."""

MAX_KNOWN_VECTORS = 20_000
"""The most vectors that are read from an earlier version of a document. Equal chunks are then not embedded
again."""

MAX_SEARCHED_PAGES = 10
"""The most pages of documents that are searched for an earlier version."""

T = TypeVar("T")

FindActor = Callable[[Uploader], Actor | None]
"""Returns the caller who uploaded a file, with the caller's current rights; None if the key has ended."""


class IngestDependencies(Struct, frozen=True):
    """What a job needs: the index, the models, the reader, the uploads, and the clock."""

    index: KnowledgeIndex
    models: EmbeddingModels
    reader: DocumentReader
    uploads: UploadFolder
    find_actor: FindActor
    clock: Clock
    origin: Origin
    """The origin of the jobs' embedding calls, for the ledger."""
    limits: IndexLimits
    """The limits of one project."""
    pause: float = FIRST_PAUSE_S
    """Seconds before the second attempt."""
    search_interval: float = SEARCH_INTERVAL_S


class JobTurns:
    """What the jobs of one process share."""

    def __init__(self) -> None:
        self.jobs = FairSemaphore(JOB_TURNS)
        self.readings = FairSemaphore(READING_TURNS)
        self.running_characters = 0
        """Characters of split documents whose jobs run."""
        self.has_room = asyncio.Event()
        """Set while a document may be read."""
        self.has_room.set()
        self.kept_characters = 0
        """Characters of split documents whose jobs wait. They hold up no reading: a job that waits for its
        turn could otherwise wait for a job that waits for room."""

    def count_running(self, characters: int) -> None:
        """Adds characters to those of running jobs, or removes them if the number is negative."""
        self.running_characters += characters
        if self.running_characters > MAX_RUNNING_CHARACTERS:
            self.has_room.clear()
        else:
            self.has_room.set()


class TryAgain(Exception):
    """A job failed with a temporary error."""

    def __init__(self, error: AntiphonError) -> None:
        super().__init__(error.message)
        self.error = error


class DocumentJobs:
    """The jobs of one process."""

    def __init__(self, dependencies: IngestDependencies, group: asyncio.TaskGroup) -> None:
        self.reader = dependencies.reader
        self.limits = dependencies.limits
        self._dependencies = dependencies
        self._group = group
        self._turns = JobTurns()
        self._results: dict[str, asyncio.Future[DocumentInfo | None]] = {}
        """The results of running jobs, by the upload's id."""
        self._job_tasks: set[asyncio.Task[None]] = set()

    async def add(
        self, table: TableInfo, upload: FileUpload, context: Context, *, wait: bool = False
    ) -> DocumentInfo:
        """Stores a file and starts its job. `wait`: returns when the document is READY, and raises the error
        of a file that cannot be read. Raises KnowledgeLimitReached if the project has no room for the
        file."""
        require_file_name(upload.name)
        self.reader.require_readable(upload.name, upload.media_type)
        if not upload.content:
            raise InvalidValue("the file is empty; send a file that has text", param="file")
        order = build_order(table, upload, context)
        self.reader.require_sizes(order.sizes)
        dependencies, model = self._dependencies, table.settings.embedding_model
        if model is not None:
            await dependencies.models.find(model, context.actor)
        is_new = await self._store(order, upload.content)
        try:
            document = await dependencies.index.begin_document(order.project, order.table, order.document)
        except BaseException:
            if is_new and order.id not in self._results:  # else it is an accepted file
                await asyncio.to_thread(dependencies.uploads.remove, order.id)
            raise
        if document.state is DocumentState.READY:
            await asyncio.to_thread(dependencies.uploads.remove, order.id)
            return document
        if not dependencies.uploads.is_complete(order.id):  # an earlier job failed and removed the upload
            await self._store(order, upload.content)
        job = self.start(order)
        if not wait:
            return document
        try:
            document_info = await asyncio.shield(job)
        except AntiphonError as error:
            if not error.retryable:
                raise
            told_error = copy(error)  # others that wait for the job get the same error
            told_error.message = f"the document {WAITING_TEXT}: {error.message}"
            raise told_error from None
        while document_info is None or document_info.state is DocumentState.INDEXING:
            await asyncio.sleep(STATE_POLL_S)
            document_info = await dependencies.index.get_document(order.project, order.table, document.id)
        if document_info.state is DocumentState.FAILED:
            raise InvalidValue(document_info.error or "the document cannot be read", param="file")
        return document_info

    async def _store(self, order: UploadOrder, content: bytes) -> bool:
        """Stores a file, if the project has room for it. Returns whether it was not stored before."""
        stored = await self._dependencies.index.count_usage(order.project)
        store = self._dependencies.uploads.store
        return await asyncio.to_thread(store, order, content, stored.bytes, self.limits)

    async def count_waiting(self, project: str) -> IndexUsage:
        """Returns the number and the bytes of the files of a project that are not in the index yet."""
        return await asyncio.to_thread(self._dependencies.uploads.count_waiting, project)

    def start(self, order: UploadOrder) -> "asyncio.Future[DocumentInfo | None]":
        """Starts the job of an upload, unless this process runs it already. Returns the future result, which
        is None if another process works on the file."""
        if order.id not in self._results:
            result: asyncio.Future[DocumentInfo | None] = asyncio.get_running_loop().create_future()
            self._results[order.id] = result
            task = self._group.create_task(self._run(order, result))
            self._job_tasks.add(task)
            task.add_done_callback(self._job_tasks.discard)
        return self._results[order.id]

    def cancel(self) -> None:
        """Ends all jobs. Their files stay, so that a later process continues."""
        for task in self._job_tasks:
            task.cancel()

    async def has_uploads(self, project: str, table: str) -> bool:
        """Whether the job of a file of a table runs or waits."""
        orders = await asyncio.to_thread(self._dependencies.uploads.list_orders)
        return any((order.project, order.table) == (project, table) for order in orders)

    async def remove_uploads(self, project: str, table: str, digest: str | None = None) -> None:
        """Removes the uploaded files of a table that are not in the index yet. `digest`: only the file with
        this digest."""
        uploads = self._dependencies.uploads
        for order in await asyncio.to_thread(uploads.list_orders):
            if (order.project, order.table) == (project, table) and digest in (None, order.digest):
                await asyncio.to_thread(uploads.remove, order.id)

    async def describe(
        self, project: str, table: str, documents: Sequence[DocumentInfo]
    ) -> list[DocumentInfo]:
        """Returns the documents, with the number of chunks of those that are indexed. If a document waits for
        its model, its `error` is the reason."""

        def describe_upload(document: DocumentInfo) -> DocumentInfo:
            if document.state is not DocumentState.INDEXING:
                return document
            uploads, id_ = self._dependencies.uploads, make_id(project, table, document.digest)
            return replace(document, error=uploads.read_note(id_), total_chunks=uploads.read_total(id_))

        def read() -> list[DocumentInfo]:
            return [describe_upload(document) for document in documents]

        if any(document.state is DocumentState.INDEXING for document in documents):
            return await asyncio.to_thread(read)
        return list(documents)

    async def resume(self) -> None:
        """Starts a job for each uploaded file without one, and repeats this until cancelled."""
        while True:
            try:
                for order in await asyncio.to_thread(self._dependencies.uploads.list_orders):
                    _ = self.start(order)  # nobody waits for it
            except OSError as problem:
                record("knowledge_uploads_unreadable", logging.WARNING, cause=problem.strerror)
            await asyncio.sleep(self._dependencies.search_interval)

    async def _run(self, order: UploadOrder, result: "asyncio.Future[DocumentInfo | None]") -> None:
        """Runs the job of an upload, unless another process works on it, and sets `result`."""
        try:
            result.set_result(await DocumentJob(self._dependencies, self._turns, order).run())
        except AntiphonError as error:
            result.set_exception(error)
            result.exception()  # marks the error as seen: it is possible that nobody waits
        finally:
            if not result.done():
                result.cancel()
            del self._results[order.id]


class DocumentJob:
    """The job of one uploaded file: reads it, embeds its chunks, and puts them into the index."""

    def __init__(self, dependencies: IngestDependencies, turns: JobTurns, order: UploadOrder) -> None:
        self._dependencies = dependencies
        self._turns = turns
        self._order = order
        self._split: SplitDocument | None = None
        """The split document, once it is read."""
        self._characters = 0
        """The characters of the split document, which `turns` counts."""
        self._made_batches: dict[int, list[ChunkInput]] = {}
        """Batches with vectors that wait for an earlier one, by their first chunk. They are at most
        MAX_BATCHES_AHEAD."""
        self._vectors: dict[bytes, bytes] = {}
        """Known vectors, by the digest of their text."""
        self._dimensions = 0
        """The dimensions of the table's vectors; 0 until the job has read the table."""
        self._may_have_note = True
        """Whether the upload can have a note that its document waits."""
        self._tries = self._engine_deaths = 0
        """Attempts, and those that ended with the engine, without progress."""

    async def run(self) -> DocumentInfo | None:
        """Runs the job to its end. Returns the READY document; None if the document or its table was removed
        meanwhile, or if another process works on it. If the file cannot be read, sets the document to FAILED
        and raises the error. Raises a temporary error after MAX_TRIES attempts."""
        dependencies, order, turns = self._dependencies, self._order, self._turns
        pause = 0.0
        while True:
            with self._keep_split():
                await asyncio.sleep(pause)
                await turns.jobs.acquire(order.project, dependencies.clock)
            turns.count_running(self._characters)
            try:
                with dependencies.uploads.lock(order.id) as locked_order:
                    return None if locked_order is None else await self._try()
            except TryAgain as failed:
                error = failed.error
            finally:
                turns.count_running(-self._characters)
                turns.jobs.release(order.project, dependencies.clock)
            self._tries += 1
            if self._tries == MAX_TRIES:
                raise error
            pause = dependencies.pause * 2 ** (self._tries - 1)
            pause = min(MAX_PAUSE_S, max(pause, error.retry_after or 0.0))

    @contextmanager
    def _keep_split(self) -> Iterator[None]:
        """Keeps the split document in memory while the job waits, if there is room."""
        self._vectors.clear()
        if self._turns.kept_characters + self._characters > MAX_KEPT_CHARACTERS:
            self._split, self._characters = None, 0
        self._turns.kept_characters += self._characters
        try:
            yield
        finally:
            self._turns.kept_characters -= self._characters

    async def _try(self) -> DocumentInfo | None:
        """Continues the job until it ends. Raises TryAgain after a temporary error."""
        order, dependencies = self._order, self._dependencies
        document = None
        try:
            document = await dependencies.index.begin_document(order.project, order.table, order.document)
            if document.state is not DocumentState.READY:
                document = await self._index_guarded(document)
        except NotFound:
            document = None
        except KnowledgeUnavailable:
            raise  # a later job continues
        except AntiphonError as error:
            self._engine_deaths += isinstance(error, EngineDied)
            survives = isinstance(error, EngineDied) and self._engine_deaths <= MAX_ENGINE_DEATHS
            if error.retryable or survives:
                self._may_have_note = True
                note = f"{WAITING_TEXT}: {error.message}"
                await asyncio.to_thread(dependencies.uploads.write_note, order.id, note)
                raise TryAgain(error) from None
            await self._fail(document, error)
            record("knowledge_document_failed", logging.INFO, code=error.code, request_id=order.request_id)
            await asyncio.to_thread(dependencies.uploads.remove, order.id)
            await self._fail(document, error)  # the same file can have been uploaded before the removal
            raise
        await asyncio.to_thread(dependencies.uploads.remove, order.id)
        return document

    async def _index_guarded(self, document: DocumentInfo) -> DocumentInfo:
        """Calls `_index`. Raises InternalError for an unexpected exception, which is a defect of the
        server."""
        try:
            return await self._index(document)
        except AntiphonError:
            raise
        except Exception as defect:  # noqa: BLE001 - a defect fails one job, and the others continue
            record("knowledge_job_broken", logging.ERROR, cause=type(defect).__name__)
            problem = "a defect of the server; its log says more"
            raise InternalError(f"the document cannot be read: {problem}") from None

    async def _index(self, document: DocumentInfo) -> DocumentInfo:
        """Reads and embeds the file, and puts its chunks into the index."""
        order, dependencies = self._order, self._dependencies
        table = await dependencies.index.get_table(order.project, order.table)
        model, self._dimensions = table.settings.embedding_model, table.settings.dimensions
        self._find_actor()
        if self._split is None:
            self._split = await self._split_file(model)
            chunk_count = len(self._split.chunks)
            await asyncio.to_thread(dependencies.uploads.write_total, order.id, chunk_count)
        if model is not None:
            await self._load_known_vectors(document)
        await self._put_missing_batches(document, self._split, model)
        return await dependencies.index.finish_document(
            order.project, order.table, document.id, self._split.notes
        )

    async def _split_file(self, model: str | None) -> SplitDocument:
        """Reads the file and splits it into chunks, in the project's turn and when there is room. Raises
        InvalidValue if it contains no text."""
        order, dependencies, turns = self._order, self._dependencies, self._turns
        rule = None
        if model is not None:
            info = await dependencies.models.find(model, self._find_actor())

            async def count_tokens(texts: Sequence[str]) -> Sequence[int]:
                return await dependencies.models.count_tokens(model, texts, self._find_actor())

            if info.longest_text is not None:
                rule = TokenRule(count_tokens, info.longest_text)
        file = StoredFile(dependencies.uploads.get_path(order.id), order.name, order.media_type)
        async with turns.readings.hold(order.project, dependencies.clock):
            while not turns.has_room.is_set():
                await turns.has_room.wait()
            split = await dependencies.reader.read(file, order.sizes, rule)
            self._characters = sum(len(chunk.text) for chunk in split.chunks)
            turns.count_running(self._characters)
            return split

    async def _put_missing_batches(
        self, document: DocumentInfo, split: SplitDocument, model: str | None
    ) -> None:
        """Embeds the batches that are missing in the index, and puts them into the index in their order. If
        one fails, those under way are kept for the next try, because their embedding is paid for."""
        dependencies, order = self._dependencies, self._order
        total = len(split.chunks)
        starts = [
            start
            for start in range(0, total, CHUNKS_PER_BATCH)
            if start // CHUNKS_PER_BATCH not in document.batches
        ]
        embedding_tasks: deque[tuple[int, asyncio.Task[list[ChunkInput] | AntiphonError]]] = deque()
        failures: list[AntiphonError] = []

        async def put_next() -> None:
            start, task = embedding_tasks.popleft()
            chunks = await task
            if isinstance(chunks, AntiphonError):
                failures.append(chunks)
                return
            if failures:  # the index keeps chunks in the order in which they come
                self._made_batches[start] = chunks
                return
            percent = min(99, (start + len(chunks)) * 100 // total)
            await self._retry(
                lambda: dependencies.index.put_chunks(
                    order.project, order.table, document.id, start // CHUNKS_PER_BATCH, chunks, percent
                )
            )
            self._tries = 0
            if start == starts[0]:  # the batch that ends the engine stays the first one that is missing
                self._engine_deaths = 0
            if self._may_have_note:
                self._may_have_note = False
                await asyncio.to_thread(dependencies.uploads.write_note, order.id, "")

        async with task_group() as group:
            for start in starts:
                batch = split.chunks[start : start + CHUNKS_PER_BATCH]
                made = self._made_batches.pop(start, None)
                work = self._embed(batch, model) if made is None else asyncio.sleep(0, made)
                embedding_tasks.append((start, group.create_task(work)))
                if len(embedding_tasks) > MAX_BATCHES_AHEAD:
                    await put_next()
                if failures:
                    break
            while embedding_tasks:
                await put_next()
        if failures:
            raise failures[0]

    async def _embed(
        self, chunks: Sequence[ChunkInput], model: str | None
    ) -> list[ChunkInput] | AntiphonError:
        """Returns chunks with their vectors, or the error of the model. Texts with a known vector are not
        embedded."""
        if model is None:
            return list(chunks)
        dependencies = self._dependencies
        missing = [chunk.text for chunk in chunks if _digest(chunk.text) not in self._vectors]
        if missing:
            try:
                # With the rights of the caller who uploaded the file.
                deadline = dependencies.clock.monotonic() + EMBEDDING_TIMEOUT_S
                context = Context(
                    self._order.request_id,
                    self._find_actor(),
                    deadline,
                    dependencies.clock,
                    origin=dependencies.origin,
                )
                fields = ["file"] * len(missing)
                vectors = await embed_texts(
                    dependencies.models, model, self._dimensions, missing, context, fields
                )
            except AntiphonError as error:
                return error
            self._vectors.update(zip(map(_digest, missing), vectors, strict=True))
        return [replace(chunk, vector=self._vectors[_digest(chunk.text)]) for chunk in chunks]

    async def _load_known_vectors(self, document: DocumentInfo) -> None:
        """Loads at most MAX_KNOWN_VECTORS vectors of the version that this document replaces, if there is
        one."""
        dependencies, order = self._dependencies, self._order
        for page in range(MAX_SEARCHED_PAGES):
            documents = await dependencies.index.list_documents(
                order.project, order.table, page * MAX_PAGE, MAX_PAGE
            )
            for older in documents.items:
                if older.name != order.name or older.id == document.id:
                    continue
                for offset in range(0, min(older.chunks, MAX_KNOWN_VECTORS), CHUNKS_PER_BATCH):
                    chunks = await dependencies.index.list_chunks(
                        order.project, order.table, older.id, offset, CHUNKS_PER_BATCH, with_vectors=True
                    )
                    self._vectors.update((_digest(chunk.text), chunk.vector) for chunk in chunks.items)
                return
            if len(documents.items) < MAX_PAGE:
                return

    def _find_actor(self) -> Actor:
        """Returns the caller who uploaded the file. Raises PermissionDenied if the caller's key has ended."""
        actor = self._dependencies.find_actor(self._order.uploader)
        if actor is None:
            raise PermissionDenied(
                "the key that uploaded this file has ended: upload the file again with another key"
            )
        return actor

    async def _fail(self, document: DocumentInfo | None, error: AntiphonError) -> None:
        """Sets the document to FAILED, with the error, if it is INDEXING."""
        order = self._order
        if document is not None:
            with suppress(NotFound):
                await self._dependencies.index.fail_document(
                    order.project, order.table, document.id, error.message
                )

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        """Makes a call of the index, and repeats it after temporary errors. Raises the last error after
        MAX_TRIES attempts."""
        pause = self._dependencies.pause
        for _ in range(MAX_TRIES - 1):
            try:
                return await call()
            except AntiphonError as error:
                if not error.retryable:
                    raise
                wait = min(MAX_PAUSE_S, max(pause, error.retry_after or 0.0))
            await asyncio.sleep(wait)
            pause *= 2
        return await call()


def build_order(table: TableInfo, upload: FileUpload, context: Context) -> UploadOrder:
    """Returns the order for an uploaded file. The chunk sizes of the request come before those of the table.
    Raises InvalidValue if the chunks would be counted in tokens without an embedding model."""
    settings, actor = table.settings, context.actor
    unit = upload.chunk_unit or settings.chunk_unit
    size = settings.chunk_size if upload.chunk_size is None else upload.chunk_size
    overlap = settings.chunk_overlap if upload.chunk_size is None else size // OVERLAP_DIVISOR
    overlap = overlap if upload.chunk_overlap is None else upload.chunk_overlap
    if unit is SizeUnit.TOKENS and settings.embedding_model is None:
        raise InvalidValue(
            "the table has no embedding model, so chunk_unit cannot be tokens; send characters",
            param="chunk_unit",
        )
    sizes = ChunkSizes(size, overlap, unit)
    digest = digest_upload(upload.content, upload.name, upload.media_type, sizes)
    return UploadOrder(
        id=make_id(actor.project, settings.name, digest),
        table=settings.name,
        name=upload.name,
        media_type=upload.media_type,
        bytes=len(upload.content),
        digest=digest,
        size=size,
        overlap=overlap,
        unit=unit.value,
        uploader=Uploader(actor.kind.value, actor.id, actor.project, actor.user),
        request_id=context.request_id,
    )


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


@asynccontextmanager
async def run_jobs(dependencies: IngestDependencies) -> AsyncIterator[DocumentJobs]:
    """Yields the jobs of this process. They run while the context lasts, also for files that a dead process
    left. The files of unfinished jobs stay on the disk."""
    async with task_group() as group:
        jobs = DocumentJobs(dependencies, group)
        resuming = group.create_task(jobs.resume())
        try:
            yield jobs
        finally:
            resuming.cancel()
            jobs.cancel()
