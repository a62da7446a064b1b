"""Writes the grammar of arguments that come one by one between tags: texts raw, other values as JSON.

The arguments come in the order of the schema's `properties`. A raw text has no escapes, so it cannot contain
its closing tag. Keywords for texts become regular expressions. Keywords that concern several arguments at
once are refused by name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon.constraints.grammar_types import ArgumentTags, CallFormat
from antiphon.constraints.lark import ANYTHING, escape_literal, format_marks, write_regex
from antiphon.constraints.regexes import split_anchored
from antiphon.errors import InvalidValue, UnsupportedParameter

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

ALL_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

MOST_STEPS = 16
"""The most levels of references and alternatives in the schema of one text."""

ENFORCED = frozenset("type properties required additionalProperties $defs $ref allOf".split())
"""The keywords of a tool's schema that are enforced here."""

NOTHING = "/(.|x){0}/"
"""The empty text."""

NUMBER, INTEGER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/", "/-?(0|[1-9][0-9]*)/"

WORDS = MappingProxyType(
    {"null": ("/null/",), "boolean": ("/true/", "/false/"), "number": (NUMBER,), "integer": (INTEGER,)}
)
"""The values of each type that look like a text."""

BRACKETS = MappingProxyType({"array": r"\[", "object": r"\{"})
"""How values of these types begin."""

BOUNDS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())

LABEL = r"[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"

BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

FORMATS = MappingProxyType(
    {
        "duration": r"P([0-9]+D(T([0-9]+H)?([0-9]+M)?[0-9]+S)?|T[0-9]+[HMS]|[0-9]+[WYM])",
        "email": rf"[A-Za-z0-9_+\-]+(\.[A-Za-z0-9_+\-]+)*@{LABEL}(\.{LABEL})+",
        "hostname": rf"{LABEL}(\.{LABEL}){{0,3}}",
        "ipv4": rf"{BYTE}(\.{BYTE}){{3}}",
        "uri": r"[A-Za-z][A-Za-z0-9+.\-]*:[A-Za-z0-9._~:\/?@!$&'()*+,;=\-]+",
        "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    }
)
"""Patterns of texts in these formats. They match fewer texts than the formats allow."""


def write_tagged_call(
    name: str,
    call: CallFormat,
    schema: Mapping[str, object],
    tags: ArgumentTags,
    options: "JsonCompileOptions",
) -> list[str]:
    """Returns the rules of one call's arguments. The rule `name` refers to the others. `schema`: the
    arguments' schema in the compiler's keywords. Raises InvalidValue or UnsupportedParameter."""
    writer = _TaggedCall(call, schema, tags, options)
    arguments = writer.write_arguments(name)
    return [f"{name}: {arguments}", *writer.lines]


class _TaggedCall:
    """Writes the arguments of one call."""

    def __init__(
        self,
        call: CallFormat,
        schema: Mapping[str, object],
        tags: ArgumentTags,
        options: "JsonCompileOptions",
    ) -> None:
        self._call = call
        self._schema = schema
        self._tags = tags
        self._options = options
        definitions = schema.get("$defs")
        self._definitions: Mapping[str, object] = definitions if isinstance(definitions, Mapping) else {}
        self._marks_tell_texts = tags.before_json != tags.before_text
        """Whether the marks before a value say if it is a text. If they do not, its type decides."""
        self.lines: list[str] = []
        """The rules so far."""

    def write_arguments(self, name: str) -> str:
        """Returns the arguments in their order, and adds their rules."""
        properties: dict[str, object] = {}
        required: set[str] = set()
        undeclared: object = True
        for part in self._list_objects(self._schema, 0):
            declared, names = part.get("properties"), part.get("required")
            for key, each in declared.items() if isinstance(declared, Mapping) else ():
                properties[key] = {"allOf": [properties[key], each]} if key in properties else each
            required |= {*map(str, names)} if isinstance(names, list) else set()
            undeclared = part.get("additionalProperties", undeclared)
        properties |= dict.fromkeys(sorted(required - properties.keys()), undeclared)
        arguments = []
        for index, (key, schema) in enumerate(properties.items()):
            if self._tags.key_end in key or "\n" in key:
                raise self._build_refusal(f"an argument's name {key[:64]!r} is not supported")
            rule = f"{name}_{index}"
            types = self._call.types.get(key, ALL_TYPES)
            if self._add_argument(rule, json.dumps(key, ensure_ascii=False), schema, types):
                arguments.append(rule if key in required else f"{rule}?")
            elif key in required:
                raise InvalidValue(f"{self._call.field} accepts nothing", param=self._call.field)
        if not properties:
            self.lines.append(f"{name.upper()}_KEY: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/")
            if self._add_argument(f"{name}_any", f"{name.upper()}_KEY", undeclared, ALL_TYPES):
                arguments.append(f"{name}_any*")
        return " ".join(arguments)

    def _list_objects(self, schema: object, steps: int) -> Iterator[Mapping[str, object]]:
        """Yields the schema, and the schemas that apply to the same object."""
        if not isinstance(schema, Mapping) or steps > MOST_STEPS:
            return
        if unknown := schema.keys() - ENFORCED:
            raise self._build_refusal(f"the keyword {min(unknown)} of the whole object is not supported")
        yield schema
        yield from self._list_objects(self._resolve(schema), steps + 1)
        for each in _list_branches(schema, "allOf"):
            yield from self._list_objects(each, steps + 1)

    def _build_refusal(self, problem: str) -> UnsupportedParameter:
        return UnsupportedParameter(
            f"{self._call.field}: {problem} by this model, which writes each argument alone; leave it out",
            param=self._call.field,
        )

    def _resolve(self, schema: Mapping[str, object]) -> object:
        """Returns the definition to which a schema refers; None if it refers to none."""
        return self._definitions.get(str(schema.get("$ref")).removeprefix("#/$defs/"))

    def _add_argument(self, rule: str, key: str, schema: object, types: Sequence[str]) -> bool:
        """Adds the rules of one argument. Returns False if its schema allows no value. `key`: its name in the
        compiler's notation."""
        tags, alternatives = self._tags, []
        json_types = [each for each in types if each != "string"]
        if "string" in types and (text := self._write_text(schema, types)) is not None:
            if not self._marks_tell_texts:
                json_types = [each for each in json_types if each in BRACKETS]
            before_value, after_value = format_marks(tags.before_text), self._add_text(rule, text)
            alternatives.append(f"{before_value} {after_value}")
        if json_types and schema is not False:
            value = {} if schema is True else schema
            if "string" in types:
                value = {"allOf": [value, {"type": json_types}]}
            if isinstance(value, Mapping):
                value = {**value, "x-guidance": self._options}
                value |= {"$defs": self._definitions} if self._definitions else {}
            before_value, after_value = format_marks(tags.before_json), format_marks(tags.after_value)
            alternatives.append(f"{before_value} %json {json.dumps(value)} {after_value}")
        if alternatives:
            self.lines.append(f"{rule}: {format_marks(tags.before_key)} {key} ({' | '.join(alternatives)})")
        return bool(alternatives)

    def _add_text(self, rule: str, text: str) -> str:
        """Adds the rules of a text up to its closing tag. Returns the text with its tag. `text`: a regular
        expression."""
        terminal, after_value = rule.upper(), self._tags.after_value
        # A text must not contain what a reader takes for the tag, however it is tokenized.
        exclusion = rf"~/(.|\n)*{escape_literal(self._tags.value_end)}(.|\n)*/"
        self.lines.append(f"{terminal}: ({text}) & {exclusion}")
        control = next((index for index, mark in enumerate(after_value) if isinstance(mark, int)), None)
        if control is None:
            # `lazy` matches the shortest text that ends with the tag.
            self.lines.append(f"{rule}_text[lazy]: {terminal} {format_marks(after_value)}")
            return f"{rule}_text"
        self.lines.append(f"{terminal}_CUT: {terminal} {format_marks(after_value[:control])}")
        return f"{terminal}_CUT {format_marks(after_value[control:])}"

    def _write_text(self, schema: object, types: Sequence[str]) -> str | None:
        """Returns the regular expression of a value that is a text or looks like one. Returns None if the
        schema allows no text."""
        text = self._write_string(schema, 0)
        if text is None or self._marks_tell_texts or len(types) == 1:
            return text
        values = schema.get("enum") if isinstance(schema, Mapping) else None
        if isinstance(values, list):
            words = [each if isinstance(each, str) else json.dumps(each) for each in values]
            return " | ".join(f"/{escape_literal(each)}/" if each else NOTHING for each in words)
        # A reader takes a text that looks like a value of another allowed type for such a value.
        has_bounds = self._bounds_numbers(schema, 0)
        if has_bounds:
            text = f"({text}) & ~{NUMBER}"
        if brackets := "".join(BRACKETS.get(each, "") for each in types):
            text = rf"({text}) & ~/[ \n\r\t]*[{brackets}](.|\n)*/"
        words = [word for each in types for word in WORDS.get(each, ())]
        words = [word for word in words if not has_bounds or word not in (NUMBER, INTEGER)]
        return " | ".join((f"({text})", *words))

    def _bounds_numbers(self, schema: object, steps: int) -> bool:
        """Whether a schema allows only some numbers."""
        if not isinstance(schema, Mapping) or steps > MOST_STEPS:
            return False
        inner = (self._resolve(schema), *_list_branches(schema, "anyOf"), *_list_branches(schema, "allOf"))
        return not BOUNDS.isdisjoint(schema) or any(self._bounds_numbers(each, steps + 1) for each in inner)

    def _write_string(self, schema: object, steps: int) -> str | None:
        """Returns the regular expression of the texts that a schema allows; None if it allows none."""
        if not isinstance(schema, Mapping):
            return None if schema is False else ANYTHING
        if steps > MOST_STEPS:
            raise InvalidValue(f"{self._call.field} is nested too deep", param=self._call.field)
        declared = schema.get("type", "string")
        parts: list[str | None] = [
            ANYTHING if "string" in (declared, *_list_branches(schema, "type")) else None
        ]
        if "enum" in schema or "const" in schema:
            values = _list_branches(schema, "enum") or [schema.get("const")]
            texts = [
                f"/{escape_literal(each)}/" if each else NOTHING for each in values if isinstance(each, str)
            ]
            parts.append(" | ".join(texts) or None)
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if least or most != "":
            parts.append(rf"/(.|\n){{{least},{most}}}/")
        if isinstance(pattern := schema.get("pattern"), str):
            parts.append(self._write_pattern(pattern))
        if isinstance(text_format := schema.get("format"), str):
            if text_format not in FORMATS:
                raise self._build_refusal(f"the format {text_format} of an argument is not supported")
            parts.append(f"/{FORMATS[text_format]}/")
        if "$ref" in schema:
            parts.append(self._write_string(self._resolve(schema), steps + 1))
        if branches := _list_branches(schema, "anyOf"):
            texts = [text for each in branches if (text := self._write_string(each, steps + 1)) is not None]
            parts.append(" | ".join(f"({text})" for text in texts) or None)
        parts += [self._write_string(each, steps + 1) for each in _list_branches(schema, "allOf")]
        written = [part for part in parts if part is not None and part != ANYTHING]
        return None if None in parts else " & ".join(f"({part})" for part in written) or ANYTHING

    def _write_pattern(self, pattern: str) -> str:
        """Returns the regular expression of the texts in which a pattern is found."""
        branches = split_anchored(pattern)
        if branches is None:
            raise self._build_refusal("an anchor inside a group of a pattern is not supported")
        written = []
        for at_start, body, at_end in branches:
            parts = [ANYTHING] * (not at_start) + [write_regex(body)] * bool(body) + [ANYTHING] * (not at_end)
            written.append(f"({' '.join(parts) or NOTHING})")
        return " | ".join(written)


def _list_branches(schema: Mapping[str, object], keyword: str) -> list[object]:
    """Returns the list under a keyword; an empty list if there is none."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
