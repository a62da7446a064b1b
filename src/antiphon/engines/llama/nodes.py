"""What the tree of prefixes is made of, and what a search in it finds. Values only."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.engines.llama.sequence import Sequence


class Node:
    """Tokens from `start` on of every sequence that passes through."""

    __slots__ = ("active", "children", "ids", "owner", "parent", "start", "stop", "tokens", "used")

    def __init__(self, tokens: "array[int]", start: int, stop: int, parent: "Node | None") -> None:
        self.tokens = tokens
        """The whole sequence's; the node's own lie from `start` to `end`."""
        self.start = start
        self.stop = stop
        self.parent = parent
        """None for a root."""
        self.owner: Sequence | None = None
        """The running sequence whose tail it is."""
        self.children: list[Node] = []
        self.ids: set[int] = set()
        """Ids that hold its cells."""
        self.active = 0
        """How many of these run."""
        self.used = 0
        """When it was last begun or ended with; the higher, the later."""

    @property
    def end(self) -> int:
        return self.stop if self.owner is None else self.owner.computed

    @property
    def size(self) -> int:
        return self.end - self.start

    def root(self) -> "Node":
        """The uppermost above it."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def path(self) -> "Iterator[Node]":
        """Itself and all above it, less the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class Match:
    """Tokens of a sequence that are computed already, and where."""

    length: int
    node: Node | None = None
    """In a pool: the node of the tree in which it ends."""
    id: int | None = None
    """In lanes: whose content begins so."""
