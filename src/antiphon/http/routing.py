"""Finds the endpoint of a request, and suggests a path if the requested path is wrong.

A table contains the paths without parameters, and regular expressions match the paths with parameters in
braces. A suggested path has a different prefix than the wrong path, or similar segments. Suggestions depend
only on the routes, which /openapi.json lists. They never depend on the caller.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from antiphon.dialects.base import Endpoint
from antiphon.domain.identity import Right
from antiphon.domain.ledger import NOTHING

UNKNOWN_PATH = "other"
"""The metrics label of every unknown path. So paths that callers invent never become labels."""

MAX_PATH_LENGTH = 200
"""The most characters of a path that gets a suggestion."""

MAX_DROPPED = 3
"""The most segments that a suggestion drops from a path's beginning, as from `/openai/api/v1`."""

SIMILARITY = 0.85
"""The smallest similarity between a wrong path and its suggestion, from 0 to 1."""


PLACEHOLDER = re.compile(r"{(?P<name>[a-z_]+)(?P<several>:path)?}")
"""A parameter in a declared path."""


class RouteMatch(NamedTuple):
    """An endpoint, the values of the parameters in the path, and the metrics label of the path."""

    endpoint: Endpoint
    params: Mapping[str, str]
    label: str


class Routes:
    """Every endpoint of a server."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._plain: dict[str, dict[str, RouteMatch]] = {}
        """The endpoints of paths without parameters, by path and method."""
        pattern_paths: dict[str, dict[str, RouteMatch]] = {}
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                methods = (pattern_paths if "{" in path else self._plain).setdefault(path, {})
                methods[endpoint.method] = RouteMatch(endpoint, NOTHING, path)
        self._patterns = [(path, compile_path(path), methods) for path, methods in pattern_paths.items()]
        suggested_paths = {
            path for endpoint in self.endpoints if endpoint.is_suggested for path in endpoint.paths
        }
        declared_paths = dict.fromkeys((*self._plain, *pattern_paths))
        self.paths: Sequence[str] = tuple(path for path in declared_paths if path in suggested_paths)
        """The paths that errors can suggest, in the order of their declaration."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods of all endpoints."""
        return frozenset(endpoint.method for endpoint in self.endpoints)

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Returns the endpoint of a method and path, or None. HEAD uses the endpoint of GET."""
        if method == "HEAD":
            method = "GET"
        if (methods := self._plain.get(path)) is not None:
            return methods.get(method)
        for _, pattern, methods in self._patterns:
            if (match := pattern.match(path)) is not None and method in methods:
                return RouteMatch(methods[method].endpoint, match.groupdict(), self.get_label(path))
        return None

    def get_right_for_missing(self, path: str) -> Right | None:
        """Returns the right that a caller needs to see the error for a missing endpoint. It is the right to
        read, or None for a wrong method on a public path."""
        matches = self._plain.get(path, {}).values()
        return None if any(match.endpoint.right is None for match in matches) else Right.READ

    def list_methods(self, path: str) -> frozenset[str]:
        """Returns the methods that a path accepts. The set is empty for an unknown path."""
        matches = self._plain.get(path, {})
        allowed_methods = {method for method, match in matches.items() if match.endpoint.is_suggested} or {
            method for _, pattern, methods in self._patterns if pattern.match(path) for method in methods
        }
        return frozenset(allowed_methods | ({"HEAD"} if "GET" in allowed_methods else set()))

    def get_label(self, path: str) -> str:
        """Returns the metrics label of a request's path: the declared path of its endpoint, or
        UNKNOWN_PATH."""
        if path in self._plain:
            return path
        return next(
            (declared_path for declared_path, pattern, _ in self._patterns if pattern.match(path)),
            UNKNOWN_PATH,
        )

    def can_suggest(self, path: str) -> bool:
        """Whether an error can suggest a path, because the path has an endpoint that can be suggested."""
        return self.get_label(path) in self.paths

    def list_prefixes(self, prefix: str) -> Iterator[str]:
        """Yields the beginnings of all paths below a prefix, segment by segment."""
        for path in self.paths:
            if path.startswith(prefix):
                segments = path.split("{")[0].rstrip("/").split("/")
                yield from ("/".join(segments[:length]) for length in range(2, len(segments)))


def compile_path(path: str) -> re.Pattern[str]:
    """Returns the pattern of the paths that a declared path means. `{name}` matches one segment, and
    `{name:path}` several."""
    pattern, end = "", 0
    for match in PLACEHOLDER.finditer(path):
        segments = ".*" if match["several"] else "[^/]+"
        pattern += f"{re.escape(path[end : match.start()])}(?P<{match['name']}>{segments})"
        end = match.end()
    return re.compile(rf"{pattern}{re.escape(path[end:])}\Z")


def find_nearest_path(path: str, method: str, routes: Routes, prefixes: Iterable[str]) -> str | None:
    """Returns the path that the caller most likely means, or None. A path below a dialect's prefix gets a
    suggestion below the same prefix.

    `prefixes`: the prefixes of all dialects, including the empty one.
    """
    if len(path) > MAX_PATH_LENGTH or not path.isprintable():
        return None
    segments = [segment for segment in path.split("/") if segment]
    dialect_prefix = next((prefix for prefix in prefixes if prefix and path.startswith(f"{prefix}/")), "")
    lower_segments = [segment.lower() for segment in segments[dialect_prefix.count("/") :]]
    tails = [lower_segments[dropped:] for dropped in range(MAX_DROPPED + 1) if dropped < len(lower_segments)]
    return _find_with_other_prefix(segments, method, dialect_prefix, tails, routes) or _find_similar(
        tails, dialect_prefix, routes
    )


def _find_with_other_prefix(
    segments: list[str], method: str, dialect_prefix: str, tails: list[list[str]], routes: Routes
) -> str | None:
    """Returns a declared path with the same end as the wrong path and another beginning, or None. Prefers a
    path that accepts `method`. Paths with fewer segments than the wrong path come before paths with more."""
    candidates = [_join_path("", segments)]
    if not dialect_prefix:
        candidates += [_join_path("", tail) for tail in tails]
    beginnings = sorted(set(routes.list_prefixes(dialect_prefix)), key=lambda path: (path.count("/"), path))
    candidates += [_join_path(beginning, tail) for tail in tails for beginning in beginnings]
    suggestible_paths = [
        path for path in candidates if path.startswith(dialect_prefix) and routes.can_suggest(path)
    ]
    methods_by_path = {path: routes.list_methods(path) for path in suggestible_paths}
    return next((path for path, methods in methods_by_path.items() if method in methods), None) or next(
        (path for path, methods in methods_by_path.items() if methods), None
    )


def _find_similar(tails: list[list[str]], dialect_prefix: str, routes: Routes) -> str | None:
    """Returns a declared path whose last segments are similar to those of the wrong path, or None. `tails`:
    the segments of the wrong path below the dialect's prefix: all, then without the first, and so on."""
    plain_paths = [path for path in routes.paths if path.startswith(dialect_prefix) and "{" not in path]
    for tail in tails:
        paths_by_end = {_join_path("", path.split("/")[-len(tail) :]): path for path in reversed(plain_paths)}
        if similar_ends := difflib.get_close_matches(
            _join_path("", tail), paths_by_end, n=1, cutoff=SIMILARITY
        ):
            return paths_by_end[similar_ends[0]]
    return None


def _join_path(beginning: str, segments: Iterable[str]) -> str:
    """Joins segments to a path. Empty segments are left out."""
    return "/".join((beginning, *filter(None, segments)))
