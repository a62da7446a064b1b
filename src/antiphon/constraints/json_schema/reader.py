"""Reads a schema of any draft into the keywords of the newest draft. Its time is linear in the schema's
length.

A schema that names no draft is read as draft 2020-12. A form that only an older draft defines is read as in
that draft. A keyword that no draft defines has no effect, and becomes a relaxation. `AssertionReader` reads
the keywords that contain no schemas: bounds, lengths, patterns, formats, constants and names.
"""

from collections.abc import Callable, Mapping
from typing import NoReturn

from antiphon.constraints.json_schema.lengths import drop_long_counts
from antiphon.constraints.json_schema.schemas import (
    COMPILER_FORMATS,
    FARTHEST,
    LARGEST,
    MAX_COUNT,
    MAX_VALUES,
    OPENED,
    OWN_FORMATS,
    PLACE,
    TYPES,
    Draft,
    Json,
    Position,
    ReadSchema,
    ReferenceTarget,
    Relaxations,
    Schema,
    SchemaBuilder,
    SchemaDocument,
    SchemaPlace,
    find_cycle,
    find_draft,
    has_keyword,
    ignores_siblings,
    is_annotation,
    is_exact,
    is_number,
    is_text_list,
    parse_count,
    reject_value,
    round_inward,
    walk_values,
)
from antiphon.constraints.regexes import has_inner_anchor, make_quotable, require_portable, spell_classes
from antiphon.errors import InvalidValue

COUNTS = tuple(
    "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains".split()
)
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

Handler = Callable[[str, Mapping[str, Json], Position, SchemaBuilder], None]
"""Reads one keyword of a schema into a builder. Its arguments: the keyword, the schema that contains it, the
position and the builder."""

MAX_DEPTH = 48
"""The most levels of nested schemas in a caller's schema."""

MAX_WRITTEN_DEPTH = 192
"""The most levels of nested schemas in a rewritten schema. One level of the caller can become several."""

MAX_SCHEMAS = 16_384
"""The most schemas in one schema."""

UNKNOWN_KEYWORD = "no keyword of that name is known"
OUTSIDE_TARGET = "it has no target inside this schema, and other documents are not fetched"

SINGLE_KEYWORDS = tuple(
    "additionalProperties contains not if then else propertyNames unevaluatedItems "
    "unevaluatedProperties".split()
)
LIST_KEYWORDS = ("anyOf", "oneOf", "allOf", "prefixItems")


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
            if has_inner_anchor(pattern):
                raise InvalidValue("it has an anchor inside, or repeats one", param=self._field)
            return make_quotable(spell_classes(pattern), self._field)
        except InvalidValue as problem:
            self._relaxations.add(keyword, position.place, f"it is not supported: {problem.message}")
            return None

    def require_text(self, keyword: str, value: Json, position: Position) -> str:
        """Returns the keyword's value if it is a text. Raises InvalidValue for any other value."""
        if not isinstance(value, str):
            self.reject(keyword, position, "must be a text")
        return value

    def reject(self, name: str, position: Position, problem: str) -> NoReturn:
        """Raises InvalidValue with the keyword, its place and the problem."""
        reject_value(name, position.place, self._field, problem)

    def _read_count(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a length or a number of items. A maximum of items above MAX_COUNT becomes MAX_COUNT, and the
        schema counts as inexact. `lengths` checks lengths later, because they depend on other texts."""
        count = parse_count(schema[keyword])
        if count is None or (count > MAX_COUNT and keyword.startswith("min")):
            self.reject(keyword, position, f"must be an integer from 0 to {MAX_COUNT}")
        if count > MAX_COUNT:
            builder.mark_inexact()
        builder.add(keyword, count if keyword == "maxLength" else min(count, MAX_COUNT))

    def _read_bound(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a bound. Adds a relaxation for one that the compiler cannot count. In draft 4,
        `exclusiveMinimum` is a boolean, and `minimum` has the bound."""
        value = schema[keyword]
        if isinstance(value, bool) and keyword.startswith("exclusive"):
            value = schema.get(keyword.removeprefix("exclusive").lower()) if value else None
            if value is None:
                return
        if not is_number(value) or not isinstance(value, int | float):
            self.reject(keyword, position, "must be a number that a double can hold")
        is_upper = keyword.lower().endswith("maximum")
        bound = round_inward(value, is_upper)
        if bound != value:
            builder.mark_inexact()
        if (-bound if is_upper else bound) >= FARTHEST:
            builder.mark_inexact()
            self._relaxations.add(keyword, position.place, "only bounds up to 10^18 are enforced")
            return
        if abs(value) > LARGEST and (value > 0) == is_upper:
            # The rounded bound is stricter than the original one, so it need not be exclusive.
            keyword = "maximum" if is_upper else "minimum"
        builder.add(keyword, bound)

    def _read_multiple(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `multipleOf` or its older keyword. Rejects a value that is not a positive exact number."""
        value = schema[keyword]
        if not is_exact(value) or not isinstance(value, int | float) or value <= 0:
            self.reject(keyword, position, "must be a number above 0, up to 2^53")
        builder.add("multipleOf", value)

    def _read_required(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the list of required names without duplicates. Ignores a boolean, which draft 3 allows."""
        value = schema["required"]
        if isinstance(value, bool):  # the reader of properties reads the boolean
            return
        if not is_text_list(value) or not isinstance(value, list):
            self.reject("required", position, "must be a list of texts")
        builder.add("required", list(dict.fromkeys(value)))

    def _read_data(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `enum` or `const`. Rejects too many values and inexact numbers."""
        value = schema[keyword]
        if keyword == "enum" and (not isinstance(value, list) or not value):
            self.reject("enum", position, "must be a list of values")
        for count, each in enumerate(walk_values(value)):
            if count > MAX_VALUES:
                self.reject(keyword, position, f"can have at most {MAX_VALUES} values")
            if isinstance(each, int | float) and not isinstance(each, bool) and not is_exact(each):
                self.reject(keyword, position, "can have only numbers from -2^53 to 2^53")
        builder.add(keyword, value)

    def _read_pattern(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
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
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
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
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `uniqueItems`. Rejects a value that is not a boolean."""
        if not isinstance(schema["uniqueItems"], bool):
            self.reject("uniqueItems", position, "must be true or false")
        if schema["uniqueItems"]:
            builder.add("uniqueItems", True)

    def _read_dependent(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the names that a property requires. In `dependencies`, reads lists of names and, as in draft
        3, single names. The schema reader reads the schemas in `dependencies`."""
        value = schema[keyword]
        if not isinstance(value, dict):
            self.reject(keyword, position, "must be an object of lists of names")
        if keyword == "dependencies":
            names = {key: each for key, each in value.items() if not isinstance(each, bool | dict)}
            value = {key: [each] if isinstance(each, str) else each for key, each in names.items()}
        if not all(map(is_text_list, value.values())):
            self.reject(keyword, position, "must be an object of lists of names")
        if value:
            builder.add("dependentRequired", value)


def read_schema(schema: Json, field_name: str, max_depth: int = MAX_DEPTH) -> ReadSchema:
    """Reads a schema into the keywords of the newest draft. Raises InvalidValue for a value that is not a
    schema."""
    return _SchemaReader(schema, field_name, max_depth).read()


class _SchemaReader:
    """Reads one schema."""

    def __init__(self, schema: Json, field_name: str, max_depth: int) -> None:
        self._field = field_name
        self._max_depth = max_depth
        self._relaxations = Relaxations()
        self._draft = self._find_draft(schema)
        self._document = SchemaDocument(schema, self._draft)
        self._schema_count = 0
        self._names: dict[int, str] = {}
        """The names of definitions, by the identity of their schemas."""
        self._queue: list[tuple[str, ReferenceTarget, SchemaPlace]] = []
        self._assertions = AssertionReader(field_name, self._relaxations)
        self._handlers: dict[str, Handler] = {
            **self._assertions.handlers,
            **dict.fromkeys(SINGLE_KEYWORDS, self._read_schema_keyword),
            **dict.fromkeys(LIST_KEYWORDS, self._read_schema_list_keyword),
            **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef"), self._read_reference),
            "type": self._read_type,
            "properties": self._read_properties,
            "patternProperties": self._read_pattern_properties,
            "dependentSchemas": self._read_dependent_schemas,
            "dependencies": self._read_dependencies,
            "items": self._read_items,
            "additionalItems": lambda *_: None,
            "extends": self._read_extends,
            "disallow": self._read_disallow,
        }

    def read(self) -> ReadSchema:
        """Reads the root, then all referenced schemas."""
        document = self._document.root
        root = self._read_one(document.schema, Position(None, 0, document))
        definitions: dict[str, Schema] = {}
        while self._queue:
            name, target, place = self._queue.pop()
            definitions[name] = self._read_one(target.schema, Position(place, 0, target.resource))
        if find_cycle(root, definitions) is not None:
            raise InvalidValue(f"{self._field} has a $ref that only leads to itself", param=self._field)
        drop_long_counts([root, *definitions.values()], self._relaxations)
        return ReadSchema(root, definitions, self._relaxations)

    def _find_draft(self, schema: Json) -> Draft | None:
        """Returns the draft that a schema names; None if it is unknown."""
        if not isinstance(schema, dict) or "$schema" not in schema:
            return None
        name = schema["$schema"]
        draft = find_draft(name) if isinstance(name, str) else None
        if draft is None:
            self._relaxations.add("$schema", None, "no draft of that name is known")
        return draft

    def _read_one(self, schema: Json, position: Position) -> Schema:
        """Reads one schema and all schemas in it. Raises InvalidValue if it is not a schema, or if there are
        too many schemas or levels."""
        self._schema_count += 1
        if self._schema_count > MAX_SCHEMAS or position.depth > self._max_depth:
            raise InvalidValue(
                f"{self._field} can have at most {MAX_SCHEMAS} schemas, at most "
                f"{self._max_depth} deep; make it simpler",
                param=self._field,
            )
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            self._assertions.reject("a schema", position, "must be an object, true or false")
        position = Position(
            position.place, position.depth, self._document.find_resource(schema, position.resource)
        )
        builder = SchemaBuilder({PLACE: position.place})
        has_only_reference = "$ref" in schema and ignores_siblings(self._draft)
        for keyword in ("$ref",) if has_only_reference else schema:
            if has_keyword(self._draft, keyword):
                self._handlers[keyword](keyword, schema, position, builder)
            elif not is_annotation(keyword, self._draft):
                self._relaxations.add(keyword, position.place, UNKNOWN_KEYWORD)
        return builder.keywords

    def _read_list(self, keyword: str, value: Json, position: Position) -> list[Json]:
        """Reads a list of schemas. Rejects other values, and an empty list except for `prefixItems`."""
        if not isinstance(value, list) or not (value or keyword == "prefixItems"):
            self._assertions.reject(keyword, position, "must be a list of schemas")
        return [self._read_one(each, position.step(keyword, str(index))) for index, each in enumerate(value)]

    def _read_map(self, keyword: str, value: Json, position: Position) -> dict[str, Json]:
        """Reads an object whose values are schemas. Rejects other values."""
        if not isinstance(value, dict):
            self._assertions.reject(keyword, position, "must be an object of schemas")
        return {key: self._read_one(each, position.step(keyword, key)) for key, each in value.items()}

    # --- references

    def _read_reference(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a reference and adds its target to the definitions. Adds a relaxation for a reference without
        a target."""
        reference = self._assertions.require_text(keyword, schema[keyword], position)
        document = self._document
        match keyword:
            case "$ref":
                target = document.find(reference, position.resource)
            case "$dynamicRef":
                target = document.find_dynamic(reference, position.resource)
            case _:
                target = document.find("#", position.resource) if document.is_single else None
        if target is None:
            self._relaxations.add(keyword, position.place, OUTSIDE_TARGET)
            builder.mark_inexact()
        elif isinstance(target.schema, bool):
            builder.add("allOf", [target.schema])
        elif not isinstance(target.schema, dict):
            self._assertions.reject(keyword, position, "points to a value that is no schema")
        elif target.schema is document.root.schema:
            builder.add("$ref", "#")
        else:
            builder.add("$ref", f"#/$defs/{self._define(target, position)}")

    def _define(self, target: ReferenceTarget, position: Position) -> str:
        """Returns the name of the definition of a target. The first call queues the target for reading."""
        name = self._names.get(id(target.schema))
        if name is None:
            name = self._names[id(target.schema)] = f"d{len(self._names)}"
            self._queue.append((name, target, (position.place, "$ref")))
        return name

    # --- schemas in schemas

    def _read_schema_keyword(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a keyword whose value is one schema."""
        builder.add(keyword, self._read_one(schema[keyword], position.step(keyword)))

    def _read_schema_list_keyword(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads a keyword whose value is a list of schemas."""
        builder.add(keyword, self._read_list(keyword, schema[keyword], position))

    def _read_type(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the allowed types. Schemas among the types, as in draft 3, become `anyOf`."""
        value = schema["type"]
        type_names = value if isinstance(value, list) else [value]
        inner = [each for each in type_names if isinstance(each, dict)]  # draft 3 allows schemas there
        types = [each for each in type_names if not isinstance(each, dict)]
        if not type_names or not all(isinstance(each, str) and each in {*TYPES, "any"} for each in types):
            self._assertions.reject("type", position, f"must be one or several of {', '.join(sorted(TYPES))}")
        if "any" in types:
            return
        if inner:
            schemas = [self._read_one(each, position.step("type")) for each in inner]
            builder.add("anyOf", [*([{"type": types}] if types else []), *schemas])
        else:
            builder.add("type", value)

    def _read_properties(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads properties. In draft 3, a property itself says whether it is required."""
        value = schema["properties"]
        builder.add("properties", self._read_map("properties", value, position))
        if isinstance(value, dict):
            required = [
                key for key, each in value.items() if isinstance(each, dict) and each.get("required") is True
            ]
            if required:
                builder.add("required", required)

    def _read_pattern_properties(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads patterns of property names. If a pattern cannot be enforced, all undeclared names become
        allowed, so the keywords that close the object become relaxations too."""
        patterns: dict[str, Json] = {}
        for pattern, each in self._read_map(
            "patternProperties", schema["patternProperties"], position
        ).items():
            compilable = self._assertions.make_compilable_pattern("patternProperties", pattern, position)
            if compilable is None:
                builder.mark_inexact()
                patterns = {"": True}
                for closing in ("additionalProperties", "unevaluatedProperties"):
                    if schema.get(closing, True) is not True and has_keyword(self._draft, closing):
                        self._relaxations.add(closing, position.place, OPENED)
                break
            patterns[compilable] = {"allOf": [patterns[compilable], each]} if compilable in patterns else each
        if patterns:
            builder.add("patternProperties", patterns)

    def _read_items(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads items. A list of items becomes `prefixItems`, and `additionalItems` becomes `items`, as in
        newer drafts."""
        value = schema["items"]
        if not isinstance(value, list):
            builder.add("items", self._read_one(value, position.step("items")))
            return
        builder.add("prefixItems", self._read_list("prefixItems", value, position))
        if "additionalItems" in schema:
            builder.add("items", self._read_one(schema["additionalItems"], position.step("additionalItems")))

    def _read_dependent_schemas(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads the schemas that apply if a property is present."""
        builder.add("dependentSchemas", self._read_map(keyword, schema[keyword], position))

    def _read_dependencies(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads `dependencies`: the schemas here, and the lists of names by the assertion reader."""
        self._assertions.handlers[keyword](keyword, schema, position, builder)
        value = schema[keyword]
        entries = value.items() if isinstance(value, dict) else ()
        if schemas := {key: each for key, each in entries if isinstance(each, bool | dict)}:
            builder.add("dependentSchemas", self._read_map(keyword, schemas, position))

    def _read_extends(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads draft 3's `extends`, one schema or a list, as `allOf`."""
        value = schema["extends"]
        builder.add(
            "allOf", self._read_list("extends", value if isinstance(value, list) else [value], position)
        )

    def _read_disallow(
        self, keyword: str, schema: Mapping[str, Json], position: Position, builder: SchemaBuilder
    ) -> None:
        """Reads draft 3's `disallow`: the refused type, or a list of refused types and schemas."""
        inner = SchemaBuilder()
        self._read_type("type", {"type": schema["disallow"]}, position, inner)
        builder.add("not", inner.keywords)
