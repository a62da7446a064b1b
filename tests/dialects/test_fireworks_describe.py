"""The dialect's part of the OpenAPI document: every reference resolves, every known field is told."""

import json

from jsonschema import Draft202012Validator

from antiphon.dialects.fireworks.describe import EXAMPLES, NAME, REQUESTS, describe
from antiphon.dialects.fireworks.dialect import Fireworks
from antiphon.dialects.openai.describe import describe as describe_own
from antiphon.dialects.table import Standing

DESCRIBED = describe()


def test_every_operation_is_described_below_the_prefix():
    dialect = Fireworks()
    paths = {operation.path for operation in dialect.operations}
    paths |= {dialect.models.path, f"{dialect.models.path}/{{model}}"}
    assert DESCRIBED.paths.keys() == paths
    assert all(path.startswith(f"{dialect.prefix}/") for path in paths)


def test_every_reference_leads_somewhere_and_no_name_is_another_dialects():
    for schema in DESCRIBED.schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps([DESCRIBED.paths, DESCRIBED.schemas])
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= DESCRIBED.schemas.keys() and DESCRIBED.error_schema in DESCRIBED.schemas
    assert DESCRIBED.schemas.keys().isdisjoint(describe_own().schemas)


def test_every_field_of_the_tables_is_told():
    for name, table in REQUESTS.items():
        schema = DESCRIBED.schemas[NAME + name]
        assert schema["additionalProperties"] is False
        for field in table.values():
            if field.standing is Standing.REFUSED:
                assert schema["x-antiphon-refused"][field.name]["says"] == field.says
            else:
                assert field.says in schema["properties"][field.name]["description"]
        told = {field.name for field in table.values() if field.standing is not Standing.REFUSED}
        assert schema["properties"].keys() == told


def test_examples_are_taken():
    text, chat = Fireworks().operations
    decoders = {"CompletionRequest": text.decode, "ChatCompletionRequest": chat.decode}
    for name, example in EXAMPLES.items():
        schema = {
            "$ref": f"#/components/schemas/{NAME}{name}",
            "components": {"schemas": dict(DESCRIBED.schemas)},
        }
        Draft202012Validator(schema).validate(example)
        decoders[name](json.dumps(example).encode())
