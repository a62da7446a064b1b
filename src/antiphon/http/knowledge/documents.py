"""Documents of knowledge tables: wire types, handlers and endpoints."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.bodies.multipart import FORM_OVERHEAD, BinaryText, Form, read_form
from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.http_types import MULTIPART, Answer, Request
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue
from antiphon.http.admin.resource import answer_json
from antiphon.http.knowledge.chunks import NewChunk
from antiphon.http.knowledge.tables import (
    PAGING,
    TABLE,
    Removed,
    build_context,
    declare_endpoint,
    read_paging,
    to_seconds,
)
from antiphon.retrieval.base import (
    LONGEST_FILE_NAME,
    MAX_BATCH,
    DocumentInfo,
    DocumentInput,
    DocumentState,
    SizeUnit,
)
from antiphon.retrieval.knowledge import DocumentPart, FileUpload

DOCUMENTS = f"{TABLE}/documents"
DOCUMENT = f"{DOCUMENTS}/{{document}}"

FIELDS = ("file", "wait", "chunk_size", "chunk_overlap", "chunk_unit")


class UploadForm(Struct, frozen=True, kw_only=True):
    """A file to add. The sizes of its chunks are the table's unless the form has others. With `wait` the
    answer comes when the document is ready."""

    file: BinaryText
    wait: bool = False
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None


class DocumentCard(Struct, frozen=True, kw_only=True):
    """A document. `progress` is in percent. `error` tells why it failed, or what it waits for, and `warnings`
    what could not be read. `chunks` counts what is indexed, of `total_chunks`, which is null until the file
    is read. `digest` names the content and the sizes of the chunks. Times are Unix seconds."""

    object: Literal["knowledge_document"] = "knowledge_document"
    id: str
    table: str
    name: str
    media_type: str
    bytes: int
    state: DocumentState
    progress: int
    chunks: int
    total_chunks: int | None
    error: str | None
    warnings: list[str]
    digest: str
    created_at: int
    updated_at: int


class DocumentImport(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Some chunks of a document of an exported table. `batch` numbers the parts from 0, and `last` makes the
    document ready. A chunk without `vector` gets one."""

    name: Annotated[str, Meta(min_length=1, max_length=LONGEST_FILE_NAME)]
    digest: Annotated[str, Meta(min_length=1, max_length=LONGEST_FILE_NAME)]
    media_type: Annotated[str, Meta(min_length=1, max_length=LONGEST_FILE_NAME)] = "application/octet-stream"
    bytes: Annotated[int, Meta(ge=0, le=2**53)] = 0
    warnings: Annotated[list[str], Meta(max_length=100)] = msgspec.field(default_factory=list)
    batch: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    last: bool = True
    chunks: Annotated[list[NewChunk], Meta(max_length=MAX_BATCH)]

    def to_part(self, id_: str) -> DocumentPart:
        """Converts to the part that the service takes. `id_`: the document's."""
        document = DocumentInput(self.name, self.digest, self.media_type, self.bytes, id_)
        chunks = [chunk.to_input() for chunk in self.chunks]
        return DocumentPart(document, chunks, self.batch, self.last, self.warnings)


class DocumentList(Struct, frozen=True, kw_only=True):
    """Documents of a table, the latest first. `total` counts all."""

    object: Literal["list"] = "list"
    data: list[DocumentCard]
    total: int


def build_document_card(table: str, info: DocumentInfo) -> DocumentCard:
    return DocumentCard(
        id=info.id,
        table=table,
        name=info.name,
        media_type=info.media_type,
        bytes=info.bytes,
        state=info.state,
        progress=info.progress,
        chunks=info.chunks,
        total_chunks=info.chunks if info.state is DocumentState.READY else info.total_chunks,
        error=info.error,
        warnings=list(info.warnings),
        digest=info.digest,
        created_at=to_seconds(info.created_at),
        updated_at=to_seconds(info.updated_at),
    )


def declare_documents(max_file_bytes: int) -> tuple[Endpoint, ...]:
    form = RequestBody(MULTIPART, max_file_bytes + FORM_OVERHEAD, UploadForm)
    summary = "Add a file to a knowledge table"
    return (
        declare_endpoint(
            "GET",
            DOCUMENTS,
            list_documents,
            "Documents of a knowledge table",
            Right.READ,
            query=PAGING,
            gives=DocumentList,
        ),
        declare_endpoint(
            "POST",
            DOCUMENTS,
            add_document,
            summary,
            Right.WRITE,
            form=form,
            gives=DocumentCard,
            statuses=(200, 202),
            ends_with_caller=True,
        ),
        declare_endpoint("GET", DOCUMENT, show_document, "One document", Right.READ, gives=DocumentCard),
        declare_endpoint(
            "PUT",
            DOCUMENT,
            import_document,
            "Add a part of an exported document",
            Right.WRITE,
            body=DocumentImport,
            gives=DocumentCard,
        ),
        declare_endpoint(
            "DELETE", DOCUMENT, delete_document, "Remove a document", Right.WRITE, gives=Removed
        ),
    )


async def list_documents(request: Request, services: Services) -> Answer:
    offset, limit, _ = read_paging(request)
    table = request.path_params["table"]
    page = await services.knowledge.list_documents(request.actor, table, offset, limit)
    cards = [build_document_card(table, info) for info in page.items]
    return answer_json(DocumentList(data=cards, total=page.total))


async def add_document(request: Request, services: Services) -> Answer:
    """Stores a file, and answers with its document. The status 202 means that the document is not ready
    yet."""
    form = read_form(request.body, request.headers)
    form.require_known(*FIELDS)
    table = request.path_params["table"]
    upload, wait = read_upload(form), form.read_flag("wait")
    context = build_context(request, services, DOCUMENTS)
    info = await services.knowledge.add_document(table, upload, context, wait=wait)
    status = 200 if info.state is DocumentState.READY else 202
    return answer_json(build_document_card(table, info), status)


def read_upload(form: Form) -> FileUpload:
    """Returns the file of a form, with its sizes. Raises a RequestError."""
    file, unit = form.require_file("file"), form.fields.get("chunk_unit")
    if unit is not None and unit not in tuple(SizeUnit):
        raise InvalidValue(f"chunk_unit must be {' or '.join(SizeUnit)}", param="chunk_unit")
    return FileUpload(
        file.name,
        file.content,
        file.media_type,
        form.read_integer("chunk_size"),
        form.read_integer("chunk_overlap"),
        None if unit is None else SizeUnit(unit),
    )


async def show_document(request: Request, services: Services) -> Answer:
    table, document = request.path_params["table"], request.path_params["document"]
    info = await services.knowledge.get_document(request.actor, table, document)
    return answer_json(build_document_card(table, info))


async def import_document(request: Request, services: Services) -> Answer:
    """Adds a part of an exported document, under the id that it had in the exported table."""
    table, document = request.path_params["table"], request.path_params["document"]
    part = decode_json(request.body, DocumentImport).to_part(document)
    info = await services.knowledge.import_part(table, part, build_context(request, services, DOCUMENT))
    return answer_json(build_document_card(table, info))


async def delete_document(request: Request, services: Services) -> Answer:
    table, document = request.path_params["table"], request.path_params["document"]
    await services.knowledge.delete_document(request.actor, table, document)
    return answer_json(Removed(id=document))
