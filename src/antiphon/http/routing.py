"""Finds the endpoint of a request: by its path in a table, or by the pattern of a path with braces."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from starlette.routing import compile_path

from antiphon.dialects.base import Endpoint
from antiphon.domain.identity import Right
from antiphon.domain.ledger import NOTHING

OTHER = "other"
"""Label of a path that is none: what callers make up is no label."""


class Found(NamedTuple):
    """An endpoint, and what the braces of its path stand for."""

    endpoint: Endpoint
    params: Mapping[str, str]


class Routes:
    """Every endpoint of a server."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.endpoints = tuple(endpoints)
        self._exact: dict[str, dict[str, Found]] = {}
        open_paths: dict[str, dict[str, Found]] = {}
        for endpoint in self.endpoints:
            for path in endpoint.paths:
                at = (open_paths if "{" in path else self._exact).setdefault(path, {})
                at[endpoint.method] = Found(endpoint, NOTHING)
        self._open = [(path, compile_path(path)[0], methods) for path, methods in open_paths.items()]
        self.paths: Sequence[str] = tuple(dict.fromkeys((*self._exact, *open_paths)))
        """As they are declared."""

    @property
    def methods(self) -> frozenset[str]:
        """All that any endpoint takes."""
        return frozenset(endpoint.method for endpoint in self.endpoints)

    def find(self, method: str, path: str) -> Found | None:
        """The endpoint; None where there is none of this method. HEAD is GET without its body."""
        if method == "HEAD":
            method = "GET"
        if (methods := self._exact.get(path)) is not None:
            return methods.get(method)
        for _, pattern, methods in self._open:
            if (match := pattern.match(path)) is not None and method in methods:
                return Found(methods[method].endpoint, match.groupdict())
        return None

    def right_beside(self, path: str) -> Right | None:
        """What a request needs for which there is no endpoint, to be told so: nothing where the path is a
        public one's, else to read."""
        at = self._exact.get(path, {}).values()
        return None if any(found.endpoint.right is None for found in at) else Right.READ

    def methods_at(self, path: str) -> frozenset[str]:
        """The methods that are taken at a path; none where nothing is there."""
        found = set(self._exact.get(path, ())) or {
            method for _, pattern, methods in self._open if pattern.match(path) for method in methods
        }
        return frozenset(found | ({"HEAD"} if "GET" in found else set()))

    def label(self, path: str) -> str:
        """The path as it is declared: a label of metrics."""
        if path in self._exact:
            return path
        return next((declared for declared, pattern, _ in self._open if pattern.match(path)), OTHER)

    def beginnings(self, prefix: str) -> Iterator[str]:
        """Beginnings of the paths below a prefix, segment by segment."""
        for path in self.paths:
            if path.startswith(prefix):
                parts = path.split("{")[0].rstrip("/").split("/")
                yield from ("/".join(parts[:count]) for count in range(2, len(parts)))
