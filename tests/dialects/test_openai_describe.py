"""The dialect's part of the OpenAPI document: every reference resolves, every known field is told."""

import json

from jsonschema import Draft202012Validator

from antiphon.dialects.openai.describe import REQUESTS, describe
from antiphon.dialects.openai.dialect import OpenAI
from antiphon.dialects.openai.fields import TABLES
from antiphon.dialects.table import Standing

DESCRIBED = describe()


def test_every_operation_is_described():
    dialect = OpenAI()
    paths = {operation.path for operation in dialect.operations}
    paths |= {dialect.models.path, f"{dialect.models.path}/{{model}}"}
    tokens = dialect.tokens
    paths |= {*tokens.tokenize_paths, *tokens.detokenize_paths, *tokens.apply_paths, tokens.tokenizer_path}
    paths |= {dialect.embeddings.path}
    paths |= {dialect.adapters.load_path, dialect.adapters.unload_path}
    assert DESCRIBED.paths.keys() == paths


def test_every_schema_is_one_and_every_reference_leads_somewhere():
    for schema in DESCRIBED.schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps([DESCRIBED.paths, DESCRIBED.schemas])
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= DESCRIBED.schemas.keys() and DESCRIBED.error_schema in DESCRIBED.schemas


def test_every_field_of_the_table_is_told():
    for name, place in REQUESTS.items():
        schema = DESCRIBED.schemas[name]
        assert schema["additionalProperties"] is False
        for field in TABLES[place].values():
            if field.standing is Standing.REFUSED:
                assert schema["x-antiphon-refused"][field.name]["says"] == field.says
            else:
                assert field.says in schema["properties"][field.name]["description"]


def test_examples_are_taken_by_their_own_schemas_and_by_the_decoder():
    dialect = OpenAI()
    decoders = {
        "ChatCompletionRequest": dialect.operations[0].decode,
        "CompletionRequest": dialect.operations[1].decode,
        "TokenizeRequest": dialect.tokens.decode_tokenize,
        "DetokenizeRequest": dialect.tokens.decode_detokenize,
        "EmbeddingsRequest": dialect.embeddings.decode,
    }
    for name, decode in decoders.items():
        (example,) = DESCRIBED.schemas[name]["examples"]
        resolver = {
            "$ref": f"#/components/schemas/{name}",
            "components": {"schemas": dict(DESCRIBED.schemas)},
        }
        Draft202012Validator(resolver).validate(example)
        decode(json.dumps(example).encode())
