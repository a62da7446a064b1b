"""The dialect's part of the OpenAPI document: every reference resolves, every known field is told."""

import json

from jsonschema import Draft202012Validator

from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.common.fields import FIELD_TABLE as OPENAI
from antiphon.dialects.common.openapi_schemas import build_operation, name_schema
from antiphon.dialects.fireworks.dialect import (
    EXAMPLES,
    Fireworks,
    FireworksChatCompletions,
    FireworksCompletions,
)
from antiphon.dialects.fireworks.fields import FIELD_TABLE
from antiphon.dialects.openai.dialect import OpenAI

DIALECT = Fireworks()
DESCRIBED = DIALECT.describe()


def test_every_endpoint_is_described_and_below_the_prefix():
    for endpoint in DIALECT.endpoints:
        assert endpoint.path.startswith(f"{DIALECT.prefix}/") and endpoint.summary and endpoint.answers


def test_references_resolve_and_names_belong_to_one_dialect():
    for schema in DESCRIBED.schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(
        [*(build_operation(endpoint, DESCRIBED.prefix) for endpoint in DIALECT.endpoints), DESCRIBED.schemas]
    )
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= DESCRIBED.schemas.keys() and DESCRIBED.error_schema in DESCRIBED.schemas
    assert DESCRIBED.schemas.keys().isdisjoint(OpenAI().describe().schemas)


def test_every_field_of_the_tables_is_told():
    shared = {name_schema(name, DESCRIBED.prefix): table for name, table in OPENAI.schemas.items()}
    tables = {**shared, **FIELD_TABLE.schemas}
    for name in tables.keys() & DESCRIBED.schemas.keys():
        schema, table = DESCRIBED.schemas[name], tables[name]
        assert schema["additionalProperties"] is False
        for field in table.values():
            if field.support is FieldSupport.REFUSED:
                assert schema["x-antiphon-refused"][field.name]["says"] == field.description
            else:
                assert field.description in schema["properties"][field.name]["description"]
        told = {field.name for field in table.values() if field.support is not FieldSupport.REFUSED}
        assert schema["properties"].keys() == told


def test_examples_are_taken():
    text, chat = FireworksCompletions(report_unknown=False), FireworksChatCompletions(report_unknown=False)
    decoders = {"FireworksCompletionRequest": text.decode, "FireworksChatCompletionRequest": chat.decode}
    for name, example in EXAMPLES.items():
        schema = {
            "$ref": f"#/components/schemas/{name}",
            "components": {"schemas": dict(DESCRIBED.schemas)},
        }
        Draft202012Validator(schema).validate(example)
        decoders[name](json.dumps(example).encode())
