"""Builds one constraint from the fields response_format, guided_* and structured_outputs."""

import json
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from antiphon.bodies.strict_json import sanitize_key
from antiphon.constraints.json_schema.lowering import parse_json, relax_schema
from antiphon.constraints.regexes import require_whitespace
from antiphon.dialects.common.request_types import CommonRequest, ResponseFormat, StructuredOutputs
from antiphon.domain.request import Constraint, ConstraintKind, SchemaDeclaration
from antiphon.domain.values import Struct, replace
from antiphon.errors import InvalidValue, MissingParameter

JSON_KINDS = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})
"""The kinds of constraints that can have a whitespace pattern."""

EMPTY_VALUES = (StructuredOutputs(), StructuredOutputs(json_object=False))
"""Values of structured_outputs without a constraint."""

LARGEST_SOURCE = 262_144
"""The most characters of a schema that this module parses. The checker of constraints refuses larger
schemas."""


_get_constraint_fields = attrgetter(
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
    "structured_outputs",
)
"""Returns the values of all fields that can constrain a choice."""

NO_CONSTRAINT_FIELDS = (None,) * 7

MOST_KEYWORDS = 32
"""The most keywords in a response header."""


class RelaxedConstraint(Struct, frozen=True):
    """A constraint, and the keywords of its schema that are not enforced."""

    constraint: Constraint | None
    relaxed: tuple[str, ...] = ()


UNCONSTRAINED = RelaxedConstraint(None)


def read_constraint(
    wire: CommonRequest, strict: bool = False, dialect_constraints: Sequence[RelaxedConstraint] = ()
) -> RelaxedConstraint:
    """Reads the constraint of each choice. `strict`: every schema keyword must be enforced.
    `dialect_constraints`: constraints of fields that only the dialect has. Raises InvalidValue if two fields
    have a constraint."""
    if not dialect_constraints and _get_constraint_fields(wire) == NO_CONSTRAINT_FIELDS:
        return UNCONSTRAINED
    candidates = [
        *dialect_constraints,
        *read_response_format(wire.response_format, strict),
        *_read_guided(wire, strict),
    ]
    candidates += _read_structured(wire.structured_outputs, strict)
    constraints = [(each, each.constraint) for each in candidates if each.constraint is not None]
    if len(constraints) > 1:
        field_names = " and ".join(constraint.field for _, constraint in constraints[:2])
        raise InvalidValue(
            f"{field_names} exclude each other; send one of them", param=constraints[1][1].field
        )
    pattern, field = _read_whitespace(wire)
    if pattern is None:
        return constraints[0][0] if constraints else UNCONSTRAINED
    if not constraints or constraints[0][1].kind not in JSON_KINDS:
        raise InvalidValue(f"{field} is taken only together with a constraint of JSON", param=field)
    require_whitespace(pattern, field)
    relaxed_constraint, constraint = constraints[0]
    return replace(relaxed_constraint, constraint=replace(constraint, whitespace=pattern))


def read_response_format(
    response_format: ResponseFormat | None, strict: bool = False
) -> Iterator[RelaxedConstraint]:
    """Yields the constraint of a response format, if it has one. `strict`: every schema keyword must be
    enforced. Raises a RequestError."""
    if response_format is None:
        return
    field = "response_format"
    if (response_format.json_schema is not None) > (response_format.type == "json_schema"):
        raise InvalidValue(
            f"{field}.json_schema is taken only with type json_schema", param=f"{field}.json_schema"
        )
    if (response_format.schema is not None) > (response_format.type == "json_object"):
        raise InvalidValue(f"{field}.schema is taken only with type json_object", param=f"{field}.schema")
    if response_format.type == "json_schema":
        if response_format.json_schema is None:
            raise MissingParameter(f"{field}.json_schema is missing", param=f"{field}.json_schema")
        json_schema = response_format.json_schema
        schema_constraint = read_schema(
            json_schema.schema, f"{field}.json_schema.schema", strict or bool(json_schema.strict)
        )
        yield _complete_declaration(
            schema_constraint, json_schema.name, json_schema.description, json_schema.strict
        )
    elif response_format.schema is not None:
        if response_format.schema.get("type", "object") != "object":
            raise InvalidValue(f"{field}.schema must be of type object", param=f"{field}.schema")
        yield read_schema({"type": "object"} | response_format.schema, f"{field}.schema", strict)
    elif response_format.type == "json_object":
        yield RelaxedConstraint(Constraint(ConstraintKind.JSON_OBJECT, field=field))


def _read_guided(wire: CommonRequest, strict: bool) -> Iterator[RelaxedConstraint]:
    if wire.guided_json is not None:
        yield read_schema(wire.guided_json, "guided_json", strict)
    yield from _read_text_constraints(wire.guided_regex, wire.guided_choice, wire.guided_grammar, "guided_")


def _read_structured(structured: StructuredOutputs | None, strict: bool) -> Iterator[RelaxedConstraint]:
    """Yields the constraints of structured_outputs. Raises InvalidValue if it constrains nothing."""
    if structured is None:
        return
    field = "structured_outputs."
    if structured in EMPTY_VALUES:
        raise InvalidValue(
            "structured_outputs has no constraint: send json, regex, choice, grammar or json_object: true, "
            "or leave it out",
            param="structured_outputs",
        )
    if structured.json is not None:
        yield read_schema(structured.json, f"{field}json", strict)
    if structured.json_object:
        yield RelaxedConstraint(Constraint(ConstraintKind.JSON_OBJECT, field=f"{field}json_object"))
    yield from _read_text_constraints(structured.regex, structured.choice, structured.grammar, field)


def _read_text_constraints(
    regex: str | None, choice: list[str] | None, grammar: str | None, prefix: str
) -> Iterator[RelaxedConstraint]:
    """Yields the constraints of a regular expression, a choice of texts, and a grammar. `prefix`: the start
    of the fields' names."""
    if regex is not None:
        yield RelaxedConstraint(Constraint(ConstraintKind.REGEX, regex, field=f"{prefix}regex"))
    if choice is not None:
        source = _dump_json(choice, f"{prefix}choice")
        yield RelaxedConstraint(Constraint(ConstraintKind.CHOICE, source, field=f"{prefix}choice"))
    if grammar is not None:
        yield RelaxedConstraint(build_grammar_constraint(grammar, f"{prefix}grammar"))


def build_grammar_constraint(text: str, field: str) -> Constraint:
    """Builds a constraint from a grammar in llama.cpp's notation or in Lark's."""
    return Constraint(ConstraintKind.GBNF if "::=" in text else ConstraintKind.LARK, text, field=field)


def _complete_declaration(
    schema_constraint: RelaxedConstraint, name: str | None, description: str | None, strict: bool | None
) -> RelaxedConstraint:
    """Adds the caller's name, description and `strict` to the schema that vendors get."""
    constraint = schema_constraint.constraint
    if constraint is None or constraint.declared is None:
        return schema_constraint
    declared = replace(constraint.declared, name=name, description=description, strict=strict)
    return replace(schema_constraint, constraint=replace(constraint, declared=declared))


def read_schema(schema: dict[str, Any] | bool | str, field: str, strict: bool) -> RelaxedConstraint:
    """Builds the constraint of a schema. Removes the keywords that cannot be enforced, unless `strict` is
    true or the schema is very large."""
    source = schema if isinstance(schema, str) else _dump_json(schema, field)
    if strict or len(source) > LARGEST_SOURCE:
        return RelaxedConstraint(
            Constraint(ConstraintKind.JSON_SCHEMA, source, field=field, declared=SchemaDeclaration(source))
        )
    relaxed_schema, unenforced_keywords = relax_schema(
        parse_json(schema, field) if isinstance(schema, str) else schema, field
    )
    constraint = Constraint(
        ConstraintKind.JSON_SCHEMA,
        _dump_json(relaxed_schema, field),
        field=field,
        declared=SchemaDeclaration(source),
    )
    return RelaxedConstraint(constraint, name_keywords(field, unenforced_keywords))


def _dump_json(value: object, field: str) -> str:
    """Returns the value as JSON. Raises InvalidValue if it is nested too deeply."""
    try:
        return json.dumps(value)
    except RecursionError:
        raise InvalidValue(f"{field} is nested too deep", param=field) from None


def _read_whitespace(wire: CommonRequest) -> tuple[str | None, str]:
    """Returns the whitespace pattern and its field. Raises InvalidValue if two fields have one."""
    structured, guided_field = wire.structured_outputs, "guided_whitespace_pattern"
    if structured is None or structured.whitespace_pattern is None:
        return wire.guided_whitespace_pattern, guided_field
    field = "structured_outputs.whitespace_pattern"
    if wire.guided_whitespace_pattern is not None:
        raise InvalidValue(f"{guided_field} and {field} exclude each other; send one of them", param=field)
    return structured.whitespace_pattern, field


def name_keywords(field: str, keywords: Sequence[str]) -> tuple[str, ...]:
    """Returns the keywords, each with the name of the schema's field before it."""
    return tuple(f"{field}: {sanitize_key(name)}" for name in keywords)


def shorten_names(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names that fit a response header, and the number of other names."""
    if len(names) <= MOST_KEYWORDS:
        return tuple(names)
    return (*names[:MOST_KEYWORDS], f"and {len(names) - MOST_KEYWORDS} more")
