"""Knowledge tables: wire types, handlers and endpoints, and code that the endpoints of documents share."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Required, TypedDict, Unpack

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.bodies.strict_json import decode_json
from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.http_types import JSON, Answer, Request
from antiphon.dialects.services import Services
from antiphon.domain.context import Context, Origin
from antiphon.domain.identity import Right
from antiphon.errors import InvalidValue
from antiphon.http.admin.resource import (
    answer_json,
    declare_parameter,
    read_query,
    require_no_query,
)
from antiphon.retrieval.base import LONGEST_NAME, SizeUnit, TableInfo
from antiphon.retrieval.knowledge import AutomaticModel, SearchMode, TableRequest

ROOT = "/v1/knowledge"
TABLES = f"{ROOT}/tables"
TABLE = f"{TABLES}/{{table}}"

MAX_LIMIT = 1000
"""The most items of one response."""

DEFAULT_LIMIT = 100

MAX_OFFSET = 10**9

PAGING: Sequence[Mapping[str, Any]] = (
    declare_parameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
    ),
    declare_parameter("offset", {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET, "default": 0}),
)


TableName = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]

ModelName = Annotated[str, Meta(min_length=1, max_length=300)]


class Removed(Struct, frozen=True, kw_only=True):
    """The response to a removal."""

    id: str
    deleted: bool = True


class KnowledgeOptions(TypedDict, total=False):
    """Optional properties of an endpoint."""

    body: type
    form: RequestBody
    gives: Required[type]
    statuses: tuple[int, ...]
    query: Sequence[Mapping[str, Any]]
    ends_with_caller: bool


def declare_endpoint(
    method: str, path: str, handler: Handler, summary: str, right: Right, **options: Unpack[KnowledgeOptions]
) -> Endpoint:
    """Declares an endpoint. `body` and `gives` are wire types. Without `query`, a request with a query field
    is refused."""

    async def handle(request: Request, services: Services) -> Answer:
        if "query" not in options:
            require_no_query(request)
        return await handler(request, services)

    return Endpoint(
        method=method,
        path=path,
        handler=handle,
        right=right,
        body=options.get("form") or (RequestBody(shape=options["body"]) if "body" in options else None),
        summary=summary,
        tag="knowledge",
        answers={JSON: options["gives"]},
        statuses=options.get("statuses", (200,)),
        parameters=tuple(options.get("query", ())),
        ends_with_caller=right is not Right.WRITE or options.get("ends_with_caller", False),
    )


def build_context(request: Request, services: Services, path: str) -> Context:
    """Builds the context of a call. `path`: the endpoint's declared path, which the ledger stores."""
    return services.build_context(request, Origin("antiphon", path))


def read_paging(request: Request, *allowed: str) -> tuple[int, int, dict[str, str]]:
    """Returns the offset, the limit and the whole query. Raises UnknownParameter and InvalidValue."""
    query = read_query(request, "limit", "offset", *allowed)
    limit = _read_number(query, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    return _read_number(query, "offset", 0, 0, MAX_OFFSET), limit, query


def _read_number(query: Mapping[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    """Returns a number of the query. Raises InvalidValue."""
    text = query.get(name, str(default))
    if not (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(maximum))
        and minimum <= int(text) <= maximum
    ):
        raise InvalidValue(f"{name} must be an integer of {minimum} to {maximum}", param=name)
    return int(text)


def to_seconds(milliseconds: int) -> int:
    """Converts Unix milliseconds, the unit of the index, to Unix seconds."""
    return milliseconds // 1000


class NewTable(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table to create. Without `embedding_model` the server takes the first one that the caller can use;
    null makes a table that finds by words only."""

    name: TableName
    embedding_model: ModelName | UnsetType | None = UNSET
    chunk_size: int | None = None
    chunk_overlap: int | None = None
    chunk_unit: SizeUnit | None = None

    def to_request(self) -> TableRequest:
        model = AutomaticModel.FIRST if self.embedding_model is UNSET else self.embedding_model
        return TableRequest(self.name, model, self.chunk_size, self.chunk_overlap, self.chunk_unit)


class TableRename(Struct, frozen=True, forbid_unknown_fields=True):
    """The new name of a table."""

    name: TableName


class TableCopy(Struct, frozen=True, forbid_unknown_fields=True):
    """The copy of a table. Documents that are not ready are left out."""

    name: TableName
    with_documents: bool = True


class TableCard(Struct, frozen=True, kw_only=True):
    """A table. `search` tells whether it finds by words and vectors, or by words only. `bytes` counts texts
    and vectors. `damage` tells why a table cannot be used. Times are Unix seconds."""

    object: Literal["knowledge_table"] = "knowledge_table"
    name: str
    search: SearchMode
    embedding_model: str | None
    dimensions: int
    chunk_size: int
    chunk_overlap: int
    chunk_unit: SizeUnit
    documents: int
    chunks: int
    bytes: int
    created_at: int
    updated_at: int
    damage: str | None = None


class TableList(Struct, frozen=True, kw_only=True):
    """All tables of the project, by name."""

    object: Literal["list"] = "list"
    data: list[TableCard]


class KnowledgeAmounts(Struct, frozen=True, kw_only=True):
    """Numbers of tables, documents, chunks and files that wait to be read, and bytes of texts, vectors and
    these files."""

    tables: int
    documents: int
    chunks: int
    bytes: int
    waiting_files: int


class UsageCard(Struct, frozen=True, kw_only=True):
    """What the project keeps, and the most that it can keep."""

    object: Literal["knowledge_usage"] = "knowledge_usage"
    used: KnowledgeAmounts
    limits: KnowledgeAmounts


def build_table_card(info: TableInfo) -> TableCard:
    settings = info.settings
    return TableCard(
        name=settings.name,
        search=SearchMode.WORDS if settings.embedding_model is None else SearchMode.HYBRID,
        embedding_model=settings.embedding_model,
        dimensions=settings.dimensions,
        chunk_size=settings.chunk_size,
        chunk_overlap=settings.chunk_overlap,
        chunk_unit=settings.chunk_unit,
        documents=info.documents,
        chunks=info.chunks,
        bytes=info.bytes,
        created_at=to_seconds(info.created_at),
        updated_at=to_seconds(info.updated_at),
        damage=info.damage,
    )


def declare_tables() -> tuple[Endpoint, ...]:
    write, read = Right.WRITE, Right.READ
    copy_summary = "Copy a knowledge table with its documents"
    return (
        declare_endpoint(
            "GET", TABLES, list_tables, "Knowledge tables of the project", read, gives=TableList
        ),
        declare_endpoint(
            "POST",
            TABLES,
            create_table,
            "Create a knowledge table",
            write,
            body=NewTable,
            gives=TableCard,
            statuses=(201,),
        ),
        declare_endpoint("GET", f"{ROOT}/usage", show_usage, "What the project keeps", read, gives=UsageCard),
        declare_endpoint("GET", TABLE, show_table, "One knowledge table", read, gives=TableCard),
        declare_endpoint(
            "PATCH", TABLE, rename_table, "Rename a knowledge table", write, body=TableRename, gives=TableCard
        ),
        declare_endpoint(
            "POST",
            f"{TABLE}/duplicate",
            duplicate_table,
            copy_summary,
            write,
            body=TableCopy,
            gives=TableCard,
            statuses=(201,),
        ),
        declare_endpoint("DELETE", TABLE, delete_table, "Remove a knowledge table", write, gives=Removed),
    )


async def list_tables(request: Request, services: Services) -> Answer:
    tables = await services.knowledge.index.list_tables(request.actor.project)
    return answer_json(TableList(data=[build_table_card(info) for info in tables]))


async def show_usage(request: Request, services: Services) -> Answer:
    used, limits = await services.knowledge.count_usage(request.actor)
    amounts = [
        KnowledgeAmounts(
            tables=counts.tables,
            documents=counts.documents,
            chunks=counts.chunks,
            bytes=counts.bytes,
            waiting_files=counts.waiting_files,
        )
        for counts in (used, limits)
    ]
    return answer_json(UsageCard(used=amounts[0], limits=amounts[1]))


async def create_table(request: Request, services: Services) -> Answer:
    table_request = decode_json(request.body, NewTable).to_request()
    info = await services.knowledge.create_table(table_request, build_context(request, services, TABLES))
    return answer_json(build_table_card(info), 201)


async def show_table(request: Request, services: Services) -> Answer:
    return answer_json(
        build_table_card(
            await services.knowledge.index.get_table(request.actor.project, request.path_params["table"])
        )
    )


async def rename_table(request: Request, services: Services) -> Answer:
    name = decode_json(request.body, TableRename).name
    info = await services.knowledge.rename_table(request.actor, request.path_params["table"], name)
    return answer_json(build_table_card(info))


async def duplicate_table(request: Request, services: Services) -> Answer:
    copy = decode_json(request.body, TableCopy)
    info = await services.knowledge.duplicate_table(
        request.actor, request.path_params["table"], copy.name, with_documents=copy.with_documents
    )
    return answer_json(build_table_card(info), 201)


async def delete_table(request: Request, services: Services) -> Answer:
    table = request.path_params["table"]
    await services.knowledge.delete_table(request.actor, table)
    return answer_json(Removed(id=table))
