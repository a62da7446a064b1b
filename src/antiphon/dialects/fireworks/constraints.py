"""`response_format` as a constraint."""

from typing import Any

from antiphon.dialects.common.constraint_fields import RelaxedConstraint, build_grammar, read_response_format
from antiphon.dialects.common.request_types import NamedSchema
from antiphon.dialects.common.request_types import ResponseFormat as SupersetFormat
from antiphon.dialects.common.strict_json import read_object
from antiphon.dialects.fireworks.wire import FireworksResponseFormat
from antiphon.errors import InvalidValue, MalformedBody, MissingParameter

WHERE = "response_format"


def read_fireworks_format(asked: FireworksResponseFormat | None, strict: bool) -> RelaxedConstraint:
    """What each choice must look like; with `strict` every keyword of a schema has to be kept. Raises a
    RequestError."""
    if asked is None:
        return RelaxedConstraint(None)
    for kind, field in (("json_object", "schema"), ("json_schema", "json_schema"), ("grammar", "grammar")):
        if getattr(asked, field) is not None and asked.type != kind:
            raise InvalidValue(f"{WHERE}.{field} is taken only with type {kind}", param=f"{WHERE}.{field}")
    if asked.type == "grammar":
        if asked.grammar is None:
            raise MissingParameter(f"{WHERE}.grammar is missing", param=f"{WHERE}.grammar")
        return RelaxedConstraint(build_grammar(asked.grammar, f"{WHERE}.grammar"))
    schema, named = asked.schema, asked.json_schema
    if isinstance(schema, str):
        schema = _read_schema(schema, f"{WHERE}.schema")
    if isinstance(named, str):
        named = NamedSchema(_read_schema(named, f"{WHERE}.json_schema"))
    return next(
        read_response_format(SupersetFormat(asked.type, named, schema), strict), RelaxedConstraint(None)
    )


def _read_schema(text: str, where: str) -> dict[str, Any]:
    """The schema that a text is."""
    try:
        return read_object(text.encode())
    except MalformedBody:
        raise InvalidValue(f"{where} must be a JSON Schema, as an object or as a text", param=where) from None
