"""Finds the targets of references in a schema, by identifiers, anchors and pointers. Also finds cycles.

It does not follow references to other documents.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urldefrag, urljoin

from antiphon.constraints.json_schema.keywords import Draft, Json, ignores_siblings
from antiphon.domain.values import Struct

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
