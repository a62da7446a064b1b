"""Expensive constraints by name. Each must be refused, or compiled within the limits."""

import json
from typing import Any

from antiphon.domain.request import Constraint, ConstraintKind

KIND = ConstraintKind
BOMB = "((a{1000}){1000}){1000}"

REGEXES = {
    "nested repeats": BOMB,
    "nested repeats of anything": "(?:(?:(?:.{1,99}a){1,99}b){1,99}c){1,99}",
    "nested stars": "(x+x+)+y",
    "many stars": "(.*a){30}",
    "an automaton of 2^40 states": "(a|b)*a(a|b){40}",
    "overlapping words": "(?:\\w{1,500}\\d{1,500}){1,500}",
    "optional and then again": "(?:a?){1000}a{1000}",
    "many alternatives": "|".join(f"{at}.*{at}" for at in range(3000)),
    "deep groups": "(" * 5000 + "a" + ")" * 5000,
    "a bomb behind what admission looks at": f"[xy]{{70}}{BOMB}",
}


def _nested(depth: int) -> Any:
    made: Any = {"type": "integer"}
    for _ in range(depth):
        made = {"type": "array", "items": made, "minItems": 1000, "maxItems": 1000}
    return made


def _record(names: int, of: int) -> Any:
    return {"type": "object", "properties": {f"a{index}": {"const": of * index} for index in range(names)}}


SCHEMAS: dict[str, Any] = {
    "a reference to itself": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    "a circle of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
    },
    "references that double": {
        "$ref": "#/$defs/d30",
        "$defs": {"d0": {"type": "null"}}
        | {
            f"d{at}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{at - 1}"}] * 2}
            for at in range(1, 31)
        },
    },
    "all of any of": {"allOf": [{"anyOf": [_record(at + 1, of) for of in range(10)]} for at in range(9)]},
    "a product of patterns": {
        "allOf": [{"type": "string", "pattern": f"^(.*{sign}.*){{9}}$"} for sign in "abcdefghij"]
    },
    "four thousand long values": {"enum": [f"{at} " * 12 for at in range(4000)]},
    "lists of thousands, four deep": _nested(4),
    "all optional": {"type": "object", "properties": {f"p{at}": True for at in range(128)}},
    "a long text with a pattern": {"type": "string", "pattern": "(a.*){50}", "maxLength": 7_900},
    "multiples in a wide range": {
        "type": "number",
        "multipleOf": 0.0001,
        "minimum": -(2**52),
        "maximum": 2**52,
    },
}
GRAMMARS = {
    "Lark in a circle": "start: a\na: b\nb: a",
    "Lark of two ways": 'start: start start | "a" | "aa"',
    "Lark with repeats": 'start: ((("a"~1..999)~1..999)~1..999)~1..999',
    "Lark with a bomb": f"start: /{BOMB}/",
    "Lark with many rules": "\n".join(
        ["start: r0", *(f'r{at}: r{at + 1} "x" | "y"' for at in range(3000)), 'r3000: "z"']
    ),
    "GBNF, deep": "root ::= " + "(" * 9000 + '"a"' + ")" * 9000,
    "GBNF, left recursion": 'root ::= root "a" | root root | "b"',
    "GBNF with repeats": 'root ::= ((("a"{1,999}){1,999}){1,999}){1,999}',
    "GBNF, a million": 'root ::= "a"{1000000}',
}
HOSTILE = (
    {name: Constraint(KIND.REGEX, source) for name, source in REGEXES.items()}
    | {name: Constraint(KIND.JSON_SCHEMA, json.dumps(schema)) for name, schema in SCHEMAS.items()}
    | {
        name: Constraint(KIND.GBNF if "::=" in source else KIND.LARK, source)
        for name, source in GRAMMARS.items()
    }
)
