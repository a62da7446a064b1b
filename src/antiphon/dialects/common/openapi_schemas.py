"""Builds schemas and operations for the OpenAPI document from endpoints, their wire types and field
tables."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from antiphon.dialects.base import Endpoint
from antiphon.dialects.common.field_table import FieldSupport, Table

REF = "#/components/schemas/{name}"

BRACES = re.compile(r"\{(\w+)(?::\w+)?\}")


def build_schemas(
    shapes: Iterable[object],
    tables: Mapping[str, Table],
    examples: Mapping[str, object],
    prefix: str = "",
) -> dict[str, dict[str, Any]]:
    """Builds the schemas of wire types and of all types that they contain.

    A schema has the name of its type. `prefix` is added unless the type's name starts with it. `tables` and
    `examples`: field tables and valid bodies, by the type's name.
    """
    _, schemas = _build_components(shapes, prefix)
    for name, schema in schemas.items():
        if "title" in schema:
            schema["title"] = name.removeprefix(prefix)
    for name in schemas.keys() & tables.keys():
        _annotate(schemas[name], tables[name])
    for name, example in examples.items():
        schemas[name]["examples"] = [example]
    return {name_schema(name, prefix): schema for name, schema in schemas.items()}


def name_schema(name: str, prefix: str) -> str:
    """Returns the schema name of a type."""
    return name if name.startswith(prefix) else prefix + name


def _build_components(
    shapes: Iterable[object], prefix: str
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Returns the schema of each type, and the schemas of all contained types by name."""
    schemas_and_components = msgspec.json.schema_components(
        shapes, ref_template=REF.format(name=f"{prefix}{{name}}")
    )
    if not prefix:
        return schemas_and_components
    schemas, components = msgspec.json.decode(
        msgspec.json.encode(schemas_and_components).replace(f"{prefix}{prefix}".encode(), prefix.encode())
    )
    return tuple(schemas), components


def _annotate(schema: dict[str, Any], table: Table) -> None:
    """Adds the description of each property to a schema, and lists the refused fields."""
    for name, field in table.items():
        if field.opaque:
            schema["properties"][name] = {}
        if name in schema["properties"]:
            ignored = "Accepted and ignored: " if field.support is FieldSupport.IGNORED else ""
            schema["properties"][name]["description"] = ignored + field.description
    schema["x-antiphon-refused"] = {
        name: {"says": field.description, "taken": list(field.accepted_values)}
        for name, field in table.items()
        if field.support is FieldSupport.REFUSED
    }


def list_field_names(bodies: Iterable[object], tables: Iterable[Table] = ()) -> frozenset[str]:
    """Returns the names of all request fields: of the bodies' wire types, of the types that they contain, and
    of the tables."""
    return _list_property_names(tuple(bodies)).union(*tables)


@cache
def _list_property_names(shapes: tuple[object, ...]) -> frozenset[str]:
    """Returns the names of all properties. Building the schemas takes a tenth of a second of CPU."""
    _, schemas = msgspec.json.schema_components(shapes, ref_template=REF)
    return frozenset(name for schema in schemas.values() for name in schema.get("properties", ()))


def list_shapes(endpoints: Iterable[Endpoint]) -> list[object]:
    """Returns the wire types of all bodies and answers."""
    shapes: list[Any] = []
    for endpoint in endpoints:
        shapes += [
            *list_body_shapes([endpoint]),
            *(shape for shape in endpoint.answers.values() if not isinstance(shape, Mapping)),
        ]
    return list(dict.fromkeys(shapes))


def list_body_shapes(endpoints: Iterable[Endpoint]) -> list[object]:
    """Returns the wire types of all bodies."""
    return [
        endpoint.body.shape
        for endpoint in endpoints
        if endpoint.body is not None and endpoint.body.shape is not None
    ]


def build_schema(shape: object, prefix: str = "") -> Mapping[str, Any]:
    """Returns the schema of a wire type; a mapping is a schema already, and is returned. `prefix`: the start
    of the names of contained types."""
    if isinstance(shape, Mapping):
        return shape
    (schema,), _ = _build_components([shape], prefix)
    return schema


def list_parameters(endpoint: Endpoint) -> list[Mapping[str, Any]]:
    """Returns the path parameters, then the query parameters, in OpenAPI's form."""
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in BRACES.findall(endpoint.path)
    ]
    return [*parameters, *endpoint.parameters]


def build_operation(endpoint: Endpoint, prefix: str = "") -> dict[str, Any]:
    """Builds an operation in OpenAPI's form from an endpoint. `prefix`: the start of its schemas' names."""
    content = {media: {"schema": build_schema(shape, prefix)} for media, shape in endpoint.answers.items()}
    description = "The answer" if content else "Done"
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": {
            str(status): {"description": description, "content": content} for status in endpoint.statuses
        },
    }
    if endpoint.description:
        operation["description"] = endpoint.description
    if endpoint.right is None:
        operation["security"] = []
    if parameters := list_parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.body is not None:
        schema = {"schema": build_schema(endpoint.body.shape, prefix)}
        operation["requestBody"] = {"required": True, "content": {endpoint.body.media_type: schema}}
    return operation
