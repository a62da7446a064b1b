"""The route that a wrong path most likely means: under another prefix, or with a letter wrong. Pure; it knows
the table of routes, all of which /openapi.json lists, and nothing of who asks."""

import difflib
from collections.abc import Iterable, Iterator, Sequence

from starlette.routing import Match, Route

LONGEST = 200
"""Characters of a path that is looked at; a longer one means none of ours."""

MOST_DROPPED = 3
"""Segments at a path's beginning that may be too many: `/openai/api/v1`."""

ALIKE = 0.85
"""How alike two paths are at least of which one is taken for the other, from 0 to 1."""


def nearest_path(path: str, method: str, table: Sequence[Route], prefixes: Iterable[str]) -> str | None:
    """The path that was meant; None where none is near. `prefixes`: of the dialects, the empty one too. A
    path below one stays there."""
    if len(path) > LONGEST or not path.isprintable():
        return None
    parts = [part for part in path.split("/") if part]
    ours = next((each for each in prefixes if each and path.startswith(f"{each}/")), "")
    routes = [route for route in table if route.path.startswith(ours)]
    lower = [part.lower() for part in parts[ours.count("/") :]]
    tails = [lower[dropped:] for dropped in range(MOST_DROPPED + 1) if dropped < len(lower)]
    return _elsewhere(parts, method, ours, tails, routes) or _alike(tails, routes)


def _elsewhere(
    parts: list[str], method: str, ours: str, tails: list[list[str]], routes: Sequence[Route]
) -> str | None:
    """The path of a route under another beginning: first without what stands before it, then with what lacks,
    the shortest first."""
    tries = [_joined("", parts)]
    if not ours:
        tries += [_joined("", tail) for tail in tails]
    beginnings = sorted(set(_beginnings(routes)), key=lambda each: (each.count("/"), each))
    tries += [_joined(beginning, tail) for tail in tails for beginning in beginnings]
    for fits in (Match.FULL, Match.PARTIAL):  # a route of another method only where none is of this one
        for each in tries:
            if any(route.matches(_scope(each, method))[0] is fits for route in routes):
                return each
    return None


def _alike(tails: list[list[str]], routes: Sequence[Route]) -> str | None:
    """The path of a route that ends almost as this one does."""
    whole = [route.path for route in routes if "{" not in route.path]
    for tail in tails:
        ends = {_joined("", each.split("/")[-len(tail) :]): each for each in reversed(whole)}
        if close := difflib.get_close_matches(_joined("", tail), ends, n=1, cutoff=ALIKE):
            return ends[close[0]]
    return None


def _joined(beginning: str, parts: Iterable[str]) -> str:
    return "/".join((beginning, *filter(None, parts)))


def _beginnings(routes: Iterable[Route]) -> Iterator[str]:
    for route in routes:
        parts = route.path.split("{")[0].rstrip("/").split("/")
        yield from ("/".join(parts[:count]) for count in range(2, len(parts)))


def _scope(path: str, method: str) -> dict[str, str]:
    return {"type": "http", "path": path, "root_path": "", "method": method}
