"""Rows of knowledge tables in JamAI Base's form, and the search. Rows show no vectors."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from antiphon.dialects.base import EVENT_STREAM, Answer, Endpoint, Request, RequestBody, Response, Services
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.jamai.encode import QUERY
from antiphon.dialects.jamai.knowledge_tables import (
    KNOWLEDGE,
    TEXT,
    answer_json,
    build_context,
    declare,
    to_moment,
)
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.queries import (
    LARGEST_LIMIT,
    LARGEST_OFFSET,
    USUAL_LIMIT,
    JamaiPage,
    ListQuery,
    declare_parameter,
)
from antiphon.dialects.jamai.wire_types import Done
from antiphon.domain.context import Context
from antiphon.domain.identity import Right
from antiphon.domain.rerank import RerankRequest
from antiphon.errors import (
    EngineError,
    InvalidValue,
    MissingParameter,
    ProviderError,
    UnknownParameter,
    UnsupportedParameter,
)
from antiphon.retrieval.base import MAX_HITS, ChunkInput, SearchHit, TextChunk
from antiphon.retrieval.knowledge import TableSearch

ROWS = f"{KNOWLEDGE}/rows"
SEARCH = f"{KNOWLEDGE}/hybrid_search"

MOST_ROWS = 100
"""The most rows of one change."""

COLUMNS = ("Title", "Text", "File ID", "Page")

DONE = b"data: [DONE]\n\n"

NO_FILTER = "must be empty: rows are not filtered here; search with hybrid_search"

RowList = Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MOST_ROWS)]
RowMap = Annotated[dict[str, dict[str, Any]], Meta(min_length=1, max_length=MOST_ROWS)]
RowIds = Annotated[list[str], Meta(min_length=1, max_length=MOST_ROWS)]


class NewRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows to add."""

    table_id: str
    data: RowList
    stream: bool = True
    concurrent: bool = True
    """Without effect: rows of knowledge tables are not generated."""


class ChangedRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows to change, by their ids. Columns that are not named stay."""

    table_id: str
    data: RowMap


class RemovedRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows to remove."""

    table_id: str
    row_ids: RowIds | None = None
    where: str | None = ""


class HybridSearch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search by words and vectors."""

    table_id: str
    query: Annotated[str, Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = 100
    metric: str = "cosine"
    float_decimals: Annotated[int, Meta(ge=0, le=17)] = 0
    vec_decimals: Annotated[int, Meta(le=0)] = 0
    """Rows show no vectors."""
    reranking_model: str | None = None


class AddedRow(Struct, frozen=True, kw_only=True):
    """A row that was added. No column is generated."""

    object: str = "gen_table.completion.chunks"
    columns: dict[str, Any] = field(default_factory=dict)
    row_id: str


class AddedRows(Struct, frozen=True, kw_only=True):
    """The rows that were added."""

    object: str = "gen_table.completion.rows"
    rows: list[AddedRow]


class RowPage(JamaiPage, frozen=True, kw_only=True):
    """A part of a table's rows."""

    items: list[dict[str, Any]]


ROW: Mapping[str, Any] = {"type": "object"}
"""The schema of a row: `ID` and `Updated at` as they are, other columns as `{"value": ...}`."""


def declare_knowledge_rows() -> tuple[Endpoint, ...]:
    """Declares the endpoints of rows and of the search."""
    table = declare_parameter("table_id", TEXT, required=True)
    columns = declare_parameter("columns", {"type": "array", "items": {"enum": list(COLUMNS)}}, explode=True)
    shown = (
        table,
        columns,
        declare_parameter("float_decimals", {"type": "integer"}),
        declare_parameter("vec_decimals", {"type": "integer", "maximum": 0}),
    )
    listing = (
        *shown,
        declare_parameter("offset", {"type": "integer", "minimum": 0, "default": 0}),
        declare_parameter("limit", {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT}),
        declare_parameter("order_by", {"enum": ["ID"]}),
        declare_parameter("order_ascending", {"type": "boolean", "default": True}),
    )
    one = (*shown, declare_parameter("row_id", TEXT, required=True))
    write, read = Right.WRITE, Right.READ
    added, changed, removed = (RequestBody(shape=each) for each in (NewRows, ChangedRows, RemovedRows))
    search = RequestBody(shape=HybridSearch)
    rows = {"type": "array", "items": ROW}
    return (
        declare("POST", f"{ROWS}/add", add_rows, write, AddedRows, summary="Add rows", body=added),
        declare("GET", f"{ROWS}/list", list_rows, read, RowPage, summary="List rows", parameters=listing),
        declare("GET", ROWS, show_row, read, ROW, summary="Show one row", parameters=one),
        declare("PATCH", ROWS, change_rows, write, Done, summary="Change rows", body=changed),
        declare("POST", f"{ROWS}/delete", delete_rows, write, Done, summary="Remove rows", body=removed),
        declare(
            "POST",
            SEARCH,
            search_table,
            Right.GENERATE,
            rows,
            summary="Search a knowledge table",
            body=search,
        ),
    )


def build_row(chunk: TextChunk, columns: Iterable[str] = COLUMNS) -> dict[str, Any]:
    """Builds a row with some of its columns."""
    values = {"Title": chunk.title, "Text": chunk.text, "File ID": chunk.file_name, "Page": chunk.page}
    cells = {name: {"value": values[name]} for name in columns}
    return {"ID": chunk.id, "Updated at": to_moment(chunk.updated_at), **cells}


async def add_rows(request: Request, services: Services) -> Answer:
    """Adds rows. As a stream the answer is only its end, since no column is generated."""
    wanted = convert(read_object(request.body), NewRows)
    chunks = [
        _change_chunk(ChunkInput(""), cells, f"data[{place}]") for place, cells in enumerate(wanted.data)
    ]
    context = build_context(request, services, f"{ROWS}/add")
    added = await services.knowledge.add_chunks(wanted.table_id, chunks, context)
    if wanted.stream:
        return Response(DONE, media_type=EVENT_STREAM)
    return answer_json(AddedRows(rows=[AddedRow(row_id=chunk.id) for chunk in added]))


async def list_rows(request: Request, services: Services) -> Answer:
    """Lists rows in the order in which they were added, or the other way round."""
    names = ("table_id", "offset", "limit", "order_by", "order_ascending", "where", "search_query")
    query = ListQuery(
        request, *names, "float_decimals", "vec_decimals", repeated=("columns", "search_columns")
    )
    for name in ("where", "search_query", "search_columns"):
        if query.get(name):
            raise UnsupportedParameter(f"{name} {NO_FILTER}", param=f"{QUERY}.{name}")
    columns, table = _read_columns(query), query.require("table_id")
    query.read_word("order_by", "ID", ("ID", "id"))
    offset = query.read_number("offset", 0, 0, LARGEST_OFFSET)
    limit = query.read_number("limit", USUAL_LIMIT, 1, LARGEST_LIMIT)
    knowledge, start, size = services.knowledge, offset, limit
    is_ascending = query.read_switch("order_ascending", usual=True)
    if not is_ascending:
        total = (await knowledge.list_chunks(request.actor, table, limit=1)).total
        end = max(0, total - offset)
        start, size = max(0, end - limit), max(1, min(limit, end))
    page = await knowledge.list_chunks(request.actor, table, None, start, size)
    rows = [build_row(chunk, columns) for chunk in page.items]
    if not is_ascending:
        rows = rows[::-1] if offset < page.total else []
    return answer_json(RowPage(items=rows, offset=offset, limit=limit, total=page.total))


async def show_row(request: Request, services: Services) -> Answer:
    """Shows one row."""
    query = ListQuery(request, "table_id", "row_id", "float_decimals", "vec_decimals", repeated=("columns",))
    columns, table = _read_columns(query), query.require("table_id")
    chunk = await services.knowledge.get_chunk(request.actor, table, query.require("row_id"))
    return answer_json(build_row(chunk, columns))


async def change_rows(request: Request, services: Services) -> Answer:
    """Changes rows, one after the other, and embeds their texts anew."""
    wanted = convert(read_object(request.body), ChangedRows)
    context = build_context(request, services, ROWS)
    changes: dict[str, ChunkInput] = {}
    for row, cells in wanted.data.items():
        old = await services.knowledge.get_chunk(request.actor, wanted.table_id, row)
        kept = ChunkInput(old.text, old.title, old.page, old.file_name, old.metadata)
        changes[row] = _change_chunk(kept, cells, f"data.{row[:40]}")
    for row, content in changes.items():
        await services.knowledge.update_chunk(wanted.table_id, row, content, context)
    return answer_json(Done())


async def delete_rows(request: Request, services: Services) -> Answer:
    """Removes rows. Rows that are not there are left out."""
    wanted = convert(read_object(request.body), RemovedRows)
    if wanted.where:
        raise UnsupportedParameter(f"where {NO_FILTER}", param="where")
    if wanted.row_ids is None:
        raise MissingParameter("row_ids is missing: name the rows to remove", param="row_ids")
    await services.knowledge.delete_chunks(request.actor, wanted.table_id, wanted.row_ids)
    return answer_json(Done())


async def search_table(request: Request, services: Services) -> Answer:
    """Searches a table. A reranker that fails keeps the order."""
    wanted = convert(read_object(request.body), HybridSearch)
    if wanted.metric != "cosine":
        raise UnsupportedParameter("metric must be cosine", param="metric")
    reranker = ""
    if wanted.reranking_model:
        reranker, _ = await choose_model(wanted.reranking_model, frozenset({"rerank"}), request, services)
        await services.load_model(reranker, request)  # an unknown one is refused, also where nothing is found
    context = build_context(request, services, SEARCH)
    hits = await services.knowledge.search(wanted.table_id, TableSearch(wanted.query, wanted.limit), context)
    if reranker and hits:
        hits = await _rerank(reranker, wanted.query, hits, context, services)
    return answer_json([_build_hit(hit, wanted.float_decimals) for hit in hits])


async def _rerank(
    model: str, query: str, hits: tuple[SearchHit, ...], context: Context, services: Services
) -> tuple[SearchHit, ...]:
    """Returns the hits in a reranker's order, or as they are if it fails."""
    request = RerankRequest(model, query, tuple(hit.chunk.text for hit in hits))
    try:
        order = (await services.rerank(request, context)).order()
    except (EngineError, ProviderError):
        return hits
    return tuple(hits[place] for place in order)


def _build_hit(hit: SearchHit, decimals: int) -> dict[str, Any]:
    """Builds the row of a hit, with its score."""
    score = round(hit.score, decimals) if decimals else hit.score
    return {**build_row(hit.chunk), "rrf_score": score}


def _read_columns(query: ListQuery) -> list[str]:
    """Returns the columns to show. Raises InvalidValue and UnsupportedParameter."""
    columns = query.get_all("columns")
    if not {*columns} <= {*COLUMNS, "ID", "Updated at"}:
        raise InvalidValue(f"columns must be some of {', '.join(COLUMNS)}", param=f"{QUERY}.columns")
    for name in ("float_decimals", "vec_decimals"):
        text = query.get(name) or "0"
        if not text.lstrip("-").isdigit() or len(text) > 3:
            raise InvalidValue(f"{name} must be a whole number", param=f"{QUERY}.{name}")
    if int(query.get("vec_decimals") or "0") > 0:
        raise UnsupportedParameter("vec_decimals: rows show no vectors", param=f"{QUERY}.vec_decimals")
    return [name for name in COLUMNS if not columns or name in columns]


def _change_chunk(chunk: ChunkInput, cells: Mapping[str, Any], field_name: str) -> ChunkInput:
    """Returns a chunk with other values of some columns. Raises a RequestError."""
    for name, value in cells.items():
        place = f"{field_name}.{name[:40]}"
        if name not in COLUMNS:
            raise UnknownParameter(f"{name[:40]!r} is no column; known: {', '.join(COLUMNS)}", param=place)
        is_page = name == "Page"
        if not isinstance(value, int if is_page else str) and value is not None:
            raise InvalidValue(f"{name} must be {'a whole number' if is_page else 'a text'}", param=place)
    names = {"Title": "title", "Text": "text", "File ID": "file_name", "Page": "page"}
    values: dict[str, Any] = {
        names[name]: ("" if value is None and name != "Page" else value) for name, value in cells.items()
    }
    changed = replace(chunk, **values)
    if not changed.text.strip():
        raise InvalidValue("Text is empty; send at least one word", param=f"{field_name}.Text")
    return changed
