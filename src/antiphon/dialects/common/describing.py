"""Schemas for the OpenAPI document, made from the wire types that endpoints name, with the table of fields in
the margin."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antiphon.dialects.base import Endpoint
from antiphon.dialects.common.field_table import FieldSupport, Table

REF = "#/components/schemas/{name}"
BRACES = re.compile(r"\{(\w+)(?::\w+)?\}")


def schemas_of(
    shapes: Iterable[object],
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
            ignored = "Accepted and ignored: " if field.standing is FieldSupport.IGNORED else ""
            schema["properties"][name]["description"] = ignored + field.says
    schema["x-antiphon-refused"] = {
        name: {"says": field.says, "taken": list(field.harmless)}
        for name, field in table.items()
        if field.standing is FieldSupport.REFUSED
    }


def field_names(bodies: Iterable[object], tables: Iterable[Table] = ()) -> frozenset[str]:
    """Names of all fields that requests have: of the wire types of their bodies, of all that those hold, and
    of tables."""
    _, schemas = msgspec.json.schema_components(bodies, ref_template=REF)
    return frozenset(name for schema in schemas.values() for name in schema.get("properties", ())).union(
        *tables
    )


def shapes_of(endpoints: Iterable[Endpoint]) -> list[object]:
    """Wire types of all bodies and answers."""
    found: list[Any] = []
    for endpoint in endpoints:
        found += [
            *body_shapes([endpoint]),
            *(each for each in endpoint.answers.values() if not isinstance(each, Mapping)),
        ]
    return list(dict.fromkeys(found))


def body_shapes(endpoints: Iterable[Endpoint]) -> list[object]:
    """Wire types of all bodies."""
    return [each.body.shape for each in endpoints if each.body is not None and each.body.shape is not None]


def schema_of(shape: object, prefix: str = "") -> Mapping[str, Any]:
    """The schema of a wire type, whose parts have names that begin with `prefix`; a schema as it is."""
    if isinstance(shape, Mapping):
        return shape
    template = REF.format(name=f"{prefix}{{name}}")
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=template)
    return schema


def parameters_of(endpoint: Endpoint) -> list[Mapping[str, Any]]:
    """Those of the path, then those of the query, as OpenAPI has them."""
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in BRACES.findall(endpoint.path)
    ]
    return [*named, *endpoint.parameters]


def operation_of(endpoint: Endpoint, prefix: str = "") -> dict[str, Any]:
    """An endpoint as OpenAPI has it. `prefix`: beginning of the names of its schemas."""
    content = {media: {"schema": schema_of(shape, prefix)} for media, shape in endpoint.answers.items()}
    said = "The answer" if content else "Done"
    described: dict[str, Any] = {
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {str(status): {"description": said, "content": content} for status in endpoint.statuses},
    }
    if endpoint.description:
        described["description"] = endpoint.description
    if endpoint.right is None:
        described["security"] = []
    if parameters := parameters_of(endpoint):
        described["parameters"] = parameters
    if endpoint.body is not None:
        schema = {"schema": schema_of(endpoint.body.shape, prefix)}
        described["requestBody"] = {"required": True, "content": {endpoint.body.media_type: schema}}
    return described
