"""Knowledge tables in JamAI Base's form: create, list, show, rename, copy and remove them, and add files.

One request adds a file and waits until search finds it.
"""

from collections.abc import Iterable
from itertools import count
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from antiphon.bodies.multipart import FORM_OVERHEAD, BinaryText, read_form
from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.common.list_query import QUERY, ListQuery
from antiphon.dialects.http_types import MULTIPART, Answer, Headers, Request, Response
from antiphon.dialects.jamai.columns import (
    MOST_COLUMNS,
    JamaiColumn,
    NewJamaiColumn,
    build_columns,
    encode_columns,
)
from antiphon.dialects.jamai.lists import PAGING, JamaiPage, build_page, declare_paging, declare_parameter
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.table_endpoints import (
    TABLE_ID,
    Moment,
    TableId,
    answer_done,
    build_context,
    declare,
    declare_text,
    encode,
    name_fields,
    to_datetime,
)
from antiphon.dialects.jamai.wire_types import Done, ModelId
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue, MissingParameter, ModelNotFound, UnsupportedParameter
from antiphon.retrieval.base import SizeUnit, TableInfo
from antiphon.retrieval.knowledge import AutomaticModel, FileUpload, TableRequest

SORT_KEYS = ("id", "updated_at")

VERSION = "1"
"""The version of this server's tables."""

UNCOUNTED = -1
"""JamAI's number for rows that are not counted."""

SOURCE, TARGET = "table_id_src", "table_id_dst"

SWITCH = {"type": "boolean"}


FILE_PATH = "/embed_file"

SIZE, OVERLAP = 2000, 200
"""JamAI's default size and overlap of chunks, in characters."""


class NewJamaiTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table to create. An empty `embedding_model` means the first one that the caller can use. If there is
    none, the table is searched only by words."""

    id: TableId
    embedding_model: ModelId = ""
    cols: Annotated[list[NewJamaiColumn], Meta(max_length=MOST_COLUMNS)] = field(default_factory=list)


class JamaiTable(Struct, frozen=True, kw_only=True):
    """One table."""

    id: str
    meta: dict[str, Any] = field(default_factory=dict)
    cols: list[JamaiColumn]
    parent_id: None = None
    title: str = ""
    created_by: None = None
    updated_at: Moment
    num_rows: int
    """The number of rows, including files that are being read; -1 in a list that does not count them."""
    version: str = VERSION
    indexed_at_fts: None = None
    indexed_at_vec: None = None
    indexed_at_sca: None = None


class JamaiTablePage(JamaiPage, frozen=True, kw_only=True):
    """A part of the list of tables."""

    items: list[JamaiTable]


def declare_tables() -> tuple[Endpoint, ...]:
    read, write = Right.READ, Right.WRITE
    table_parameter = [declare_text(TABLE_ID, required=True)]
    list_parameters = [
        *(declare_text(name) for name in ("created_by", "parent_id", "search_query")),
        declare_parameter("count_rows", {**SWITCH, "default": False}),
        *declare_paging(SORT_KEYS),
    ]
    source, target = declare_text(SOURCE, required=True), declare_text(TARGET)
    copy_parameters = [
        source,
        target,
        declare_parameter("include_data", {**SWITCH, "default": True}),
        declare_parameter("create_as_child", {"enum": [False]}),
    ]
    rename_parameters = [source, declare_text(TARGET, required=True)]
    body, table = RequestBody(shape=NewJamaiTable), JamaiTable
    return (
        declare("POST", "", create_table, "Create a knowledge table", write, body=body, answer=table),
        declare("GET", "", show_table, "One knowledge table", read, query=table_parameter, answer=table),
        declare(
            "DELETE", "", delete_table, "Remove a knowledge table", write, query=table_parameter, answer=Done
        ),
        declare(
            "GET",
            "/list",
            list_tables,
            "Knowledge tables",
            read,
            query=list_parameters,
            answer=JamaiTablePage,
        ),
        declare(
            "POST",
            "/rename",
            rename_table,
            "Rename a knowledge table",
            write,
            query=rename_parameters,
            answer=table,
        ),
        declare(
            "POST",
            "/duplicate",
            copy_table,
            "Copy a knowledge table",
            write,
            query=copy_parameters,
            answer=table,
        ),
    )


async def create_table(request: Request, services: Services) -> Answer:
    body = decode_json(request.body, NewJamaiTable)
    attributes = encode_columns(body.cols)
    model: str | AutomaticModel = AutomaticModel.FIRST
    if body.embedding_model:
        model, _ = await choose_model(body.embedding_model, frozenset({"embed"}), request, services)
    table_request = TableRequest(body.id, model, chunk_unit=SizeUnit.CHARACTERS, attributes=attributes)
    try:
        with name_fields({"name": "id", "model": "embedding_model"}):
            info = await services.knowledge.create_table(table_request, build_context(request, services, ""))
    except ModelNotFound as error:
        message = f"embedding_model: {error.message}"
        raise InvalidValue(message, param="embedding_model") from None
    return _build_response(info, _list_ignored(body.cols))


def _list_ignored(columns: Iterable[NewJamaiColumn]) -> Headers:
    """Returns the header that names fields without effect."""
    return ((b"x-antiphon-ignored", b"cols[].index"),) if any(column.index for column in columns) else ()


async def list_tables(request: Request, services: Services) -> Answer:
    query = ListQuery(request.query(), "created_by", "parent_id", "search_query", "count_rows", *PAGING)
    if query.get("created_by"):
        raise UnsupportedParameter(
            "created_by is not supported: tables belong to the project; leave it out",
            param=f"{QUERY}.created_by",
        )
    has_parent = query.get("parent_id") != ""
    search_text, counts_rows = (
        query.get("search_query").casefold(),
        query.read_switch("count_rows", default=False),
    )
    tables = [
        build_table(info, counts_rows=counts_rows)
        for info in await services.knowledge.index.list_tables(request.actor.project)
        if search_text in info.settings.name.casefold() and not has_parent
    ]
    return Response(encode(build_page(JamaiTablePage, tables, query, SORT_KEYS)))


async def show_table(request: Request, services: Services) -> Answer:
    name = ListQuery(request.query(), TABLE_ID).require(TABLE_ID)
    return _build_response(await services.knowledge.index.get_table(request.actor.project, name))


async def rename_table(request: Request, services: Services) -> Answer:
    query = ListQuery(request.query(), SOURCE, TARGET)
    source, target = query.require(SOURCE), query.require(TARGET)
    with name_fields({"name": f"{QUERY}.{TARGET}"}):
        return _build_response(await services.knowledge.rename_table(request.actor, source, target))


async def copy_table(request: Request, services: Services) -> Answer:
    """Copies a table. Without a name, the copy gets the next free name."""
    query = ListQuery(request.query(), SOURCE, TARGET, "include_data", "create_as_child")
    source, target = query.require(SOURCE), query.get(TARGET)
    if query.read_switch("create_as_child", default=False):
        raise UnsupportedParameter(
            "create_as_child is not supported: knowledge tables have no children; leave it out",
            param=f"{QUERY}.create_as_child",
        )
    with_documents = query.read_switch("include_data", default=True)
    tables = services.knowledge
    if not target:
        names = {info.settings.name for info in await tables.index.list_tables(request.actor.project)}
        target = next(name for number in count(2) if (name := f"{source} ({number})") not in names)
    with name_fields({"name": f"{QUERY}.{TARGET}"}):
        info = await tables.duplicate_table(request.actor, source, target, with_documents=with_documents)
    return _build_response(info)


async def delete_table(request: Request, services: Services) -> Answer:
    name = ListQuery(request.query(), TABLE_ID).require(TABLE_ID)
    await services.knowledge.delete_table(request.actor, name)
    return answer_done()


def _build_response(info: TableInfo, headers: Headers = ()) -> Response:
    """Returns the answer with one table."""
    return Response(encode(build_table(info)), headers=headers)


def build_table(info: TableInfo, *, counts_rows: bool = True) -> JamaiTable:
    """Builds the entry of one table. `counts_rows`: whether it has the number of rows."""
    return JamaiTable(
        id=info.settings.name,
        meta={} if info.damage is None else {"damage": info.damage},
        cols=build_columns(info),
        updated_at=to_datetime(info.updated_at),
        num_rows=info.chunks if counts_rows else UNCOUNTED,
    )


class JamaiUploadForm(Struct, frozen=True, kw_only=True):
    """A file to add. Sizes are in characters."""

    file: BinaryText
    table_id: str
    chunk_size: int = SIZE
    chunk_overlap: int = OVERLAP


def declare_files(max_file_bytes: int | None) -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints of files. `max_file_bytes`: None means the server's limit of bodies."""
    limit = None if max_file_bytes is None else max_file_bytes + FORM_OVERHEAD
    form = RequestBody(MULTIPART, limit, JamaiUploadForm)
    return (
        declare(
            "POST",
            FILE_PATH,
            embed_file,
            "Add a file, and wait until it is ready",
            Right.WRITE,
            body=form,
            answer=Done,
            ends_with_caller=True,
        ),
        declare("OPTIONS", FILE_PATH, list_types, "Media types of files", Right.READ, answer=list[str]),
    )


async def embed_file(request: Request, services: Services) -> Answer:
    form = read_form(request.body, request.headers)
    form.require_known(*JamaiUploadForm.__struct_fields__)
    file, table = form.require_file("file"), form.fields.get(TABLE_ID)
    if not table:
        raise MissingParameter(f"{TABLE_ID} is missing; name a knowledge table", param=TABLE_ID)
    size, overlap = form.read_integer("chunk_size"), form.read_integer("chunk_overlap")
    upload = FileUpload(
        file.name,
        file.content,
        file.media_type,
        SIZE if size is None else size,
        OVERLAP if overlap is None else overlap,
        SizeUnit.CHARACTERS,
    )
    context = build_context(request, services, FILE_PATH)
    with name_fields({"file_name": "file"}):
        await services.knowledge.add_document(table, upload, context, wait=True)
    return answer_done()


async def list_types(_request: Request, services: Services) -> Answer:
    """Lists the accepted media types, also in the header Accept, as JamAI does."""
    types = services.knowledge.media_types
    accepted_types = ", ".join(types).encode()
    return Response(encode(types), headers=((b"allow", b"POST, OPTIONS"), (b"accept", accepted_types)))
