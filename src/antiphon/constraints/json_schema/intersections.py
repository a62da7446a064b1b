"""Drops keywords that the compiler cannot combine with others that apply to the same value, and names them.

The compiler makes one schema of all keywords that apply to a value. It cannot combine a reference with
other keywords while it still reads the reference's target, nor two patterns of names that overlap. The
functions here change schemas that are written for the compiler, and read them in its order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations

from antiphon.constraints.json_schema.lengths import DATA, NAMED, walk_schemas
from antiphon.constraints.json_schema.objects import are_patterns_apart
from antiphon.constraints.json_schema.schemas import PREFIX, Budget, Json

IN_PLACE = ("$ref", "anyOf", "allOf")
"""Keywords whose schemas apply to the same value."""

Relax = Callable[[str, str], None]
"""Adds a relaxation: a keyword and a reason."""

RECURSIVE = "a $ref beside it leads back to this schema"
OVERLAPPING = "a name can match two patterns of schemas that apply together"


def drop_beside_cycles(root: Json, definitions: Mapping[str, Json], relax: Relax, budget: Budget) -> None:
    """Drops the keywords beside a reference that is inside its own target. Stops when the budget is spent:
    the compiler refuses the rest."""
    read: set[str] = set()
    open_targets: set[str] = set()
    waiting: list[tuple[str, Json]] = [("schema", root)]
    while waiting:
        step, value = waiting.pop()
        if step == "end" and isinstance(value, str):
            open_targets.discard(value)
        elif step == "$ref" and isinstance(value, str) and value not in read:
            read.add(value)
            open_targets.add(value)
            target = root if value == "#" else definitions.get(value.removeprefix(PREFIX))
            waiting += [("end", value), ("schema", target)]
        elif step == "schema" and isinstance(value, dict):
            if open_targets and (len(value) > 1 or "allOf" in value):
                _keep_only_open(value, open_targets, relax, budget)
            waiting += reversed(list(_list_steps(value)))


def _list_steps(schema: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    """Yields the references and schemas in a schema, in the order in which the compiler reads them."""
    for name, value in schema.items():
        if name == "$ref":
            yield name, value
        elif isinstance(value, list) and name not in DATA:
            yield from (("schema", each) for each in value)
        elif isinstance(value, dict) and name not in DATA:
            yield from (("schema", each) for each in (value.values() if name in NAMED else (value,)))


def _keep_only_open(schema: dict[str, Json], open_targets: set[str], relax: Relax, budget: Budget) -> None:
    """Reduces a schema to the keyword that contains a reference to an open target, if there is one."""
    for keyword in IN_PLACE:
        if keyword not in schema:
            continue
        references = set(_list_references({keyword: schema[keyword]}, budget))
        if not open_targets & references:
            continue
        for name in [each for each in schema if each != keyword]:
            del schema[name]
            relax(name, RECURSIVE)
        parts = schema.get("allOf")
        if isinstance(parts, list) and len(parts) > 1:
            schema["allOf"] = [
                next(each for each in parts if open_targets.intersection(_list_references(each, budget)))
            ]
            relax("allOf", RECURSIVE)
        return


def _list_references(schema: Json, budget: Budget) -> Iterator[str]:
    """Yields the references that apply to the same value as a schema, without following them."""
    waiting = [schema]
    while waiting and budget.spend(1):
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(reference := each.get("$ref"), str):
                yield reference
            waiting += _list_branches(each)


def drop_overlapping_patterns(
    root: Json, definitions: Mapping[str, Json], relax: Relax, budget: Budget
) -> None:
    """Drops the patterns of names that overlap although their schemas apply together. Stops when the budget
    is spent: the compiler refuses the rest."""
    schemas = list(walk_schemas([root, *definitions.values()]))
    if are_patterns_apart(_list_patterns(schemas)):
        return
    overlapping: dict[int, dict[str, Json]] = {}
    for schema in schemas:
        together = [
            (each, _list_patterns([each]), choices)
            for each, choices in _list_together(schema, definitions, budget)
            if "patternProperties" in each
        ]
        if are_patterns_apart(_list_patterns(each for each, _, _ in together)):
            continue
        for (first, patterns, choices), (second, other_patterns, other_choices) in combinations(together, 2):
            if not budget.spend(len(patterns) + len(other_patterns)):
                break
            if any(other_choices.get(union, branch) != branch for union, branch in choices.items()):
                continue  # two branches of one anyOf, which never apply together
            if not are_patterns_apart(list(dict.fromkeys([*patterns, *other_patterns]))):
                overlapping |= {id(first): first, id(second): second}
    for schema in overlapping.values():
        del schema["patternProperties"]
        relax("patternProperties", OVERLAPPING)
        if schema.pop("additionalProperties", True) is not True:
            relax("additionalProperties", OVERLAPPING)


def _list_patterns(schemas: Iterable[Mapping[str, Json]]) -> list[str]:
    """Returns the different patterns of names in schemas."""
    patterns: dict[str, None] = {}
    for schema in schemas:
        own = schema.get("patternProperties")
        patterns |= dict.fromkeys(own if isinstance(own, dict) else ())
    return list(patterns)


_Choices = Mapping[int, int]
"""The branch that is chosen of each `anyOf`, by the id of its list."""


def _list_together(
    schema: dict[str, Json], definitions: Mapping[str, Json], budget: Budget
) -> Iterator[tuple[dict[str, Json], _Choices]]:
    """Yields a schema and those that can apply to the same value, each with the choices that it needs."""
    found: set[int] = set()
    waiting: list[tuple[Json, _Choices]] = [(schema, {})]
    while waiting and budget.spend(1):
        each, choices = waiting.pop()
        if not isinstance(each, dict) or id(each) in found:
            continue
        found.add(id(each))
        yield each, choices
        if isinstance(reference := each.get("$ref"), str):
            waiting.append((definitions.get(reference.removeprefix(PREFIX)), choices))
        parts, branches = each.get("allOf"), each.get("anyOf")
        waiting += [(part, choices) for part in (parts if isinstance(parts, list) else ())]
        if isinstance(branches, list):
            waiting += [(branch, {**choices, id(branches): index}) for index, branch in enumerate(branches)]


def _list_branches(schema: Mapping[str, Json]) -> Iterator[Json]:
    """Yields the schemas in `anyOf` and `allOf`."""
    for name in ("anyOf", "allOf"):
        branches = schema.get(name)
        yield from branches if isinstance(branches, list) else ()
