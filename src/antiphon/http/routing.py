"""Finds the endpoint of a request, and for a wrong path the endpoint that the caller most likely means.

A path is found in a table, or by the pattern of a path with braces. A suggestion has another prefix, or
differs by a letter. Suggestions are pure: they depend on the routes, which /openapi.json lists, and not on
the caller.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from starlette.routing import compile_path

from antiphon.dialects.base import Endpoint
from antiphon.domain.identity import Right
from antiphon.domain.ledger import NOTHING

OTHER = "other"
"""Label of a path that is none: what callers make up is no label."""

LONGEST_PATH = 200
"""Characters of a path that is looked at; a longer one means none of ours."""

MOST_DROPPED = 3
"""Segments at a path's beginning that may be too many: `/openai/api/v1`."""

SIMILARITY = 0.85
"""How alike two paths are at least of which one is taken for the other, from 0 to 1."""


class RouteMatch(NamedTuple):
    """An endpoint, and what the braces of its path stand for."""

    endpoint: Endpoint
    params: Mapping[str, str]


class Routes:
    """Every endpoint of a server."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._exact: dict[str, dict[str, RouteMatch]] = {}
        open_paths: dict[str, dict[str, RouteMatch]] = {}
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                at = (open_paths if "{" in path else self._exact).setdefault(path, {})
                at[endpoint.method] = RouteMatch(endpoint, NOTHING)
        self._open = [(path, compile_path(path)[0], methods) for path, methods in open_paths.items()]
        self.paths: Sequence[str] = tuple(dict.fromkeys((*self._exact, *open_paths)))
        """As they are declared."""

    @property
    def methods(self) -> frozenset[str]:
        """All that any endpoint takes."""
        return frozenset(endpoint.method for endpoint in self.endpoints)

    def find(self, method: str, path: str) -> RouteMatch | None:
        """The endpoint; None where there is none of this method. HEAD is GET without its body."""
        if method == "HEAD":
            method = "GET"
        if (methods := self._exact.get(path)) is not None:
            return methods.get(method)
        for _, pattern, methods in self._open:
            if (match := pattern.match(path)) is not None and method in methods:
                return RouteMatch(methods[method].endpoint, match.groupdict())
        return None

    def get_right_for_missing(self, path: str) -> Right | None:
        """What a request needs for which there is no endpoint, to be told so: nothing where the path is a
        public one's, else to read."""
        at = self._exact.get(path, {}).values()
        return None if any(found.endpoint.right is None for found in at) else Right.READ

    def list_methods(self, path: str) -> frozenset[str]:
        """The methods that are taken at a path; none where nothing is there."""
        found = set(self._exact.get(path, ())) or {
            method for _, pattern, methods in self._open if pattern.match(path) for method in methods
        }
        return frozenset(found | ({"HEAD"} if "GET" in found else set()))

    def get_label(self, path: str) -> str:
        """The path as it is declared: a label of metrics."""
        if path in self._exact:
            return path
        return next((declared for declared, pattern, _ in self._open if pattern.match(path)), OTHER)

    def list_prefixes(self, prefix: str) -> Iterator[str]:
        """Beginnings of the paths below a prefix, segment by segment."""
        for path in self.paths:
            if path.startswith(prefix):
                parts = path.split("{")[0].rstrip("/").split("/")
                yield from ("/".join(parts[:count]) for count in range(2, len(parts)))


def find_nearest_path(path: str, method: str, routes: Routes, prefixes: Iterable[str]) -> str | None:
    """The path that was meant; None where none is near. `prefixes`: of the dialects, the empty one too. A
    path below one stays there."""
    if len(path) > LONGEST_PATH or not path.isprintable():
        return None
    parts = [part for part in path.split("/") if part]
    ours = next((each for each in prefixes if each and path.startswith(f"{each}/")), "")
    lower = [part.lower() for part in parts[ours.count("/") :]]
    tails = [lower[dropped:] for dropped in range(MOST_DROPPED + 1) if dropped < len(lower)]
    return _find_elsewhere(parts, method, ours, tails, routes) or _find_similar(tails, ours, routes)


def _find_elsewhere(
    parts: list[str], method: str, ours: str, tails: list[list[str]], routes: Routes
) -> str | None:
    """The path of a route under another beginning: first without what stands before it, then with what lacks,
    the shortest first."""
    tries = [_join("", parts)]
    if not ours:
        tries += [_join("", tail) for tail in tails]
    beginnings = sorted(set(routes.list_prefixes(ours)), key=lambda each: (each.count("/"), each))
    tries += [_join(beginning, tail) for tail in tails for beginning in beginnings]
    there = {each: routes.list_methods(each) for each in tries if each.startswith(ours)}
    return next((each for each, methods in there.items() if method in methods), None) or next(
        (each for each, methods in there.items() if methods), None
    )


def _find_similar(tails: list[list[str]], ours: str, routes: Routes) -> str | None:
    """The path of a route that ends almost as this one does."""
    whole = [path for path in routes.paths if path.startswith(ours) and "{" not in path]
    for tail in tails:
        ends = {_join("", each.split("/")[-len(tail) :]): each for each in reversed(whole)}
        if close := difflib.get_close_matches(_join("", tail), ends, n=1, cutoff=SIMILARITY):
            return ends[close[0]]
    return None


def _join(beginning: str, parts: Iterable[str]) -> str:
    return "/".join((beginning, *filter(None, parts)))
