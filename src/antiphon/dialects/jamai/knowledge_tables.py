"""Knowledge tables in JamAI Base's form: tables and files. `knowledge_rows` has their rows and the search.

A table has the columns Title, Text, File ID and Page, besides the vectors of its texts. It takes no other
columns. Its chunks are its rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict, Unpack

import msgspec
from msgspec import Meta, Struct, field

from antiphon.dialects.base import (
    JSON,
    MULTIPART,
    Answer,
    Endpoint,
    Handler,
    Request,
    RequestBody,
    Response,
    Services,
)
from antiphon.dialects.common.multipart import read_form
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.jamai.encode import QUERY
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.jamai.models import build_id, choose_model
from antiphon.dialects.jamai.queries import (
    PAGING,
    JamaiPage,
    ListQuery,
    build_page,
    declare_paging,
    declare_parameter,
)
from antiphon.dialects.jamai.wire_types import Done
from antiphon.domain.context import Context, Origin
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue, MissingParameter, ModelNotFound, UnsupportedParameter
from antiphon.retrieval.base import SizeUnit, TableInfo
from antiphon.retrieval.knowledge import AutomaticModel, FileUpload, TableRequest

KNOWLEDGE = f"{BASE}/v2/gen_tables/knowledge"
EMBED_FILE = f"{KNOWLEDGE}/embed_file"

CHUNK_SIZE, CHUNK_OVERLAP = 2000, 200
"""JamAI's defaults, in characters."""

FRAMING = 64 * 1024
"""Bytes of a form besides its file."""

VERSION = "antiphon"
"""JamAI's clients require a version, which no table has here."""

TEXT_EMBED = "Text Embed"
"""The column of the vectors."""

MEDIA_TYPES = (
    "text/plain, text/markdown, text/html, text/csv, text/tab-separated-values, application/json, "
    "application/jsonl, application/pdf, "
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document, "
    "application/vnd.openxmlformats-officedocument.presentationml.presentation, "
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
)

SORT_KEYS = ("id", "updated_at")

TEXT = {"type": "string"}

_encode = msgspec.json.Encoder().encode

Moment = Annotated[datetime, Meta(tz=True)]


class NewKnowledgeTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table to create. With an empty `embedding_model` the server chooses one; without one in the server
    the table finds by words only."""

    id: str
    embedding_model: str = ""
    cols: list[Any] = field(default_factory=list)
    """Must be empty."""


class EmbeddingColumn(Struct, frozen=True, kw_only=True):
    """How a column of vectors is made."""

    object: str = "gen_config.embed"
    embedding_model: str
    source_column: str = "Text"


class TableColumn(Struct, frozen=True, kw_only=True):
    """A column."""

    id: str
    dtype: str = "str"
    vlen: int = 0
    index: bool = True
    gen_config: EmbeddingColumn | None = None


class JamaiTable(Struct, frozen=True, kw_only=True):
    """A table. `num_rows` is -1 where it was not asked for."""

    id: str
    meta: dict[str, Any] = field(default_factory=dict)
    cols: list[TableColumn]
    parent_id: None = None
    title: str = ""
    created_by: None = None
    updated_at: Moment
    num_rows: int = -1
    version: str = VERSION


class JamaiTablePage(JamaiPage, frozen=True, kw_only=True):
    """A part of the list of tables."""

    items: list[JamaiTable]


class EmbedFileForm(Struct, frozen=True, kw_only=True):
    """A file to add. Sizes are characters."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    table_id: str
    chunk_size: int = CHUNK_SIZE
    chunk_overlap: int = CHUNK_OVERLAP


SOURCE = declare_parameter("table_id_src", TEXT, required=True)
COPYING = (
    SOURCE,
    declare_parameter("table_id_dst", TEXT),
    declare_parameter("include_data", {"type": "boolean", "default": True}),
    declare_parameter("create_as_child", {"enum": [False]}),
)
LISTING = (
    *declare_paging(SORT_KEYS),
    declare_parameter("search_query", TEXT),
    declare_parameter("parent_id", TEXT),
    declare_parameter("created_by", TEXT),
    declare_parameter("count_rows", {"type": "boolean", "default": False}),
)


def declare_knowledge_tables(max_file_bytes: int | None) -> tuple[Endpoint, ...]:
    """Declares the endpoints of tables and files. `max_file_bytes`: None means the server's limit of
    bodies."""
    one = (declare_parameter("table_id", TEXT, required=True),)
    size = None if max_file_bytes is None else max_file_bytes + FRAMING
    form = RequestBody(MULTIPART, size, EmbedFileForm)
    body = RequestBody(shape=NewKnowledgeTable)
    renamed = (SOURCE, declare_parameter("table_id_dst", TEXT, required=True))
    write, read = Right.WRITE, Right.READ
    return (
        declare(
            "POST", KNOWLEDGE, create_table, write, JamaiTable, summary="Create a knowledge table", body=body
        ),
        declare(
            "GET", KNOWLEDGE, show_table, read, JamaiTable, summary="Show one knowledge table", parameters=one
        ),
        declare(
            "GET",
            f"{KNOWLEDGE}/list",
            list_tables,
            read,
            JamaiTablePage,
            summary="List knowledge tables",
            parameters=LISTING,
        ),
        declare(
            "POST",
            f"{KNOWLEDGE}/rename",
            rename_table,
            write,
            JamaiTable,
            summary="Rename a knowledge table",
            parameters=renamed,
        ),
        declare(
            "POST",
            f"{KNOWLEDGE}/duplicate",
            duplicate_table,
            write,
            JamaiTable,
            summary="Copy a knowledge table",
            parameters=COPYING,
        ),
        declare(
            "DELETE", KNOWLEDGE, delete_table, write, Done, summary="Remove a knowledge table", parameters=one
        ),
        declare(
            "POST", EMBED_FILE, embed_file, write, Done, summary="Add a file to a knowledge table", body=form
        ),
        replace(declare("OPTIONS", EMBED_FILE, show_media_types, read, Done), answers={}),
    )


class OperationOptions(TypedDict, total=False):
    """Optional properties of an operation."""

    summary: str
    parameters: Sequence[Mapping[str, Any]]
    body: RequestBody


def declare(
    method: str,
    path: str,
    handler: Handler,
    right: Right,
    answer: object,
    **more: Unpack[OperationOptions],
) -> Endpoint:
    """Declares an endpoint of knowledge tables."""
    return Endpoint(
        method=method,
        path=path,
        handler=handler,
        right=right,
        body=more.get("body"),
        summary=more.get("summary", ""),
        tag="knowledge",
        answers={JSON: answer},
        parameters=tuple(more.get("parameters", ())),
    )


def build_context(request: Request, services: Services, path: str) -> Context:
    """Builds the context of a call."""
    return services.build_context(request, Origin("jamai", path))


def answer_json(value: object) -> Response:
    """Answers with a value as JSON."""
    return Response(_encode(value))


def to_moment(milliseconds: int) -> datetime:
    """Converts a time of the index."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def build_table(info: TableInfo, *, counts: bool = True) -> JamaiTable:
    """Builds the entry of one table. `counts`: whether it shows the number of rows."""
    settings = info.settings
    model = settings.embedding_model
    config = None if model is None else EmbeddingColumn(embedding_model=build_id(model))
    vectors = TableColumn(id=TEXT_EMBED, dtype="float32", vlen=settings.dimensions, gen_config=config)
    columns = [
        TableColumn(id="ID"),
        TableColumn(id="Updated at", dtype="date-time"),
        TableColumn(id="Title"),
        TableColumn(id="Text"),
        *((vectors,) if config is not None else ()),
        TableColumn(id="File ID"),
        TableColumn(id="Page", dtype="int"),
    ]
    return JamaiTable(
        id=settings.name,
        cols=columns,
        updated_at=to_moment(info.updated_at),
        num_rows=info.chunks if counts else -1,
    )


async def create_table(request: Request, services: Services) -> Answer:
    """Creates a table."""
    wanted = convert(read_object(request.body), NewKnowledgeTable)
    if wanted.cols:
        raise UnsupportedParameter("cols must be empty: knowledge tables have fixed columns", param="cols")
    model: str | AutomaticModel = AutomaticModel.FIRST
    if wanted.embedding_model:
        model, _ = await choose_model(wanted.embedding_model, frozenset({"embed"}), request, services)
    table = TableRequest(wanted.id, model, CHUNK_SIZE, CHUNK_OVERLAP, SizeUnit.CHARACTERS)
    context = build_context(request, services, KNOWLEDGE)
    try:
        info = await services.knowledge.create_table(table, context)
    except ModelNotFound as missing:
        raise InvalidValue(missing.message, param="embedding_model") from None
    return answer_json(build_table(info))


async def show_table(request: Request, services: Services) -> Answer:
    """Shows one table."""
    table = ListQuery(request, "table_id").require("table_id")
    return answer_json(build_table(await services.knowledge.get_table(request.actor, table)))


async def list_tables(request: Request, services: Services) -> Answer:
    """Lists the tables of the caller's project."""
    query = ListQuery(request, *PAGING, "search_query", "parent_id", "created_by", "count_rows")
    if query.get("created_by"):
        raise UnsupportedParameter(
            "created_by is not supported: tables belong to the project; leave it out",
            param=f"{QUERY}.created_by",
        )
    counts, searched = query.read_switch("count_rows", usual=False), query.get("search_query").casefold()
    tables = () if query.get("parent_id") else await services.knowledge.list_tables(request.actor)
    found = [build_table(info, counts=counts) for info in tables if searched in info.settings.name.casefold()]
    return answer_json(build_page(JamaiTablePage, found, query, SORT_KEYS))


async def rename_table(request: Request, services: Services) -> Answer:
    """Gives a table another name."""
    query = ListQuery(request, "table_id_src", "table_id_dst")
    source, target = query.require("table_id_src"), query.require("table_id_dst")
    return answer_json(build_table(await services.knowledge.rename_table(request.actor, source, target)))


async def duplicate_table(request: Request, services: Services) -> Answer:
    """Copies a table. Without a name the copy gets the first free one with a number."""
    query = ListQuery(request, "table_id_src", "table_id_dst", "include_data", "create_as_child")
    source, target = query.require("table_id_src"), query.get("table_id_dst")
    if query.read_switch("create_as_child", usual=False):
        raise UnsupportedParameter(
            "create_as_child is not supported: knowledge tables have no children",
            param=f"{QUERY}.create_as_child",
        )
    if not target:
        taken = {info.settings.name for info in await services.knowledge.list_tables(request.actor)}
        names = (f"{source} ({number})" for number in range(2, len(taken) + 3))
        target = next(name for name in names if name not in taken)
    info = await services.knowledge.duplicate_table(
        request.actor, source, target, with_documents=query.read_switch("include_data", usual=True)
    )
    return answer_json(build_table(info))


async def delete_table(request: Request, services: Services) -> Answer:
    """Removes a table."""
    table = ListQuery(request, "table_id").require("table_id")
    await services.knowledge.delete_table(request.actor, table)
    return answer_json(Done())


async def embed_file(request: Request, services: Services) -> Answer:
    """Adds a file, and answers when its chunks can be found."""
    form = read_form(request)
    form.require_known("file", "table_id", "chunk_size", "chunk_overlap")
    table, file = form.fields.get("table_id"), form.require_file("file")
    if not table:
        raise MissingParameter("table_id is missing", param="table_id")
    size, overlap = form.read_integer("chunk_size"), form.read_integer("chunk_overlap")
    upload = FileUpload(
        file.name,
        file.content,
        file.media_type,
        CHUNK_SIZE if size is None else size,
        CHUNK_OVERLAP if overlap is None else overlap,
        SizeUnit.CHARACTERS,
    )
    context = build_context(request, services, EMBED_FILE)
    await services.knowledge.add_document(table, upload, context, wait=True)
    return answer_json(Done())


async def show_media_types(_request: Request, _services: Services) -> Answer:
    """Tells the media types of files in the header Accept."""
    return Response(headers=((b"accept", MEDIA_TYPES.encode()), (b"allow", b"POST, OPTIONS")))
