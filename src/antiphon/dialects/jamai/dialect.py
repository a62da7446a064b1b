"""JamAI Base's dialect: its endpoints, those of knowledge tables included, and its part of the OpenAPI
document."""

from collections.abc import Mapping
from typing import Any

from antiphon.dialects.base import DialectOptions, Endpoint
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.http_types import Headers, Request
from antiphon.dialects.jamai.errors import build_limit_headers, encode_jamai_error, get_error_name
from antiphon.dialects.jamai.features import declare_features
from antiphon.dialects.jamai.fields import FIELD_TABLE, TABLES, JamaiScope
from antiphon.dialects.jamai.generation import DIALECT, JamaiGeneration
from antiphon.dialects.jamai.models import declare_models
from antiphon.dialects.jamai.organization import declare_health, declare_projects
from antiphon.dialects.jamai.page import PAGE
from antiphon.dialects.jamai.rows import declare_rows, declare_search
from antiphon.dialects.jamai.tables import declare_files, declare_tables
from antiphon.dialects.jamai.tokens import declare_tokens
from antiphon.dialects.jamai.wire_types import JamaiError
from antiphon.domain.tenancy import DEFAULT_PROJECT
from antiphon.errors import AntiphonError

EXAMPLES: Mapping[str, object] = {
    "JamaiChatRequest": {"model": "antiphon/cantor", "messages": [{"role": "user", "content": "Hello!"}]},
}


def declare_knowledge(max_file_bytes: int | None) -> tuple[Endpoint, ...]:
    """Declares the endpoints of knowledge tables. `max_file_bytes`: the largest file; None means the server's
    limit of bodies."""
    return (*declare_tables(), *declare_rows(), *declare_files(max_file_bytes), declare_search())


class Jamai(DescribedDialect):
    """JamAI Base's dialect. It has no state, so one value serves every request."""

    name = DIALECT
    prefix = "/jamai"
    field_table = FIELD_TABLE
    error_type = JamaiError
    examples = EXAMPLES
    schema_prefix = "Jamai"
    page = PAGE
    placeholder_project = DEFAULT_PROJECT
    chooses_project = True

    def __init__(
        self,
        report_unknown: bool = False,
        strict_schemas: bool = False,
        has_keys: bool = True,
        max_file_bytes: int | None = None,
    ) -> None:
        self.endpoints = (
            *JamaiGeneration(report_unknown, strict_schemas).declare(),
            *declare_models(),
            *declare_projects(),
            *(declare_tokens() if has_keys else ()),
            declare_health(),
            *declare_knowledge(max_file_bytes),
            *declare_features(has_keys),
        )

    @classmethod
    def create(cls, options: DialectOptions) -> "Jamai":
        return cls(options.report_unknown, options.strict_schemas, options.has_keys, options.max_file_bytes)

    def get_status(self, error: AntiphonError) -> int:
        return get_error_name(error).status

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_jamai_error(error, request)

    def build_error_headers(self, error: AntiphonError, request: Request, now: float) -> Headers:
        return build_limit_headers(error, now)

    def adapt_schemas(self, schemas: dict[str, dict[str, Any]]) -> None:
        """Adapts the schemas of OpenAI's messages and tools to the forms that this dialect also accepts."""
        message, text, tool = (schemas[f"Jamai{name}"] for name in ("ChatMessage", "TextPart", "ToolShape"))
        tool["required"].remove("type")
        text["properties"]["text"]["type"] = ["string", "null"]
        for name, field in TABLES[JamaiScope.MESSAGE].items():
            message["properties"][name]["description"] = field.description
        for schema in message["properties"]["content"]["anyOf"]:
            schema.pop("minItems", None)
        for schema in message["properties"]["name"]["anyOf"]:
            schema.pop("minLength", None)
