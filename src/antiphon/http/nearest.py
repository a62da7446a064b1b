"""The route that a wrong path most likely means: under another prefix, or with a letter wrong. Pure; it knows
the table of routes, all of which /openapi.json lists, and nothing of who asks."""

import difflib
from collections.abc import Iterable

from antiphon.http.routing import Routes

LONGEST = 200
"""Characters of a path that is looked at; a longer one means none of ours."""

MOST_DROPPED = 3
"""Segments at a path's beginning that may be too many: `/openai/api/v1`."""

ALIKE = 0.85
"""How alike two paths are at least of which one is taken for the other, from 0 to 1."""


def nearest_path(path: str, method: str, routes: Routes, prefixes: Iterable[str]) -> str | None:
    """The path that was meant; None where none is near. `prefixes`: of the dialects, the empty one too. A
    path below one stays there."""
    if len(path) > LONGEST or not path.isprintable():
        return None
    parts = [part for part in path.split("/") if part]
    ours = next((each for each in prefixes if each and path.startswith(f"{each}/")), "")
    lower = [part.lower() for part in parts[ours.count("/") :]]
    tails = [lower[dropped:] for dropped in range(MOST_DROPPED + 1) if dropped < len(lower)]
    return _elsewhere(parts, method, ours, tails, routes) or _alike(tails, ours, routes)


def _elsewhere(
    parts: list[str], method: str, ours: str, tails: list[list[str]], routes: Routes
) -> str | None:
    """The path of a route under another beginning: first without what stands before it, then with what lacks,
    the shortest first."""
    tries = [_joined("", parts)]
    if not ours:
        tries += [_joined("", tail) for tail in tails]
    beginnings = sorted(set(routes.beginnings(ours)), key=lambda each: (each.count("/"), each))
    tries += [_joined(beginning, tail) for tail in tails for beginning in beginnings]
    there = {each: routes.methods_at(each) for each in tries if each.startswith(ours)}
    return next((each for each, methods in there.items() if method in methods), None) or next(
        (each for each, methods in there.items() if methods), None
    )


def _alike(tails: list[list[str]], ours: str, routes: Routes) -> str | None:
    """The path of a route that ends almost as this one does."""
    whole = [path for path in routes.paths if path.startswith(ours) and "{" not in path]
    for tail in tails:
        ends = {_joined("", each.split("/")[-len(tail) :]): each for each in reversed(whole)}
        if close := difflib.get_close_matches(_joined("", tail), ends, n=1, cutoff=ALIKE):
            return ends[close[0]]
    return None


def _joined(beginning: str, parts: Iterable[str]) -> str:
    return "/".join((beginning, *filter(None, parts)))
