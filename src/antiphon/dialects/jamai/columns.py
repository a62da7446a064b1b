"""The columns of a knowledge table, and the cells of its rows.

A chunk is a row. Every table has columns for its title, text, vector, file and page. The caller's own columns
are an attribute of the table, and their cells are metadata of the chunks, as text. Chunks of a file have no
such cells until their row is changed.
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.bodies.strict_json import describe_value, sanitize_key
from antiphon.dialects.jamai.models import build_id
from antiphon.dialects.jamai.table_endpoints import to_datetime
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter, UnsupportedParameter
from antiphon.retrieval.base import ChunkInput, TableInfo, TextChunk

ID, UPDATED, TITLE, TEXT = "ID", "Updated at", "Title", "Text"
VECTOR, FILE, PAGE, SCORE = "Text Embed", "File ID", "Page", "rrf_score"
"""Names of columns. Only rows of a search have SCORE."""

FIELDS: Mapping[str, str] = {TITLE: "title", TEXT: "text", FILE: "file_name", PAGE: "page"}
"""The fields of a chunk, by the columns that a caller can write."""

COLUMNS: Mapping[str, str] = {field: name for name, field in FIELDS.items()}
"""The columns, by the fields of a chunk."""

FIXED_COLUMNS = (ID, UPDATED, *FIELDS, VECTOR, SCORE)

ATTRIBUTE = "jamai_columns"
"""The table's attribute with the names and types of the caller's columns."""

MOST_COLUMNS = 50

Kind = Literal["str", "int", "float", "bool"]

KINDS: Mapping[str, tuple[Any, str]] = {
    "str": (str, "a text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
}
"""For each type of a column: the type of its cells, and a description for errors."""

WRITABLE = {**dict.fromkeys((TITLE, TEXT, FILE), "str"), PAGE: "int"}
"""The types of the columns that a caller can write."""


class NewJamaiColumn(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A further column of a new table."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]
    dtype: Kind = "str"
    vlen: int = 0
    """Always 0: only the server creates vectors."""
    index: bool = True
    """Has no effect: search reads titles and texts."""
    gen_config: dict[str, Any] | None = None
    """Always null: no cells are generated."""


class JamaiEmbedConfig(Struct, frozen=True, kw_only=True):
    """The embedding model of a column."""

    object: Literal["gen_config.embed"] = "gen_config.embed"
    embedding_model: str
    source_column: str = TEXT


class JamaiColumn(Struct, frozen=True, kw_only=True):
    """One column. `vlen`: the dimensions of its vectors. `index`: whether search reads it."""

    id: str
    dtype: str = "str"
    vlen: int = 0
    index: bool = False
    gen_config: JamaiEmbedConfig | None = None


class RowView(Struct, frozen=True):
    """The requested parts of rows."""

    columns: frozenset[str] = frozenset()
    """Names of columns; empty means all."""
    float_decimals: int = 0
    """Decimals of numbers; 0 means all."""
    vec_decimals: int = 0
    """Decimals of vectors; 0 means all; below 0 means no vectors."""


# --- columns ------------------------------------------------------------------------------------------------


def encode_columns(columns: Sequence[NewJamaiColumn]) -> tuple[tuple[str, str], ...]:
    """Returns the attributes of a table with these columns. Raises a RequestError."""
    taken_names = {name.casefold() for name in FIXED_COLUMNS}
    for index, column in enumerate(columns):
        _require_supported(column, f"cols[{index}]")
        if column.id.casefold() in taken_names:
            raise InvalidValue(
                f"cols[{index}].id must be another name: every knowledge table has the columns "
                f"{', '.join(FIXED_COLUMNS)}, and a name cannot be used twice",
                param=f"cols[{index}].id",
            )
        taken_names.add(column.id.casefold())
    if not columns:
        return ()
    return ((ATTRIBUTE, json.dumps({column.id: column.dtype for column in columns})),)


def _require_supported(column: NewJamaiColumn, path: str) -> None:
    """Raises a RequestError for an unsupported column."""
    if column.gen_config is not None:
        raise UnsupportedParameter(
            f"{path}.gen_config is not supported: no cells are generated; leave it out",
            param=f"{path}.gen_config",
        )
    if column.vlen != 0:
        raise UnsupportedParameter(
            f"{path}.vlen must be 0: the server makes the vectors of {TEXT} only", param=f"{path}.vlen"
        )
    if not column.id.isprintable() or column.id != column.id.strip() or column.id.endswith("_"):
        raise InvalidValue(
            f"{path}.id must have printable characters, no space at its ends and no _ at its end",
            param=f"{path}.id",
        )


def load_columns(info: TableInfo) -> Mapping[str, str]:
    """Returns the types of the caller's columns by name."""
    columns: Mapping[str, str] = json.loads(info.settings.attributes.get(ATTRIBUTE, "{}"))
    return columns


def build_columns(info: TableInfo) -> list[JamaiColumn]:
    model, dimensions = info.settings.embedding_model, info.settings.dimensions
    config = None if model is None else JamaiEmbedConfig(embedding_model=build_id(model))
    return [
        JamaiColumn(id=ID),
        JamaiColumn(id=UPDATED, dtype="date-time"),
        JamaiColumn(id=TITLE, index=True),
        JamaiColumn(id=TEXT, index=True),
        JamaiColumn(id=VECTOR, dtype="float16", vlen=dimensions, index=model is not None, gen_config=config),
        JamaiColumn(id=FILE),
        JamaiColumn(id=PAGE, dtype="int"),
        *(JamaiColumn(id=name, dtype=kind) for name, kind in load_columns(info).items()),
    ]


def require_columns(names: Sequence[str], info: TableInfo, param: str) -> frozenset[str]:
    """Returns the names as a set. Raises UnknownParameter if the table has no such column."""
    known_names = [column.id for column in build_columns(info)]
    for name in names:
        if name not in known_names:
            raise UnknownParameter(
                f"the table has no column {sanitize_key(name)!r}; it has {', '.join(known_names)}",
                param=param,
            )
    return frozenset(names)


# --- cells --------------------------------------------------------------------------------------------------


def read_row(
    row: Mapping[str, Any], columns: Mapping[str, str], path: str, chunk: ChunkInput | None = None
) -> ChunkInput:
    """Returns the chunk of a row. `columns`: the caller's columns. `path`: the row's path in the body.
    `chunk`: the current chunk of the row, if there is one. Raises a RequestError about the cell."""
    old_chunk = ChunkInput("") if chunk is None else chunk
    fields: dict[str, Any] = {}
    metadata = dict(old_chunk.metadata)
    for name, value in row.items():
        param = f"{path}.{sanitize_key(name)}"
        kind = _require_writable(name, columns, param)
        cell = None if value is None else _convert_cell(value, kind, param)
        if name in FIELDS:
            fields[FIELDS[name]] = "" if cell is None and name != PAGE else cell
        elif cell is None:
            metadata.pop(name, None)
        else:
            metadata[name] = cell if isinstance(cell, str) else json.dumps(cell)
    changed_chunk = replace(old_chunk, metadata=metadata, **fields)
    if not changed_chunk.text.strip():
        param = f"{path}.{TEXT}"
        raise MissingParameter(f"{param} is missing; send at least one word", param=param)
    return changed_chunk


def _require_writable(name: str, columns: Mapping[str, str], param: str) -> str:
    """Returns the type of a column. Raises a RequestError if it cannot be written."""
    kind = WRITABLE.get(name) or columns.get(name)
    if kind is not None:
        return kind
    if name in FIXED_COLUMNS:
        raise UnsupportedParameter(f"{param} cannot be written: the server sets it", param=param)
    names = ", ".join((*FIELDS, *columns))
    raise UnknownParameter(f"{param} is not a column of this table; you can write {names}", param=param)


def _convert_cell(value: object, kind: str, param: str) -> str | int | float | bool:
    """Converts a cell to the type of its column. Raises InvalidValue."""
    cell_type, description = KINDS[kind]
    try:
        cell: str | int | float | bool = msgspec.convert(value, cell_type)
    except msgspec.ValidationError:
        raise InvalidValue(
            f"{param} must be {description}; got {describe_value(value)}", param=param
        ) from None
    return cell


def copy_content(chunk: TextChunk) -> ChunkInput:
    """Returns the content of a chunk, for a change."""
    return ChunkInput(chunk.text, chunk.title, chunk.page, chunk.file_name, chunk.metadata)


def build_row(chunk: TextChunk, columns: Mapping[str, str], view: RowView) -> dict[str, Any]:
    """Builds a row. `columns`: the caller's columns. A row has a vector if its chunk has a vector and `view`
    shows it."""
    cells = dict(_iterate_cells(chunk, columns, view))
    visible_cells = {
        name: {"value": cell} for name, cell in cells.items() if not view.columns or name in view.columns
    }
    return {ID: chunk.id, UPDATED: to_datetime(chunk.updated_at), **visible_cells}


def _iterate_cells(
    chunk: TextChunk, columns: Mapping[str, str], view: RowView
) -> Iterator[tuple[str, object]]:
    yield TITLE, chunk.title
    yield TEXT, chunk.text
    if chunk.vector and view.vec_decimals >= 0:
        vector = struct.unpack(f"<{len(chunk.vector) // 4}f", chunk.vector)
        yield VECTOR, [_round(number, view.vec_decimals) for number in vector]
    yield FILE, chunk.file_name
    yield PAGE, chunk.page
    for name, kind in columns.items():
        cell = _parse_cell(chunk.metadata.get(name), kind)
        yield name, _round(cell, view.float_decimals) if isinstance(cell, float) else cell


def _parse_cell(text: str | None, kind: str) -> object:
    """Parses a cell by the type of its column. A text that is no valid value stays a text; chunks of the
    server's own API can contain such texts."""
    if text is None or kind == "str":
        return text
    with suppress(ValueError):
        return json.loads(text)
    return text


def _round(number: float, decimals: int) -> float:
    """Rounds a number; 0 decimals mean no rounding."""
    return number if decimals <= 0 else round(number, decimals)
