"""A JSON Schema as the other modules read it: its draft, keywords, references and positions.

It checks the values of keywords, and knows which formats are enforced. It finds the targets of references by
identifiers, anchors and pointers, and finds cycles. It does not follow references to other documents. A
`Budget` limits the steps of all work on one schema.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import NoReturn
from urllib.parse import unquote, urldefrag, urljoin

from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, UnsupportedParameter

Json = object


class Draft(IntEnum):
    """The drafts, the oldest first."""

    DRAFT_3 = 3
    DRAFT_4 = 4
    DRAFT_6 = 6
    DRAFT_7 = 7
    DRAFT_2019_09 = 8
    DRAFT_2020_12 = 9


SCHEMES = ("http://json-schema.org/", "https://json-schema.org/")

URIS = {
    "draft-03/schema": Draft.DRAFT_3,
    "draft-04/schema": Draft.DRAFT_4,
    "draft-06/schema": Draft.DRAFT_6,
    "draft-07/schema": Draft.DRAFT_7,
    "draft/2019-09/schema": Draft.DRAFT_2019_09,
    "draft/2020-12/schema": Draft.DRAFT_2020_12,
}
"""Addresses of the meta-schemas, without their common beginning."""

OLDEST, NEWEST = Draft.DRAFT_3, Draft.DRAFT_2020_12


def find_draft(name: str) -> Draft | None:
    """Returns the draft that `$schema` names; None for another meta-schema."""
    uri = name.strip().rstrip("#")
    return next((URIS.get(uri.removeprefix(each)) for each in SCHEMES if uri.startswith(each)), None)


def _map_to_drafts(first: Draft, names: str, last: Draft = NEWEST) -> dict[str, tuple[Draft, Draft]]:
    """Maps each of the names to the first and the last draft that define it."""
    return dict.fromkeys(names.split(), (first, last))


KEYWORDS: Mapping[str, tuple[Draft, Draft]] = {
    **_map_to_drafts(
        OLDEST,
        "$ref type enum properties patternProperties additionalProperties required items minItems maxItems "
        "uniqueItems minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum",
    ),
    **_map_to_drafts(OLDEST, "divisibleBy extends disallow", Draft.DRAFT_3),
    **_map_to_drafts(OLDEST, "dependencies", Draft.DRAFT_7),
    **_map_to_drafts(OLDEST, "additionalItems", Draft.DRAFT_2019_09),
    **_map_to_drafts(Draft.DRAFT_4, "allOf anyOf oneOf not multipleOf minProperties maxProperties"),
    **_map_to_drafts(Draft.DRAFT_6, "const contains propertyNames"),
    **_map_to_drafts(Draft.DRAFT_7, "if then else"),
    **_map_to_drafts(
        Draft.DRAFT_2019_09,
        "dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties minContains maxContains",
    ),
    **_map_to_drafts(Draft.DRAFT_2019_09, "$recursiveRef", Draft.DRAFT_2019_09),
    **_map_to_drafts(Draft.DRAFT_2020_12, "prefixItems $dynamicRef"),
}
"""Keywords that restrict values, with the first and the last draft that define them."""

ANNOTATIONS = frozenset(
    "title description default examples $comment deprecated readOnly writeOnly contentMediaType "
    "contentEncoding contentSchema $schema $id $anchor $defs definitions $vocabulary $dynamicAnchor "
    "$recursiveAnchor".split()
)
"""Keywords that do not restrict values. They are not passed to the compiler."""

EXTENSION = "x-"
"""The prefix of extension names: annotations by convention."""

GUIDANCE = "x-guidance"
"""The only extension that would change the compiler's behaviour. It is not applied but reported."""


def is_annotation(name: str, draft: Draft | None) -> bool:
    """Whether a keyword is known not to restrict values."""
    if name == "id":
        return draft is None or draft <= Draft.DRAFT_4
    return name in ANNOTATIONS or (name.startswith(EXTENSION) and name != GUIDANCE)


def has_keyword(draft: Draft | None, name: str) -> bool:
    """Whether a keyword restricts values in a draft. A schema without a draft (None) has the keywords of all
    drafts."""
    if name not in KEYWORDS:
        return False
    first, last = KEYWORDS[name]
    return draft is None or first <= draft <= last


def ignores_siblings(draft: Draft | None) -> bool:
    """Whether a reference disables the keywords beside it."""
    return draft is not None and draft <= Draft.DRAFT_7


EXACT = 2**53
"""The largest integer up to which the compiler represents each integer exactly."""

LARGEST = 2**63 - 1024
"""The largest bound that the compiler supports. It replaces larger bounds."""

FARTHEST = 10**18
"""The compiler supports only minima below this number, and maxima above its negative."""

SMALLEST = 1e-60
"""The number above 0 that stands for the smallest one. The compiler does not support much smaller ones."""

NEXT = 1 + 1e-15
"""The factor from a number to the next one that the compiler distinguishes. It reads the last bit of a double
incorrectly."""

MAX_COUNT = 100_000
"""The largest number of items that the compiler counts, and the largest minimum. It replaces larger
maxima."""

MAX_COUNTED_LENGTH = 8_000
"""The most characters that the different texts of one schema can count together. The compiler needs states
for each of them (`matching.MAX_LEXER_STATES`)."""

MAX_VALUES = 4096
"""The most items of one enum, and values in it."""

TYPES = frozenset("null boolean object array number integer string".split())


def is_number(value: Json) -> bool:
    """Whether a value is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(_to_float(value))


def _to_float(value: int | float) -> float:
    """Converts a number to a float. An integer that is too large becomes infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def is_exact(value: Json) -> bool:
    """Whether the compiler represents this number exactly."""
    return is_number(value) and isinstance(value, int | float) and -EXACT <= value <= EXACT


def parse_count(value: Json) -> int | None:
    """Returns a length or number of items; 2.0 becomes 2. Returns None for any other value."""
    if not is_number(value) or not isinstance(value, int | float) or value < 0 or value != value // 1:
        return None
    return int(value)


def round_inward(value: float, is_upper: bool) -> float:
    """Returns the nearest bound that the compiler can represent and that is not less strict."""
    if is_exact(value):
        return value
    clamped = min(max(value, -LARGEST), LARGEST)
    nearest = float(clamped)
    if is_upper and nearest > clamped:
        nearest = math.nextafter(nearest, -math.inf)
    if not is_upper and nearest < clamped:
        nearest = math.nextafter(nearest, math.inf)
    return int(nearest) if nearest == nearest // 1 else nearest


def is_text_list(value: Json) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def walk_values(value: Json) -> Iterator[Json]:
    """Yields a value and all values in it."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def freeze(value: Json) -> object:
    """Converts a value to a hashable value. Two results are equal if JSON Schema considers the values
    equal."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, dict):
        return ("object", frozenset((name, freeze(each)) for name, each in value.items()))
    if isinstance(value, list):
        return ("array", tuple(map(freeze, value)))
    return value


YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
"""The years 0001 to 9999."""

LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
"""Years divisible by 4 and not by 100, or by 400."""

DATE = (
    f"(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
)

CLOCK = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)

OWN_FORMATS = {"date": DATE, "time": CLOCK, "date-time": f"{DATE}T{CLOCK}"}
"""Formats that are compiled from these patterns of the whole string."""

COMPILER_FORMATS = {
    "duration": None,
    "email": None,
    "hostname": 253,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
"""Formats that the compiler implements correctly, with their most characters."""

SINGLE_KEYWORDS = frozenset(
    "items additionalItems additionalProperties contains not if then else propertyNames unevaluatedItems "
    "unevaluatedProperties contentSchema extends".split()
)
LIST_KEYWORDS = frozenset("allOf anyOf oneOf prefixItems items extends type disallow".split())
NAMED_KEYWORDS = frozenset(
    "properties patternProperties $defs definitions dependentSchemas dependencies".split()
)
"""Keywords of any draft that contain a schema, a list of schemas, or schemas by name."""

MAX_NESTING = 256
"""How many levels of nested schemas are searched for identifiers."""

MAX_IDENTIFIER = 2048
"""The most characters of an identifier. A longer identifier cannot be a target."""

INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class SchemaResource(Struct, frozen=True, eq=False):
    """A schema with its own identifier, or the whole document."""

    base: str
    """The resource's identifier, without a fragment."""
    schema: Json


class ReferenceTarget(Struct, frozen=True):
    """The target of a reference."""

    schema: Json
    resource: SchemaResource


class SchemaDocument:
    """A schema document with its identifiers and anchors. It finds schemas by identity, so the cost does not
    grow with the length of pointers."""

    def __init__(self, root: Json, draft: Draft | None) -> None:
        self._draft = draft
        self._identifier = "id" if draft is not None and draft <= Draft.DRAFT_4 else "$id"
        self.root = SchemaResource(self._find_own_identifier(root, "", at_root=True) or "", root)
        self._resources = {self.root.base: self.root}
        self._inner: dict[int, SchemaResource] = {}
        """Resources in the document, by the identity of their schemas."""
        self._anchors: dict[tuple[str, str], ReferenceTarget] = {}
        """The anchors, by resource and name."""
        self._dynamic: Counter[str] = Counter()
        """The number of dynamic anchors with each name."""
        self._find_identifiers()

    @property
    def is_single(self) -> bool:
        """Whether the document is one resource."""
        return not self._inner

    def find_resource(self, schema: Json, outer: SchemaResource) -> SchemaResource:
        """Returns the resource of a schema. `outer`: the resource of the schema that contains it."""
        return self._inner.get(id(schema), outer)

    def find(self, reference: str, resource: SchemaResource) -> ReferenceTarget | None:
        """Returns the target of a reference in a resource; None if the document does not contain it."""
        if reference.startswith("#"):
            uri, fragment = resource.base, reference[1:]
        else:
            try:
                uri, fragment = urldefrag(urljoin(resource.base, reference))
            except ValueError:
                return None
        target_resource = resource if uri == resource.base else self._resources.get(uri)
        if target_resource is None:
            return None
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get((target_resource.base, fragment))
        return self._resolve_pointer(target_resource, fragment)

    def find_dynamic(self, reference: str, resource: SchemaResource) -> ReferenceTarget | None:
        """Returns the target of a dynamic reference. None if another anchor of the same name could replace
        it."""
        if self._dynamic[reference.partition("#")[2]] > 1:
            return None
        return self.find(reference, resource)

    def _resolve_pointer(self, resource: SchemaResource, pointer: str) -> ReferenceTarget | None:
        """Returns the value at a pointer in a resource."""
        value = resource.schema
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and INDEX.fullmatch(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
            resource = self._inner.get(id(value), resource)
        return ReferenceTarget(value, resource)

    # --- identifiers

    def _find_identifiers(self) -> None:
        """Collects the identifiers and anchors of all schemas in the document."""
        waiting: list[tuple[Json, SchemaResource, int]] = [(self.root.schema, self.root, 0)]
        while waiting:
            schema, outer_resource, depth = waiting.pop()
            if not isinstance(schema, dict):
                continue
            resource = outer_resource
            if depth and (identifier := self._find_own_identifier(schema, outer_resource.base)):
                resource = self._inner[id(schema)] = SchemaResource(identifier, schema)
                self._resources.setdefault(identifier, resource)
            self._add_anchors(schema, resource)
            if depth < MAX_NESTING:
                waiting += [(inner, resource, depth + 1) for inner in _list_inner_schemas(schema)]

    def _find_own_identifier(self, schema: Json, base: str, at_root: bool = False) -> str | None:
        """Returns the identifier that a schema declares, without a fragment."""
        if not isinstance(schema, dict):
            return None
        value = schema.get(self._identifier)
        if value is None and at_root and self._draft is None:
            value = schema.get("id")
        if not isinstance(value, str) or value.startswith("#"):
            return None
        if "$ref" in schema and ignores_siblings(self._draft) and not at_root:
            return None
        try:
            identifier = urldefrag(urljoin(base, value[: MAX_IDENTIFIER + 1])).url
        except ValueError:
            return None
        return identifier if len(identifier) <= MAX_IDENTIFIER else f"long:{id(schema)}"

    def _add_anchors(self, schema: Mapping[str, Json], resource: SchemaResource) -> None:
        """Adds the anchors that one schema declares."""
        anchor_target = ReferenceTarget(schema, resource)
        identifier = schema.get(self._identifier)
        if isinstance(identifier, str) and "#" in identifier and ignores_siblings(self._draft):
            self._anchors.setdefault((resource.base, identifier.partition("#")[2]), anchor_target)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str) and not ignores_siblings(self._draft):
                self._anchors.setdefault((resource.base, name), anchor_target)
                self._dynamic[name] += keyword == "$dynamicAnchor"


def _list_inner_schemas(schema: Mapping[str, Json]) -> Iterator[Json]:
    """Yields the direct values of a schema that may be schemas."""
    for name, value in schema.items():
        if name in SINGLE_KEYWORDS and isinstance(value, dict):
            yield value
        elif name in LIST_KEYWORDS and isinstance(value, list):
            yield from value
        elif name in NAMED_KEYWORDS and isinstance(value, dict):
            yield from value.values()


PREFIX = "#/$defs/"


def find_cycle(root: Json, definitions: Mapping[str, Json]) -> str | None:
    """Returns the name of a definition that applies itself to the same value, or `#` for the root. No value
    satisfies such a definition. Returns None if there is no cycle."""
    graph = {name: set(_list_targets(each)) for name, each in definitions.items()}
    graph["#"] = set(_list_targets(root))
    finished_names: set[str] = set()
    for start, start_targets in graph.items():
        path = [(start, iter(start_targets))]
        walked = {start}
        while path:
            name, targets = path[-1]
            following = next((each for each in targets if each not in finished_names), None)
            if following in walked:
                return following
            if following is None:
                path.pop()
                walked.discard(name)
                finished_names.add(name)
            else:
                walked.add(following)
                path.append((following, iter(graph.get(following, ()))))
    return None


def _list_targets(schema: Json) -> Iterator[str]:
    """Yields the names of the definitions that apply to the same value as the schema."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(reference := each.get("$ref"), str):
                yield reference.removeprefix(PREFIX)
            all_of = each.get("allOf")
            waiting += all_of if isinstance(all_of, list) else []


SchemaPlace = tuple["SchemaPlace", str] | None
"""A schema's place in its document: the place of the outer schema, and the step from there. The steps are
linked, because a text for each schema would take memory quadratic in the length of names."""

MAX_STEP, MAX_PLACE = 64, 200
"""The most characters of one step, and of a place, in a message."""


def format_place(place: SchemaPlace) -> str:
    """Formats a place as a JSON pointer."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step[:MAX_STEP])
    return "/".join(["#", *reversed(steps)])[:MAX_PLACE]


class Relaxation(Struct, frozen=True):
    """One keyword that the compiled schema does not enforce."""

    keyword: str
    place: SchemaPlace
    reason: str


class Relaxations:
    """The keywords of one schema that are not enforced. Each keyword is listed once."""

    def __init__(self) -> None:
        self._by_keyword: dict[str, Relaxation] = {}

    def add(self, keyword: str, place: SchemaPlace, reason: str) -> None:
        """Adds a keyword that is not enforced. Only the first place of a keyword is stored."""
        self._by_keyword.setdefault(keyword, Relaxation(keyword, place, reason))

    def list(self) -> tuple[Relaxation, ...]:
        """Returns all relaxations."""
        return tuple(self._by_keyword.values())


def refuse_relaxed(relaxations: Iterable[Relaxation], field: str) -> None:
    """Raises UnsupportedParameter for the first relaxation, if there is one."""
    for each in relaxations:
        raise UnsupportedParameter(
            f"the keyword {each.keyword[:MAX_STEP]} at {format_place(each.place)} of {field} is not "
            f"supported: {each.reason}",
            param=field,
        )


def reject_value(keyword: str, place: SchemaPlace, field: str, problem: str) -> NoReturn:
    """Raises InvalidValue for a value that is invalid in any schema."""
    raise InvalidValue(f"{keyword} at {format_place(place)} of {field} {problem}", param=field)


OPENED = "the patternProperties beside it are not enforced"
"""The reason why a keyword that closes an object is not enforced."""

INEXACT = "$inexact"
"""The key that marks a schema that accepts more or fewer values than its source. No proof uses such a
schema."""

PLACE = "$place"
"""The key of a schema's place in its document."""

HIDDEN = frozenset({INEXACT, PLACE})
"""Keys that are not keywords of JSON Schema."""

Schema = bool | dict[str, Json]


def read_place(value: Json) -> SchemaPlace:
    """Returns a schema's place, which the reader stored under PLACE."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return read_place(value[0]), value[1]
    return None


class ReadSchema(Struct, frozen=True):
    """A schema in the keywords of the newest draft. References are `#` and `#/$defs/NAME`."""

    root: Schema
    definitions: Mapping[str, Schema]
    relaxations: Relaxations


class Position(Struct, frozen=True):
    """The reader's position in the document."""

    place: SchemaPlace
    depth: int
    resource: SchemaResource

    def step(self, *names: str) -> "Position":
        """Returns the position of an inner schema. `names`: the steps to it."""
        place = self.place
        for name in names:
            place = (place, name)
        return Position(place, self.depth + 1, self.resource)


@dataclasses.dataclass
class SchemaBuilder:
    """A schema under construction."""

    keywords: dict[str, Json] = dataclasses.field(default_factory=dict)

    def add(self, name: str, value: Json) -> None:
        """Adds a keyword. If the schema already has the keyword, both values apply."""
        if name not in self.keywords:
            self.keywords[name] = value
            return
        existing = self.keywords[name]
        if name in ("allOf", "required") and isinstance(existing, list) and isinstance(value, list):
            self.keywords[name] = [*existing, *value]
        else:
            self.add("allOf", [{name: value}])

    def mark_inexact(self) -> None:
        """Marks the schema: it accepts more or fewer values than its source."""
        self.keywords[INEXACT] = True


MAX_STEPS = 60_000
"""The most keywords, names and alternatives that proofs and negations can examine. A statement that needs
more counts as unproved."""


@dataclasses.dataclass
class Budget:
    """The remaining steps for one document. The limit keeps the time for each schema below a second."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> bool:
        """Uses some steps. Returns whether enough steps were left."""
        self.steps -= steps
        return self.steps >= 0
