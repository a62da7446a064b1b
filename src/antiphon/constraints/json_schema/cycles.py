"""Definitions that are nothing but references to themselves: no value satisfies them, and none can be
generated."""

from collections.abc import Iterator, Mapping

from antiphon.constraints.json_schema.drafts import Json

PREFIX = "#/$defs/"


def find_cycle(root: Json, definitions: Mapping[str, Json]) -> str | None:
    """The name of a definition that has to hold for itself to hold, or `#` for the root; None where there is
    none."""
    graph = {name: set(_targets(each)) for name, each in definitions.items()} | {"#": set(_targets(root))}
    done: set[str] = set()
    for start in graph:
        path = [(start, iter(graph[start]))]
        walked = {start}
        while path:
            name, targets = path[-1]
            following = next((each for each in targets if each not in done), None)
            if following in walked:
                return following
            if following is None:
                path.pop()
                walked.discard(name)
                done.add(name)
            else:
                walked.add(following)
                path.append((following, iter(graph.get(following, ()))))
    return None


def _targets(schema: Json) -> Iterator[str]:
    """The definitions that have to hold where a schema does."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(reference := each.get("$ref"), str):
                yield reference.removeprefix(PREFIX)
            both = each.get("allOf")
            waiting += both if isinstance(both, list) else []
