"""How a dialect describes itself for the OpenAPI document: schemas from its wire types, with the table of
fields in the margin, and the operations over them."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antiphon.dialects.table import Standing, Table

REF = "#/components/schemas/{name}"


def schemas_of(
    shapes: Iterable[type[msgspec.Struct]],
    tables: Mapping[str, Table],
    examples: Mapping[str, object],
    prefix: str = "",
) -> dict[str, dict[str, Any]]:
    """The schemas of wire types and of all that they hold, under `prefix` and their names. `tables` and
    `examples` are by the name of the type, without the prefix: the table of its fields, a body that is taken.
    """
    template = REF.format(name=f"{prefix}{{name}}")
    _, schemas = msgspec.json.schema_components(shapes, ref_template=template)
    for name, table in tables.items():
        _annotate(schemas[name], table)
    for name, example in examples.items():
        schemas[name]["examples"] = [example]
    return {f"{prefix}{name}": schema for name, schema in schemas.items()}


def _annotate(schema: dict[str, Any], table: Table) -> None:
    """Gives each property its sentence, and lists what else is known."""
    for name, field in table.items():
        if field.opaque:
            schema["properties"][name] = {}
        if name in schema["properties"]:
            ignored = "Accepted and ignored: " if field.standing is Standing.IGNORED else ""
            schema["properties"][name]["description"] = ignored + field.says
    schema["x-antiphon-refused"] = {
        name: {"says": field.says, "taken": list(field.harmless)}
        for name, field in table.items()
        if field.standing is Standing.REFUSED
    }


def field_names(shapes: Iterable[type[msgspec.Struct]], tables: Iterable[Table] = ()) -> frozenset[str]:
    """Names of all fields that requests have: of the wire types that refuse unknown fields, which answers' do
    not, of all that they hold, and of tables."""
    requests = [shape for shape in shapes if shape.__struct_config__.forbid_unknown_fields]
    _, schemas = msgspec.json.schema_components(requests, ref_template=REF)
    return frozenset(name for schema in schemas.values() for name in schema.get("properties", ())).union(
        *tables
    )


def operation(
    summary: str, tag: str, body: str | None = None, answers: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """One operation: the schema of its body, if it takes one, and by media type those of its answers."""
    content = {
        media: {"schema": {"$ref": REF.format(name=schema)}} for media, schema in (answers or {}).items()
    }
    described: dict[str, Any] = {
        "summary": summary,
        "tags": [tag],
        "responses": {"200": {"description": "The answer", "content": content}},
    }
    if body is not None:
        schema = {"schema": {"$ref": REF.format(name=body)}}
        described["requestBody"] = {"required": True, "content": {"application/json": schema}}
    return described


def generation(summary: str, body: str, answer: str, chunk: str) -> dict[str, Any]:
    """An operation that generates, buffered or streamed."""
    answers = {"application/json": answer, "text/event-stream": chunk}
    return operation(summary, "completions", body, answers)


def json_answer(schema: str) -> dict[str, str]:
    """The answers of an operation that has one schema."""
    return {"application/json": schema}
