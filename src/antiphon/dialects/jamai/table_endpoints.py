"""Shared code of the endpoints of knowledge tables in JamAI Base's form."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Required, TypedDict, Unpack

import msgspec
from msgspec import Meta

from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.http_types import JSON, Answer, Request, Response
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.jamai.generation import DIALECT
from antiphon.dialects.jamai.lists import declare_parameter
from antiphon.dialects.jamai.wire_types import Done
from antiphon.dialects.services import Services
from antiphon.domain.context import Context, Origin
from antiphon.domain.identity import Right
from antiphon.errors import AntiphonError
from antiphon.retrieval.base import LONGEST_NAME

ROOT = f"{BASE}/v2/gen_tables/knowledge"

TAG = "knowledge"

TABLE_ID = "table_id"

TEXT_SCHEMA: Mapping[str, Any] = {"type": "string"}

Moment = Annotated[datetime, Meta(tz=True)]

TableId = Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)]

encode = msgspec.json.Encoder().encode


class TableEndpoint(TypedDict, total=False):
    """Properties of an endpoint."""

    body: RequestBody
    answer: Required[Any]
    query: Sequence[Mapping[str, Any]]
    ends_with_caller: bool


def declare(
    method: str, path: str, handler: Handler, summary: str, right: Right, **properties: Unpack[TableEndpoint]
) -> Endpoint:
    """Declares an endpoint. `path`: below ROOT. `answer`: the wire type of the answer."""
    return Endpoint(
        method=method,
        path=ROOT + path,
        handler=handler,
        right=right,
        body=properties.get("body"),
        summary=summary,
        tag=TAG,
        answers={JSON: properties["answer"]},
        parameters=tuple(properties.get("query", ())),
        ends_with_caller=properties.get("ends_with_caller", right is not Right.WRITE),
    )


def declare_text(name: str, **properties: object) -> Mapping[str, Any]:
    """Declares a query parameter that is a text."""
    return declare_parameter(name, TEXT_SCHEMA, **properties)


def build_context(request: Request, services: Services, path: str) -> Context:
    """Builds the context of a call. `path`: the declared path, for the ledger."""
    return services.build_context(request, Origin(DIALECT, ROOT + path))


def to_datetime(milliseconds: int) -> datetime:
    """Converts a time of the index, in Unix milliseconds."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def answer_done() -> Answer:
    """Returns the answer of a completed change."""
    return Response(encode(Done()))


@contextmanager
def name_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Replaces the field of an error by JamAI's name of it. `names`: JamAI's names, by this server's
    names."""
    try:
        yield
    except AntiphonError as error:
        if error.param is not None:
            error.param = names.get(error.param, error.param)
        raise
