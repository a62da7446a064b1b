"""What dialects have in common: their part of the OpenAPI document, and the names of their fields."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.dialects.base import Description, DialectDefaults, Endpoint
from antiphon.dialects.common.field_table import FieldTable
from antiphon.dialects.common.fields import FIELD_TABLE as OPENAI
from antiphon.dialects.common.openapi_schemas import (
    build_schemas,
    list_body_shapes,
    list_field_names,
    list_parameters,
    list_shapes,
    name_schema,
)
from antiphon.domain.ledger import NOTHING


class DescribedDialect(DialectDefaults):
    """A dialect that is described by its endpoints, its field table and the wire type of its errors."""

    endpoints: tuple[Endpoint, ...]
    field_table: FieldTable
    shared_table: FieldTable | None = OPENAI
    """The fields of wire types that the dialect shares with others; None if it shares none."""
    error_type: type[Struct]
    examples: Mapping[str, object] = NOTHING
    """Valid bodies, by the names of their wire types."""
    schema_prefix = ""
    """The prefix of the dialect's schema names."""

    def describe(self) -> Description:
        shared_schemas = {} if self.shared_table is None else self.shared_table.schemas
        schemas = build_schemas(
            (*list_shapes(self.endpoints), self.error_type),
            {**shared_schemas, **self.field_table.schemas},
            self.examples,
            self.schema_prefix,
        )
        self.adapt_schemas(schemas)
        return Description(
            schemas, self.schema_prefix, name_schema(self.error_type.__name__, self.schema_prefix)
        )

    def adapt_schemas(self, schemas: dict[str, dict[str, Any]]) -> None:
        """Changes schemas where the dialect accepts more than a wire type says."""

    def list_fields(self) -> frozenset[str]:
        shared_tables = {} if self.shared_table is None else self.shared_table.tables
        tables = (*self.field_table.tables.values(), *shared_tables.values())
        parameters = {
            str(parameter["name"]) for endpoint in self.endpoints for parameter in list_parameters(endpoint)
        }
        return list_field_names(list_body_shapes(self.endpoints), tables) | parameters
