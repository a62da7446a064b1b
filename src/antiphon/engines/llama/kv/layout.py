"""What the scheduler asks of a layout of the KV cache, and the values that layouts share."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

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


@dataclass(frozen=True, slots=True)
class Trim:
    """Frees the cells of an id from a position on."""

    id: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` positions of one id are to be those of another, which is empty."""

    source: int
    target: int
    length: int


Change = Trim | Copy


class Cells(Protocol):
    """The cells of the cache, who uses them, and what is kept in them."""

    total: int
    changes: list[Change]
    """What is to be done to the cache, in this order; whoever does it empties the list."""

    @property
    def used(self) -> int:
        """Cells of running sequences, shared ones counted once."""

    @property
    def cached(self) -> int:
        """Cells that are kept for later and that no running sequence uses."""

    def match(self, sequence: Sequence) -> Match:
        """The longest part of the sequence that it may take from the cache."""

    def shareable(self, running: Sequence, waiting: Sequence) -> int:
        """How much of a waiting sequence a running one will have computed, when its prompt is."""

    def count_available(self, match: Match) -> int:
        """Cells that a sequence with this match could be given, kept ones that it does not share included."""

    def admit(self, sequence: Sequence, match: Match) -> None:
        """Gives it an id, and what it shares."""

    def release(self, sequence: Sequence, keep: bool) -> None:
        """Takes its id back; its computed tokens may stay."""

    def reserve(self, count: int) -> bool:
        """Whether so many cells are free, after giving up what is kept as far as needed."""

    def forget(self, adapter: str) -> None:
        """Gives up everything that is kept of prompts computed with this adapter."""

    def forget_all(self) -> None:
        """Gives up everything that is kept."""
