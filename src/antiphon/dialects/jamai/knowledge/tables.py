"""Knowledge tables in JamAI Base's form: create, list, show, rename, copy and remove them."""

from collections.abc import Iterable
from itertools import count
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from antiphon.dialects.base import Answer, Endpoint, Headers, Request, RequestBody, Response, Services
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.jamai.encode import QUERY
from antiphon.dialects.jamai.knowledge.columns import (
    MOST_COLUMNS,
    JamaiColumn,
    NewJamaiColumn,
    build_columns,
    encode_columns,
)
from antiphon.dialects.jamai.knowledge.endpoints import (
    TABLE_ID,
    Moment,
    TableId,
    answer_done,
    build_context,
    declare,
    declare_text,
    encode,
    name_fields,
    to_moment,
)
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.queries import (
    PAGING,
    JamaiPage,
    ListQuery,
    build_page,
    declare_paging,
    declare_parameter,
)
from antiphon.dialects.jamai.wire_types import Done, ModelId
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue, ModelNotFound, UnsupportedParameter
from antiphon.retrieval.base import SizeUnit, TableInfo
from antiphon.retrieval.knowledge import AutomaticModel, TableRequest

SORT_KEYS = ("id", "updated_at")

VERSION = "1"
"""The version of this server's tables."""

UNCOUNTED = -1
"""JamAI's number of rows that were not counted."""

SOURCE, TARGET = "table_id_src", "table_id_dst"

SWITCH = {"type": "boolean"}


class NewJamaiTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table to create. An empty `embedding_model` takes the first one that the caller can use. Where there
    is none, the table finds by words only."""

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
    """Rows, those of files that are being read too; -1 in a list that does not count them."""
    version: str = VERSION
    indexed_at_fts: None = None
    indexed_at_vec: None = None
    indexed_at_sca: None = None


class JamaiTablePage(JamaiPage, frozen=True, kw_only=True):
    """A part of the list of tables."""

    items: list[JamaiTable]


def declare_tables() -> tuple[Endpoint, ...]:
    """Declares the endpoints of tables."""
    read, write = Right.READ, Right.WRITE
    one = [declare_text(TABLE_ID, required=True)]
    listing = [
        *(declare_text(name) for name in ("created_by", "parent_id", "search_query")),
        declare_parameter("count_rows", {**SWITCH, "default": False}),
        *declare_paging(SORT_KEYS),
    ]
    source, target = declare_text(SOURCE, required=True), declare_text(TARGET)
    copying = [
        source,
        target,
        declare_parameter("include_data", {**SWITCH, "default": True}),
        declare_parameter("create_as_child", {"enum": [False]}),
    ]
    renaming = [source, declare_text(TARGET, required=True)]
    body, table = RequestBody(shape=NewJamaiTable), JamaiTable
    return (
        declare("POST", "", create_table, "Create a knowledge table", write, body=body, gives=table),
        declare("GET", "", show_table, "One knowledge table", read, query=one, gives=table),
        declare("DELETE", "", delete_table, "Remove a knowledge table", write, query=one, gives=Done),
        declare("GET", "/list", list_tables, "Knowledge tables", read, query=listing, gives=JamaiTablePage),
        declare(
            "POST", "/rename", rename_table, "Rename a knowledge table", write, query=renaming, gives=table
        ),
        declare(
            "POST", "/duplicate", copy_table, "Copy a knowledge table", write, query=copying, gives=table
        ),
    )


async def create_table(request: Request, services: Services) -> Answer:
    """Creates a table."""
    new = convert(read_object(request.body), NewJamaiTable)
    attributes = encode_columns(new.cols)
    model: str | AutomaticModel = AutomaticModel.FIRST
    if new.embedding_model:
        model, _ = await choose_model(new.embedding_model, frozenset({"embed"}), request, services)
    wanted = TableRequest(new.id, model, chunk_unit=SizeUnit.CHARACTERS, attributes=attributes)
    try:
        with name_fields({"name": "id", "model": "embedding_model"}):
            info = await services.knowledge.create_table(wanted, build_context(request, services, ""))
    except ModelNotFound as error:
        message = f"embedding_model: {error.message}"
        raise InvalidValue(message, param="embedding_model") from None
    return _answer(info, _list_ignored(new.cols))


def _list_ignored(columns: Iterable[NewJamaiColumn]) -> Headers:
    """Returns the header that names what has no effect."""
    return ((b"x-antiphon-ignored", b"cols[].index"),) if any(each.index for each in columns) else ()


async def list_tables(request: Request, services: Services) -> Answer:
    """Lists the tables of the caller's project."""
    query = ListQuery(request, "created_by", "parent_id", "search_query", "count_rows", *PAGING)
    if query.get("created_by"):
        raise UnsupportedParameter(
            "created_by is not supported: tables belong to the project; leave it out",
            param=f"{QUERY}.created_by",
        )
    has_parent = query.get("parent_id") != ""
    searched, counts = query.get("search_query").casefold(), query.read_switch("count_rows", usual=False)
    tables = [
        build_table(info, counts=counts)
        for info in await services.knowledge.list_tables(request.actor)
        if searched in info.settings.name.casefold() and not has_parent
    ]
    return Response(encode(build_page(JamaiTablePage, tables, query, SORT_KEYS)))


async def show_table(request: Request, services: Services) -> Answer:
    """Shows one table."""
    name = ListQuery(request, TABLE_ID).require(TABLE_ID)
    return _answer(await services.knowledge.get_table(request.actor, name))


async def rename_table(request: Request, services: Services) -> Answer:
    """Gives a table another name."""
    query = ListQuery(request, SOURCE, TARGET)
    source, target = query.require(SOURCE), query.require(TARGET)
    with name_fields({"name": f"{QUERY}.{TARGET}"}):
        return _answer(await services.knowledge.rename_table(request.actor, source, target))


async def copy_table(request: Request, services: Services) -> Answer:
    """Copies a table. Without a name the copy gets the next free one."""
    query = ListQuery(request, SOURCE, TARGET, "include_data", "create_as_child")
    source, target = query.require(SOURCE), query.get(TARGET)
    if query.read_switch("create_as_child", usual=False):
        raise UnsupportedParameter(
            "create_as_child is not supported: knowledge tables have no children; leave it out",
            param=f"{QUERY}.create_as_child",
        )
    with_documents = query.read_switch("include_data", usual=True)
    tables = services.knowledge
    if not target:
        taken = {info.settings.name for info in await tables.list_tables(request.actor)}
        target = next(name for at in count(2) if (name := f"{source} ({at})") not in taken)
    with name_fields({"name": f"{QUERY}.{TARGET}"}):
        info = await tables.duplicate_table(request.actor, source, target, with_documents=with_documents)
    return _answer(info)


async def delete_table(request: Request, services: Services) -> Answer:
    """Removes a table with all that it contains."""
    name = ListQuery(request, TABLE_ID).require(TABLE_ID)
    await services.knowledge.delete_table(request.actor, name)
    return answer_done()


def _answer(info: TableInfo, headers: Headers = ()) -> Response:
    """Answers with one table."""
    return Response(encode(build_table(info)), headers=headers)


def build_table(info: TableInfo, *, counts: bool = True) -> JamaiTable:
    """Builds the entry of one table. `counts`: whether it has the number of rows."""
    return JamaiTable(
        id=info.settings.name,
        meta={} if info.damage is None else {"damage": info.damage},
        cols=build_columns(info),
        updated_at=to_moment(info.updated_at),
        num_rows=info.chunks if counts else UNCOUNTED,
    )
