"""Writes the grammar of arguments that come one by one between marks: texts raw, other values as JSON.

The arguments come in the order of the schema's `properties`. If texts in lists and objects have marks too,
all keys are sorted. A raw text has no escapes, so it cannot contain its closing mark. Keywords for texts
become regular expressions. Keywords that concern several arguments at once are refused by name.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from antiphon.constraints.argument_types import list_types
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

PYTHON_WORDS = MappingProxyType({"null": ("None",), "boolean": ("True", "False")})

ANY_RULES = MappingProxyType(
    {
        "string": "any_text",
        "array": "any_list",
        "object": "any_object",
        "null": '"null"',
        "boolean": '"true" | "false"',
        "number": NUMBER,
        "integer": INTEGER,
    }
)
"""The rules of values of any kind, by type."""

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
        self._rules: dict[str, str] = {}
        """The rules of values inside others, by the definitions to which schemas refer."""

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
        arguments: list[tuple[str, bool]] = []
        for index, (key, schema) in enumerate(self._order(properties)):
            if self._tags.key_end in key or "\n" in key:
                raise self._build_refusal(f"an argument's name {key[:64]!r} is not supported")
            rule = f"{name}_{index}"
            types = self._call.types.get(key, ALL_TYPES)
            if self._add_argument(rule, json.dumps(key, ensure_ascii=False), schema, types):
                arguments.append((rule, key in required))
            elif key in required:
                raise InvalidValue(f"{self._call.field} accepts nothing", param=self._call.field)
        if not properties:
            self.lines.append(f"{name.upper()}_KEY: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/")
            if self._add_argument(f"{name}_any", f"{name.upper()}_KEY", undeclared, ALL_TYPES):
                return _repeat(f"{name}_any", format_marks(self._tags.between))
        return self._join(name, arguments)

    def _order(self, properties: Mapping[str, object]) -> list[tuple[str, object]]:
        """Returns the properties in the order in which the model writes them."""
        if self._tags.before_nested_text:
            return sorted(properties.items(), key=lambda each: each[0].lower())
        return list(properties.items())

    def _join(self, name: str, members: Sequence[tuple[str, bool]]) -> str:
        """Returns the members in their order, with the marks between two of them. `members`: the rule of
        each, and whether it is required."""
        if not self._tags.between:
            return " ".join(rule if is_required else f"{rule}?" for rule, is_required in members)
        separator, beginnings = format_marks(self._tags.between), []
        for index, (rule, is_required) in enumerate(members):
            tail = f"{separator} {rule}" if is_required else f"({separator} {rule})?"
            self.lines.append(f"{name}_from_{index}: {tail} {name}_from_{index + 1}")
        self.lines.append(f'{name}_from_{len(members)}: ""')
        for index, (rule, is_required) in enumerate(members):
            beginnings.append(f"{rule} {name}_from_{index + 1}")
            if is_required:
                return f"({' | '.join(beginnings)})"
        return f"({' | '.join(beginnings)})?" if beginnings else '""'

    def _list_objects(self, schema: object, steps: int) -> Iterator[Mapping[str, object]]:
        """Yields the schema, and those that apply to the same object: its definition, and `allOf`."""
        if not isinstance(schema, Mapping) or steps > MOST_STEPS:  # a definition can refer to itself
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
        json_types = [each for each in types if each != "string" or not tags.has_raw_texts]
        if tags.has_raw_texts and "string" in types and (text := self._write_text(schema, types)) is not None:
            if not self._marks_tell_texts:
                json_types = [each for each in json_types if each in BRACKETS]
            before_value, after_value = format_marks(tags.before_text), self._add_text(rule, text)
            alternatives.append(f"{before_value} {after_value}")
        written = ""
        if tags.before_nested_text and not BRACKETS.keys().isdisjoint(json_types):
            written = self._write_nested(rule, schema, json_types) or ""
        elif not tags.has_raw_texts:
            written = self._write_python(schema, json_types)
        elif json_types and schema is not False:
            written = self._write_json(schema, json_types if len(json_types) < len(types) else None)
        if written:
            before_value, after_value = format_marks(tags.before_json), format_marks(tags.after_json)
            alternatives.append(f"{before_value} ({written}) {after_value}")
        if alternatives:
            self.lines.append(f"{rule}: {format_marks(tags.before_key)} {key} ({' | '.join(alternatives)})")
        return bool(alternatives)

    def _write_json(self, schema: object, types: Sequence[str] | None) -> str:
        """Returns the rule of a JSON value of the schema. `types`: the types that it can have; None if the
        schema says so."""
        value = {} if not isinstance(schema, Mapping) else schema
        if types is not None:
            value = {"allOf": [value, {"type": list(types)}]}
        value = {**value, "x-guidance": self._options}
        value |= {"$defs": self._definitions} if self._definitions else {}
        return f"%json {json.dumps(value)}"

    def _write_python(self, schema: object, types: Sequence[str]) -> str:
        """Returns the rule of a value in Python: JSON, but for the words of its type."""
        if schema is False:
            return ""
        if isinstance(schema, Mapping) and ("enum" in schema or "const" in schema):
            values = _list_branches(schema, "enum") or [schema.get("const")]
            return " | ".join(json.dumps(_spell_python(each), ensure_ascii=False) for each in values)
        words = [json.dumps(word) for each in types for word in PYTHON_WORDS.get(each, ())]
        others = [each for each in types if each not in PYTHON_WORDS]
        if others:
            words.append(self._write_json(schema, others if words else None))
        return " | ".join(words)

    def _write_nested(self, rule: str, schema: object, types: Sequence[str]) -> str | None:
        """Returns the rule of a value whose texts have marks, and adds the rules of the values in it. Returns
        None if the schema allows no value."""
        if schema is False:
            return None
        if not isinstance(schema, Mapping) or not schema:
            return " | ".join(self._add_any()[each] for each in types)
        if schema.keys() == {"$ref"}:
            name = str(schema["$ref"])
            if name not in self._rules:
                self._rules[name] = f"{rule}_ref"
                target = self._resolve(schema)
                self.lines.append(f"{rule}_ref: {self._write_inner(f'{rule}_ref', target) or NOTHING}")
            return self._rules[name]
        if schema.keys() in ({"anyOf"}, {"allOf"}) and (
            "anyOf" in schema or len(_list_branches(schema, "allOf")) == 1
        ):
            branches = (*_list_branches(schema, "anyOf"), *_list_branches(schema, "allOf"))
            written = [
                text
                for index, each in enumerate(branches)
                if (kinds := [kind for kind in list_types(each, self._schema) if kind in types])
                and (text := self._write_nested(f"{rule}_{index}", each, sorted(kinds)))
            ]
            return " | ".join(f"({text})" for text in written) or None
        alternatives = []
        if "string" in types and (text := self._write_string(schema, 0)) is not None:
            opening = format_marks(self._tags.before_nested_text)
            alternatives.append(f"{opening} {self._add_text(rule, text)}")
        if scalars := [each for each in types if each not in ("string", "array", "object")]:
            alternatives.append(self._write_json(schema, scalars))
        if "array" in types:
            alternatives.append(self._write_list(rule, schema))
        if "object" in types:
            alternatives.append(self._write_object(rule, schema))
        return " | ".join(alternatives) or None

    def _write_inner(self, rule: str, schema: object) -> str | None:
        """Returns the rule of a value inside another, of any type that its schema allows."""
        return self._write_nested(rule, schema, sorted(list_types(schema, self._schema)))

    def _write_list(self, rule: str, schema: Mapping[str, object]) -> str:
        """Returns the rule of a list."""
        if "prefixItems" in schema:
            raise self._build_refusal("the keyword prefixItems inside an argument is not supported")
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        item = self._write_inner(f"{rule}_item", schema.get("items", True))
        if item is None or most == 0:
            return '"[]"'
        self.lines.append(f"{rule}_item: {item}")
        separator = format_marks(self._tags.between)
        if not isinstance(least, int) or least < 2:
            further = "*" if not isinstance(most, int) else f"{{0,{most - 1}}}"
        else:
            further = f"{{{least - 1},{'' if not isinstance(most, int) else most - 1}}}"
        return f'"[" ({rule}_item ({separator} {rule}_item){further}){"" if least else "?"} "]"'

    def _write_object(self, rule: str, schema: Mapping[str, object]) -> str:
        """Returns the rule of an object inside an argument."""
        scalar_keywords = {
            "enum",
            "const",
            "items",
            "minItems",
            "maxItems",
            *BOUNDS,
            "minLength",
            "maxLength",
        }
        if unknown := schema.keys() - ENFORCED - scalar_keywords | schema.keys() & {"$ref", "allOf"}:
            raise self._build_refusal(
                f"the keyword {min(unknown)} of an object inside an argument is not supported"
            )
        declared, names = schema.get("properties"), schema.get("required")
        properties = dict(declared) if isinstance(declared, Mapping) else {}
        required = {*map(str, names)} if isinstance(names, list) else set()
        undeclared = schema.get("additionalProperties", True)
        properties |= dict.fromkeys(sorted(required - properties.keys()), undeclared)
        members: list[tuple[str, bool]] = []
        for index, (key, each) in enumerate(self._order(properties)):
            value = self._write_inner(f"{rule}_{index}", each)
            if value is not None:
                self.lines.append(f"{rule}_{index}: {json.dumps(f'{key}:', ensure_ascii=False)} ({value})")
                members.append((f"{rule}_{index}", key in required))
        if properties:
            return f'"{{" {self._join(rule, members)} "}}"'
        value = self._write_inner(f"{rule}_value", undeclared)
        if value is None:
            return '"{}"'
        self.lines += [
            f"{rule}_pair: {rule.upper()}_KEY ({value})",
            f"{rule.upper()}_KEY: /[A-Za-z_][A-Za-z0-9_]{{0,63}}:/",
        ]
        return f'"{{" {_repeat(f"{rule}_pair", format_marks(self._tags.between))} "}}"'

    def _add_any(self) -> Mapping[str, str]:
        """Returns the rules of values of any kind, by type, and adds them once."""
        if "any" not in self._rules:
            self._rules["any"] = "any_value"
            separator, opening = format_marks(self._tags.between), format_marks(self._tags.before_nested_text)
            self.lines += [
                f"any_text: {opening} {self._add_text('any_raw', ANYTHING)}",
                f'any_list: "[" {_repeat("any_value", separator)} "]"',
                f'any_object: "{{" {_repeat("any_pair", separator)} "}}"',
                "any_pair: ANY_KEY any_value",
                "ANY_KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}:/",
                "any_value: any_text | any_list | any_object | ANY_WORD",
                f"ANY_WORD: /true|false|null/ | {NUMBER}",
            ]
        return ANY_RULES

    def _add_text(self, rule: str, text: str) -> str:
        """Adds the rules of a text up to its closing tag. Returns the text with its tag. `text`: a regular
        expression."""
        terminal, after_value = rule.upper(), self._tags.after_text
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


def _repeat(rule: str, separator: str) -> str:
    """Returns any number of repetitions of a rule, with a separator between two of them."""
    return f"({rule} ({separator} {rule})*)?" if separator else f"{rule}*"


def _spell_python(value: object) -> str:
    """Returns a constant as Python spells it, with the texts of JSON."""
    words = {True: "True", False: "False", None: "None"}
    if value is None or isinstance(value, bool):
        return words[value]
    return json.dumps(value, ensure_ascii=False)


def _list_branches(schema: Mapping[str, object], keyword: str) -> list[object]:
    """Returns the list under a keyword; an empty list if there is none."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []
