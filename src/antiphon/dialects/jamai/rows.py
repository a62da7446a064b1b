"""Rows of knowledge tables in JamAI Base's form, and search in them. A row is a chunk.

Search is by words and vectors, and then by a reranker.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint, RequestBody
from antiphon.dialects.common.list_query import QUERY, ListQuery
from antiphon.dialects.http_types import EVENT_STREAM, JSON, Answer, Headers, Request, Response
from antiphon.dialects.jamai.columns import (
    COLUMNS,
    ID,
    SCORE,
    RowView,
    build_row,
    copy_content,
    load_columns,
    read_row,
    require_columns,
)
from antiphon.dialects.jamai.lists import (
    DEFAULT_LIMIT,
    LARGEST_LIMIT,
    LARGEST_OFFSET,
    PAGING,
    JamaiPage,
    declare_paging,
    declare_parameter,
)
from antiphon.dialects.jamai.models import choose_model
from antiphon.dialects.jamai.table_endpoints import (
    TABLE_ID,
    TableId,
    answer_done,
    build_context,
    declare,
    declare_text,
    encode,
)
from antiphon.dialects.jamai.wire_types import Done, ModelId
from antiphon.dialects.services import Services
from antiphon.domain.identity import Right
from antiphon.domain.request import RerankRequest
from antiphon.domain.values import replace
from antiphon.errors import (
    AntiphonError,
    InvalidValue,
    MissingParameter,
    ModelNotFound,
    PermissionDenied,
    UnsupportedParameter,
)
from antiphon.retrieval.base import LONGEST_TEXT, MAX_HITS, ChunkPage, TableInfo
from antiphon.retrieval.knowledge import TableSearch

MOST_ROWS = 100
"""The most rows of one change. JamAI has the same limit."""

MOST_DECIMALS = 20

STREAM_END = b"data: [DONE]\n\n"
"""The whole stream of new rows. No cells are generated, so there is nothing to stream."""

NO_EVENT: Mapping[str, Any] = {"not": {}}
"""The schema of the stream's events: there are none before its end."""

CHUNK_FIELD = re.compile(r"(?:chunks\[(\d+)\]\.)?(\w+)")
"""The path of a chunk's field in an error."""

NEGATIVE = re.compile(r"-[1-9][0-9]{0,8}")

VIEW_PARAMETERS = ("columns", "float_decimals", "vec_decimals")

RowId = Annotated[str, Meta(min_length=1, max_length=100)]

Row = dict[str, Any]


SEARCH_PATH = "/hybrid_search"

DEFAULT_HITS = 100

RERANKER = "reranking_model"

RELEVANCE = "relevance_score"
"""The reranker's score of a row."""


class NewJamaiRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rows to add: cells by the names of their columns."""

    table_id: TableId
    data: Annotated[list[Row], Meta(min_length=1, max_length=MOST_ROWS)]
    stream: bool = True
    concurrent: bool = True
    """Has no effect: no cells are generated."""


class ChangedJamaiRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """New cells, by the ids of their rows. Other cells stay."""

    table_id: TableId
    data: Annotated[dict[str, Row], Meta(min_length=1, max_length=MOST_ROWS)]


class RemovedJamaiRows(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Ids of rows to remove."""

    table_id: TableId
    row_ids: Annotated[list[RowId], Meta(min_length=1, max_length=MOST_ROWS)] | None = None
    where: str | None = None
    """Always empty: rows cannot be selected by conditions."""


class AddedJamaiRow(Struct, frozen=True, kw_only=True):
    """A new row. It has no generated cells."""

    object: Literal["gen_table.completion.chunks"] = "gen_table.completion.chunks"
    columns: dict[str, Any] = field(default_factory=dict)
    row_id: str


class AddedJamaiRows(Struct, frozen=True, kw_only=True):
    """New rows, in the order of the request."""

    object: Literal["gen_table.completion.rows"] = "gen_table.completion.rows"
    rows: list[AddedJamaiRow]


class JamaiRowPage(JamaiPage, frozen=True, kw_only=True):
    """A part of the rows of a table, in the order in which they were added."""

    items: list[Row]


def declare_rows() -> tuple[Endpoint, ...]:
    read, write = Right.READ, Right.WRITE
    table, view = declare_text(TABLE_ID, required=True), _declare_view()
    refused_parameters = [declare_text(name) for name in ("where", "search_query")]
    refused_parameters.append(
        declare_parameter("search_columns", {"type": "array", "items": {"type": "string"}})
    )
    list_parameters = [table, *refused_parameters, *view, *declare_paging((ID,))]
    row_parameters = [table, declare_text("row_id", required=True), *view]
    add, change = RequestBody(shape=NewJamaiRows), RequestBody(shape=ChangedJamaiRows)
    remove = RequestBody(shape=RemovedJamaiRows)
    add_endpoint = declare("POST", "/rows/add", add_rows, "Add rows", write, body=add, answer=AddedJamaiRows)
    return (
        replace(add_endpoint, answers={JSON: AddedJamaiRows, EVENT_STREAM: NO_EVENT}),
        declare(
            "GET",
            "/rows/list",
            list_rows,
            "Rows of a table",
            read,
            query=list_parameters,
            answer=JamaiRowPage,
        ),
        declare("GET", "/rows", show_row, "One row", read, query=row_parameters, answer=Row),
        declare("PATCH", "/rows", change_rows, "Change rows", write, body=change, answer=Done),
        declare("POST", "/rows/delete", delete_rows, "Remove rows", write, body=remove, answer=Done),
    )


def _declare_view() -> list[Mapping[str, Any]]:
    """Declares the parameters that select the visible parts of rows."""
    column_names = {"type": "array", "items": {"type": "string"}}
    decimals = {"type": "integer", "maximum": MOST_DECIMALS, "default": 0}
    return [
        declare_parameter("columns", column_names, explode=True),
        declare_parameter("float_decimals", {**decimals, "minimum": 0}),
        declare_parameter("vec_decimals", {**decimals, "minimum": -1}),
    ]


# --- handlers -----------------------------------------------------------------------------------------------


async def add_rows(request: Request, services: Services) -> Answer:
    body = decode_json(request.body, NewJamaiRows)
    info = await services.knowledge.index.get_table(request.actor.project, body.table_id)
    paths, columns = [f"data[{index}]" for index in range(len(body.data))], load_columns(info)
    chunks = [read_row(row, columns, path) for row, path in zip(body.data, paths, strict=True)]
    context = build_context(request, services, "/rows/add")
    with name_cells_in_errors(paths):
        added_chunks = await services.knowledge.add_chunks(body.table_id, chunks, context)
    if body.stream:
        return Response(STREAM_END, media_type=EVENT_STREAM)
    rows = [AddedJamaiRow(row_id=chunk.id) for chunk in added_chunks]
    return Response(encode(AddedJamaiRows(rows=rows)))


async def list_rows(request: Request, services: Services) -> Answer:
    unsupported, repeated = ("where", "search_query"), ("columns", "search_columns")
    single_names = (TABLE_ID, *PAGING, *unsupported, *VIEW_PARAMETERS[1:])
    query = ListQuery(request.query(), *single_names, repeated=repeated)
    for name in (*unsupported, "search_columns"):
        if query.get(name):
            raise UnsupportedParameter(
                f"{name} is not supported: rows are not chosen by conditions; use hybrid_search",
                param=f"{QUERY}.{name}",
            )
    if query.get("order_by") not in ("", ID, ID.lower()):
        raise InvalidValue(f"order_by must be {ID}", param=f"{QUERY}.order_by")
    info = await services.knowledge.index.get_table(request.actor.project, query.require(TABLE_ID))
    offset = query.read_number("offset", 0, 0, LARGEST_OFFSET)
    limit = query.read_number("limit", DEFAULT_LIMIT, 1, LARGEST_LIMIT)
    view = read_view(query, info)

    async def load(start: int, count: int) -> ChunkPage:
        return await services.knowledge.index.list_chunks(
            request.actor.project,
            info.settings.name,
            None,
            start,
            count,
            with_vectors=view.vec_decimals >= 0,
        )

    if query.read_switch("order_ascending", default=True):
        page = await load(offset, limit)
    else:  # the newest first
        total = (await load(0, 1)).total
        end = max(0, total - offset)
        start = max(0, end - limit)
        page = ChunkPage((), total) if start == end else await load(start, end - start)
        page = ChunkPage(tuple(reversed(page.items)), page.total)

    def encode_rows() -> bytes:
        columns = load_columns(info)
        rows = [build_row(chunk, columns, view) for chunk in page.items]
        return encode(JamaiRowPage(items=rows, offset=offset, limit=limit, total=page.total))

    return Response(await services.offload(encode_rows))


async def show_row(request: Request, services: Services) -> Answer:
    query = ListQuery(request.query(), TABLE_ID, "row_id", *VIEW_PARAMETERS[1:], repeated=VIEW_PARAMETERS[:1])
    table, row = query.require(TABLE_ID), query.require("row_id")
    info = await services.knowledge.index.get_table(request.actor.project, table)
    view = read_view(query, info)
    chunk = await services.knowledge.index.get_chunk(request.actor.project, table, row)
    return Response(encode(build_row(chunk, load_columns(info), view)))


async def change_rows(request: Request, services: Services) -> Answer:
    """Changes cells of rows. All rows are checked and embedded before the first one is changed."""
    body = decode_json(request.body, ChangedJamaiRows)
    tables, table = services.knowledge, body.table_id
    columns = load_columns(await tables.index.get_table(request.actor.project, table))
    changed_chunks = {}
    for row, cells in body.data.items():
        chunk = await tables.index.get_chunk(request.actor.project, table, row)
        changed_chunks[row] = read_row(cells, columns, f"data.{row}", copy_content(chunk))
    with name_cells_in_errors([f"data.{row}" for row in changed_chunks]):
        await tables.update_chunks(table, changed_chunks, build_context(request, services, "/rows"))
    return answer_done()


async def delete_rows(request: Request, services: Services) -> Answer:
    body = decode_json(request.body, RemovedJamaiRows)
    if body.where:
        raise UnsupportedParameter(
            "where is not supported: rows are not chosen by conditions; send row_ids", param="where"
        )
    if body.row_ids is None:
        raise MissingParameter("row_ids is missing", param="row_ids")
    await services.knowledge.index.delete_chunks(request.actor.project, body.table_id, body.row_ids)
    return answer_done()


# --- fields -------------------------------------------------------------------------------------------------


def read_view(query: ListQuery, info: TableInfo) -> RowView:
    """Reads the requested parts of rows. Raises a RequestError."""
    columns = require_columns(query.get_all("columns"), info, f"{QUERY}.columns")
    float_decimals = query.read_number("float_decimals", 0, 0, MOST_DECIMALS)
    hides_vectors = NEGATIVE.fullmatch(query.get("vec_decimals")) is not None
    vec_decimals = -1 if hides_vectors else query.read_number("vec_decimals", 0, 0, MOST_DECIMALS)
    return RowView(columns, float_decimals, vec_decimals)


@contextmanager
def name_cells_in_errors(paths: Sequence[str]) -> Iterator[None]:
    """Changes an error about a chunk's field to an error about a cell. `paths`: the paths of the rows."""
    try:
        yield
    except AntiphonError as error:
        match = CHUNK_FIELD.fullmatch(error.param or "")
        if match is not None and (column := COLUMNS.get(match[2])) is not None:
            index = int(match[1] or 0)
            path = paths[index] if index < len(paths) and (match[1] or len(paths) == 1) else "data"
            param = f"{path}.{column}"
            error.message = error.message.replace(match[0], param, 1)
            error.param = param
        raise


class JamaiSearch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search."""

    table_id: TableId
    query: Annotated[str, Meta(min_length=1, max_length=LONGEST_TEXT)]
    limit: Annotated[int, Meta(ge=1, le=MAX_HITS)] = DEFAULT_HITS
    metric: Literal["cosine"] = "cosine"
    float_decimals: Annotated[int, Meta(ge=0, le=MOST_DECIMALS)] = 0
    vec_decimals: Annotated[int, Meta(le=MOST_DECIMALS)] = 0
    """Has no effect: results have no vectors."""
    reranking_model: ModelId | None = None


def declare_search() -> Endpoint:
    summary, body = "Search a knowledge table", RequestBody(shape=JamaiSearch)
    return declare("POST", SEARCH_PATH, search_rows, summary, Right.GENERATE, body=body, answer=list[Row])


async def search_rows(request: Request, services: Services) -> Answer:
    body = decode_json(request.body, JamaiSearch)
    info = await services.knowledge.index.get_table(request.actor.project, body.table_id)
    model = await _find_reranker(body.reranking_model, request, services)
    context = build_context(request, services, SEARCH_PATH)
    hits = await services.knowledge.search(body.table_id, TableSearch(body.query, body.limit), context)
    headers: Headers = ((b"x-antiphon-ignored", b"vec_decimals"),) if body.vec_decimals >= 0 else ()
    scores: Sequence[float | None] = [None] * len(hits)
    if model is not None and hits:
        try:
            texts = tuple(hit.chunk.text for hit in hits)
            ranking = await services.rerank(
                RerankRequest(model, body.query, texts), build_context(request, services, SEARCH_PATH)
            )
            order = ranking.order()
            hits, scores = tuple(hits[index] for index in order), [ranking.scores[index] for index in order]
        except AntiphonError as error:
            # JamAI's client shows this header as a warning.
            text = f"the reranker {model} failed ({error.code}); the order is that of the search"
            plain = text.encode("ascii", "backslashreplace").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
            headers += ((b"warning", b'199 antiphon "%b"' % plain),)
    columns, view = load_columns(info), RowView(float_decimals=body.float_decimals, vec_decimals=-1)
    rows = []
    for hit, score in zip(hits, scores, strict=True):
        row = build_row(hit.chunk, columns, view) | {SCORE: hit.score}
        rows.append(row if score is None else row | {RELEVANCE: score})
    return Response(encode(rows), headers=headers)


async def _find_reranker(name: str | None, request: Request, services: Services) -> str | None:
    """Returns the name of the reranker. Raises a RequestError about the field."""
    if not name:
        return None
    model, _ = await choose_model(name, frozenset({"rerank"}), request, services)
    try:
        entry = await services.load_model(model, request)
    except (ModelNotFound, PermissionDenied) as error:
        raise type(error)(f"{RERANKER}: {error.message}", param=RERANKER) from None
    profile = entry.profile
    if profile is not None and (profile.embedding is None or not profile.embedding.ranks):
        raise UnsupportedParameter(f"{RERANKER}: {model} ranks no documents; name a reranker", param=RERANKER)
    return model
