"""The dialect's part of the OpenAPI document: every reference resolves, every known field is told."""

import json

from jsonschema import Draft202012Validator

from antiphon.dialects.common.field_table import FieldSupport
from antiphon.dialects.common.fields import FIELD_TABLE
from antiphon.dialects.common.openapi_schemas import build_operation
from antiphon.dialects.openai import tokens
from antiphon.dialects.openai.dialect import OpenAI, OpenAIChatCompletions, OpenAICompletions
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings

DIALECT = OpenAI()
DESCRIBED = DIALECT.describe()


def test_every_endpoint_is_described():
    for endpoint in DIALECT.endpoints:
        assert endpoint.summary and endpoint.tag and endpoint.answers
        assert (endpoint.method == "POST") == (endpoint.body is not None)


def test_every_schema_is_one_and_every_reference_leads_somewhere():
    for schema in DESCRIBED.schemas.values():
        Draft202012Validator.check_schema(schema)
    text = json.dumps(
        [*(build_operation(endpoint, DESCRIBED.prefix) for endpoint in DIALECT.endpoints), DESCRIBED.schemas]
    )
    named = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= DESCRIBED.schemas.keys() and DESCRIBED.error_schema in DESCRIBED.schemas


def test_every_field_of_the_table_is_told():
    for name, table in FIELD_TABLE.schemas.items():
        schema = DESCRIBED.schemas[name]
        assert schema["additionalProperties"] is False
        for field in table.values():
            if field.support is FieldSupport.REFUSED:
                assert schema["x-antiphon-refused"][field.name]["says"] == field.description
            else:
                assert field.description in schema["properties"][field.name]["description"]


def test_examples_pass_their_own_schemas_and_the_decoder():
    decoders = {
        "ChatCompletionRequest": OpenAIChatCompletions(report_unknown=False).decode,
        "CompletionRequest": OpenAICompletions(report_unknown=False).decode,
        "TokenizeRequest": tokens.decode_tokenize,
        "DetokenizeRequest": tokens.decode_detokenize,
        "EmbeddingsRequest": OpenAIEmbeddings().decode,
    }
    for name, decode in decoders.items():
        (example,) = DESCRIBED.schemas[name]["examples"]
        resolver = {
            "$ref": f"#/components/schemas/{name}",
            "components": {"schemas": dict(DESCRIBED.schemas)},
        }
        Draft202012Validator(resolver).validate(example)
        decode(json.dumps(example).encode())
