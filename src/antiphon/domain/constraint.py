"""What generated text must look like, as the caller said it: the source of a grammar. Values only; how it
becomes masks is in `constraints` and in the engines."""

from dataclasses import dataclass, field
from enum import StrEnum


class ConstraintKind(StrEnum):
    """In which language a constraint is written."""

    JSON_OBJECT = "json_object"
    """Any JSON object; has no source."""
    JSON_SCHEMA = "json_schema"
    """JSON that a schema accepts; the source is the schema as JSON."""
    REGEX = "regex"
    """A text that a regular expression matches as a whole."""
    CHOICE = "choice"
    """One of several texts; the source is a JSON list of them."""
    LARK = "lark"
    """A text of a context-free grammar in Lark's notation."""
    GBNF = "gbnf"
    """The same in llama.cpp's notation."""
    CALLS = "calls"
    """Calls of functions, perhaps in free text; the source is what `constraints.grammar` reads."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint. There is no lenient form: what cannot be kept is refused."""

    kind: ConstraintKind
    source: str = ""
    whitespace: str | None = None
    """Only for JSON: a regular expression for what may stand, once or not at all, wherever JSON allows
    whitespace. None is one space after each comma and colon, and none elsewhere."""
    field: str = field(default="response_format", compare=False)
    """What the caller calls it; errors name it."""
    prelude: str = ""
    """What stands before it, as `constraints.grammar.Prelude` writes it: a model's reasoning. Made by the
    renderer, never by a caller; empty is nothing."""
