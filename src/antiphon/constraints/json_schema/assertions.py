"""Reads the keywords that contain no schemas: bounds, lengths, patterns, formats, constants and names."""

from collections.abc import Callable, Mapping
from typing import NoReturn

from antiphon.constraints.json_schema.keywords import (
    COMPILER_FORMATS,
    LARGEST,
    MAX_COUNT,
    MAX_VALUES,
    OWN_FORMATS,
    Json,
    is_exact,
    is_number,
    is_text_list,
    parse_count,
    round_inward,
    walk_values,
)
from antiphon.constraints.json_schema.schemas import Position, Relaxations, SchemaBuilder, reject_value
from antiphon.constraints.regexes import make_quotable, require_portable
from antiphon.errors import InvalidValue

COUNTS = tuple(
    "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains".split()
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

Handler = Callable[[str, Mapping[str, Json], Position, SchemaBuilder], None]
"""Reads one keyword of a schema into a builder. Its arguments: the keyword's name, the schema, the position
and the builder."""


class AssertionReader:
    """Reads the assertion keywords of one document."""

    def __init__(self, field_name: str, relaxations: Relaxations) -> None:
        self._field = field_name
        self._relaxations = relaxations
        self.handlers: Mapping[str, Handler] = {
            **dict.fromkeys(COUNTS, self._read_count),
            **dict.fromkeys(BOUNDS, self._read_bound),
            **dict.fromkeys(("multipleOf", "divisibleBy"), self._read_multiple),
            **dict.fromkeys(("const", "enum"), self._read_data),
            **dict.fromkeys(("dependentRequired", "dependencies"), self._read_dependent),
            "required": self._read_required,
            "pattern": self._read_pattern,
            "format": self._read_format,
            "uniqueItems": self._read_unique,
        }

    def make_compilable_pattern(self, keyword: str, pattern: str, position: Position) -> str | None:
        """Returns the pattern for the compiler. If it cannot be enforced, adds a relaxation and returns
        None."""
        try:
            require_portable(pattern, self._field)
            return make_quotable(pattern, self._field)
        except InvalidValue as problem:
            self._relaxations.add(keyword, position.place, f"it is not supported: {problem.message}")
            return None

    def require_text(self, name: str, value: Json, position: Position) -> str:
        """Returns the value if it is a text. Raises InvalidValue for any other value."""
        if not isinstance(value, str):
            self.reject(name, position, "must be a text")
        return value

    def reject(self, name: str, position: Position, problem: str) -> NoReturn:
        """Raises InvalidValue with the keyword, its place and the problem."""
        reject_value(name, position.place, self._field, problem)

    def _read_count(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a length or a number of items. A maximum above MAX_COUNT becomes MAX_COUNT, and the schema
        counts as inexact."""
        count = parse_count(schema[name])
        if count is None or (count > MAX_COUNT and name.startswith("min")):
            self.reject(name, position, f"must be an integer from 0 to {MAX_COUNT}")
        if count > MAX_COUNT:
            builder.mark_inexact()
        builder.add(name, min(count, MAX_COUNT))

    def _read_bound(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a bound. In draft 4, `exclusiveMinimum` is a boolean, and `minimum` has the bound."""
        value = schema[name]
        if isinstance(value, bool) and name.startswith("exclusive"):
            value = schema.get(name.removeprefix("exclusive").lower()) if value else None
            if value is None:
                return
        if not is_number(value) or not isinstance(value, int | float):
            self.reject(name, position, "must be a number that a double can hold")
        is_upper = name.lower().endswith("maximum")
        bound = round_inward(value, is_upper)
        if bound != value:
            builder.mark_inexact()
        if abs(value) > LARGEST and (value > 0) == is_upper:
            # The rounded bound is stricter than the original one, so it need not be exclusive.
            name = "maximum" if is_upper else "minimum"
        builder.add(name, bound)

    def _read_multiple(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `multipleOf` or its older name. Rejects a value that is not a positive exact number."""
        value = schema[name]
        if not is_exact(value) or not isinstance(value, int | float) or value <= 0:
            self.reject(name, position, "must be a number above 0, up to 2^53")
        builder.add("multipleOf", value)

    def _read_required(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the list of required names without duplicates. Ignores a boolean, which draft 3 allows."""
        value = schema["required"]
        if isinstance(value, bool):  # the reader of properties reads the boolean
            return
        if not is_text_list(value) or not isinstance(value, list):
            self.reject("required", position, "must be a list of texts")
        builder.add("required", list(dict.fromkeys(value)))

    def _read_data(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `enum` or `const`. Rejects too many values and inexact numbers."""
        value = schema[name]
        if name == "enum" and (not isinstance(value, list) or not value):
            self.reject("enum", position, "must be a list of values")
        for count, each in enumerate(walk_values(value)):
            if count > MAX_VALUES:
                self.reject(name, position, f"can have at most {MAX_VALUES} values")
            if isinstance(each, int | float) and not isinstance(each, bool) and not is_exact(each):
                self.reject(name, position, "can have only numbers from -2^53 to 2^53")
        builder.add(name, value)

    def _read_pattern(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a pattern. If the compiler cannot enforce the pattern, the schema counts as inexact."""
        pattern = self.make_compilable_pattern(
            "pattern", self.require_text("pattern", schema["pattern"], position), position
        )
        if pattern is None:
            builder.mark_inexact()
        else:
            builder.add("pattern", pattern)

    def _read_format(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a format. Adds a relaxation for a format that is not enforced."""
        format_name = self.require_text("format", schema["format"], position)
        if format_name in OWN_FORMATS:
            builder.add("pattern", f"^{OWN_FORMATS[format_name]}$")
        elif format_name in COMPILER_FORMATS:
            builder.add("format", format_name)
            max_length, own_limit = COMPILER_FORMATS[format_name], parse_count(schema.get("maxLength"))
            if max_length is not None and (own_limit is None or own_limit > max_length):
                builder.add("maxLength", max_length)
        else:
            format_names = ", ".join(sorted([*OWN_FORMATS, *COMPILER_FORMATS]))
            self._relaxations.add(
                "format",
                position.place,
                f"the format {format_name[:64]!r} is unknown; the known formats are {format_names}",
            )

    def _read_unique(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `uniqueItems`. Rejects a value that is not a boolean."""
        if not isinstance(schema["uniqueItems"], bool):
            self.reject("uniqueItems", position, "must be true or false")
        if schema["uniqueItems"]:
            builder.add("uniqueItems", True)

    def _read_dependent(
        self, name: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the names that a property requires. In `dependencies`, reads lists of names and, as in draft
        3, single names. The schema reader reads the schemas in `dependencies`."""
        value = schema[name]
        if not isinstance(value, dict):
            self.reject(name, position, "must be an object of lists of names")
        if name == "dependencies":
            names = {key: each for key, each in value.items() if not isinstance(each, bool | dict)}
            value = {key: [each] if isinstance(each, str) else each for key, each in names.items()}
        if not all(map(is_text_list, value.values())):
            self.reject(name, position, "must be an object of lists of names")
        if value:
            builder.add("dependentRequired", value)
