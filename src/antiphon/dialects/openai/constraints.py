"""The fields that say what an answer must look like, as one constraint: exactly one of them, or none."""

import json
from collections.abc import Iterator
from typing import Any

from antiphon.constraints.spacing import require_whitespace
from antiphon.dialects.openai.wire import Common, NamedSchema, ResponseFormat, StructuredOutputs
from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.errors import InvalidValue, MissingParameter

JSON = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})
"""Kinds that a whitespace pattern means something to."""

EMPTY = (StructuredOutputs(), StructuredOutputs(json_object=False))
"""What would constrain nothing."""

UNSHOWN = ("name", "description")
"""Of a named schema what is for the model to read, which is shown none of it."""


def asked_constraint(wire: Common) -> Constraint | None:
    """What each choice must look like. Raises InvalidValue where two fields say so."""
    said = [*formatted(wire.response_format), *_guided(wire), *_structured(wire.structured_outputs)]
    if len(said) > 1:
        both = " and ".join(one.field for one in said[:2])
        raise InvalidValue(f"{both} exclude each other; send one of them", param=said[1].field)
    pattern, field = _whitespace(wire)
    if pattern is None:
        return said[0] if said else None
    if not said or said[0].kind not in JSON:
        raise InvalidValue(f"{field} is taken only together with a constraint of JSON", param=field)
    require_whitespace(pattern, field)
    return Constraint(said[0].kind, said[0].source, pattern, said[0].field)


def formatted(asked: ResponseFormat | None) -> Iterator[Constraint]:
    """The constraint that a response format is, if it is one. Raises a RequestError."""
    if asked is None:
        return
    where = "response_format"
    if (asked.json_schema is not None) > (asked.type == "json_schema"):
        raise InvalidValue(
            f"{where}.json_schema is taken only with type json_schema", param=f"{where}.json_schema"
        )
    if (asked.schema is not None) > (asked.type == "json_object"):
        raise InvalidValue(f"{where}.schema is taken only with type json_object", param=f"{where}.schema")
    if asked.type == "json_schema":
        if asked.json_schema is None:
            raise MissingParameter(f"{where}.json_schema is missing", param=f"{where}.json_schema")
        yield _schema(asked.json_schema.schema, f"{where}.json_schema.schema")
    elif asked.schema is not None:
        if asked.schema.get("type", "object") != "object":
            raise InvalidValue(f"{where}.schema must be of type object", param=f"{where}.schema")
        yield _schema({"type": "object"} | asked.schema, f"{where}.schema")
    elif asked.type == "json_object":
        yield Constraint(ConstraintKind.JSON_OBJECT, field=where)


def unread(asked: NamedSchema | str | None) -> tuple[str, ...]:
    """The fields of `response_format.json_schema` that are there and do nothing."""
    if not isinstance(asked, NamedSchema):
        return ()
    return tuple(
        f"response_format.json_schema.{name}" for name in UNSHOWN if getattr(asked, name) is not None
    )


def _guided(wire: Common) -> Iterator[Constraint]:
    if wire.guided_json is not None:
        yield _schema(wire.guided_json, "guided_json")
    yield from _texts(wire.guided_regex, wire.guided_choice, wire.guided_grammar, "guided_")


def _structured(asked: StructuredOutputs | None) -> Iterator[Constraint]:
    if asked is None:
        return
    where = "structured_outputs."
    if asked in EMPTY:
        raise InvalidValue(
            "structured_outputs holds no constraint: send json, regex, choice, grammar or json_object: true, "
            "or leave it out",
            param="structured_outputs",
        )
    if asked.json is not None:
        yield _schema(asked.json, f"{where}json")
    if asked.json_object:
        yield Constraint(ConstraintKind.JSON_OBJECT, field=f"{where}json_object")
    yield from _texts(asked.regex, asked.choice, asked.grammar, where)


def _texts(
    regex: str | None, choice: list[str] | None, grammar: str | None, where: str
) -> Iterator[Constraint]:
    if regex is not None:
        yield Constraint(ConstraintKind.REGEX, regex, field=f"{where}regex")
    if choice is not None:
        yield Constraint(ConstraintKind.CHOICE, _dumped(choice, f"{where}choice"), field=f"{where}choice")
    if grammar is not None:
        yield grammar_of(grammar, f"{where}grammar")


def grammar_of(text: str, field: str) -> Constraint:
    """A grammar in llama.cpp's notation, or else in Lark's."""
    return Constraint(ConstraintKind.GBNF if "::=" in text else ConstraintKind.LARK, text, field=field)


def _schema(given: dict[str, Any] | bool | str, field: str) -> Constraint:
    source = given if isinstance(given, str) else _dumped(given, field)
    return Constraint(ConstraintKind.JSON_SCHEMA, source, field=field)


def _dumped(value: object, field: str) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        raise InvalidValue(f"{field} is nested too deep", param=field) from None


def _whitespace(wire: Common) -> tuple[str | None, str]:
    """The whitespace pattern and its field. Raises InvalidValue where two fields say one."""
    structured, usual = wire.structured_outputs, "guided_whitespace_pattern"
    if structured is None or structured.whitespace_pattern is None:
        return wire.guided_whitespace_pattern, usual
    field = "structured_outputs.whitespace_pattern"
    if wire.guided_whitespace_pattern is not None:
        raise InvalidValue(f"{usual} and {field} exclude each other; send one of them", param=field)
    return structured.whitespace_pattern, field
