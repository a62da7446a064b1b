"""The interface between the scheduler and a layout of the KV cache, and the values that layouts share."""

from array import array
from collections.abc import Iterator
from typing import Protocol

from antiphon.domain.values import Struct
from antiphon.engines.llama.sequence import TokenSequence


class PrefixNode:
    """A node of the prefix tree. It represents the tokens from `start` to `end` of every sequence whose path
    includes the node."""

    __slots__ = (
        "children",
        "ids",
        "last_used",
        "owner",
        "parent",
        "running_count",
        "start",
        "stop",
        "tokens",
    )

    def __init__(self, tokens: "array[int]", start: int, stop: int, parent: "PrefixNode | None") -> None:
        self.tokens = tokens
        """The tokens of a whole sequence whose path includes the node."""
        self.start = start
        self.stop = stop
        """Where the node's tokens end, unless the node has an owner."""
        self.parent = parent
        """None for a root."""
        self.owner: TokenSequence | None = None
        """The running sequence whose path ends in this node; None if the node does not grow."""
        self.children: list[PrefixNode] = []
        self.ids: set[int] = set()
        """The KV cache ids that use the cells of the node."""
        self.running_count = 0
        """The number of these ids that belong to running sequences."""
        self.last_used = 0
        """The number of the latest admission or end of a sequence that uses this node. A higher number is
        later."""

    @property
    def end(self) -> int:
        return self.stop if self.owner is None else self.owner.computed

    @property
    def size(self) -> int:
        return self.end - self.start

    def find_root(self) -> "PrefixNode":
        """The root of the tree that contains this node."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def walk_up(self) -> "Iterator[PrefixNode]":
        """Yields this node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class PrefixMatch(Struct, frozen=True):
    """The longest beginning of a sequence that is already computed, and where it is in the cache."""

    length: int
    """The number of its tokens."""
    node: PrefixNode | None = None
    """In a pool, the tree node in which the match ends."""
    id: int | None = None
    """In streams, the stream whose content begins with these tokens."""


class TrimCells(Struct, frozen=True):
    """An order to free the cells of an id from a position on. A medium can have fewer positions than
    cells."""

    id: int
    start: int = 0


class CopyCells(Struct, frozen=True):
    """An order to copy the first `length` positions of one id to another, which is empty."""

    source: int
    target: int
    length: int


CacheChange = TrimCells | CopyCells


class CacheLayout(Protocol):
    """Assigns the cells of the cache to sequences, and keeps computed prefixes for later sequences."""

    total: int
    """The number of all cells."""
    changes: list[CacheChange]
    """Changes to make to the cache, in this order; the decode loop carries them out and empties the list."""

    @property
    def used_cells(self) -> int:
        """The number of cells that running sequences use. A cell that several sequences share counts once."""

    @property
    def cached_cells(self) -> int:
        """The number of cells that are kept for later sequences and that no running sequence uses."""

    def match(self, sequence: TokenSequence) -> PrefixMatch:
        """Finds the longest beginning of the sequence whose cells it may take from the cache."""

    def count_shareable(self, running: TokenSequence, waiting: TokenSequence) -> int:
        """Returns how many leading tokens of a waiting sequence the running sequence will have computed when
        its prompt is computed."""

    def count_available(self, match: PrefixMatch) -> int:
        """The number of cells that a sequence with this match may get. The number includes kept cells outside
        the match."""

    def admit(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Gives the sequence a KV cache id and the cells of its match."""

    def release(self, sequence: TokenSequence, keep_prefix: bool) -> None:
        """Takes the sequence's id back. `keep_prefix`: whether the sequence's computed tokens may stay in the
        cache."""

    def reserve(self, count: int) -> bool:
        """Frees kept cells as needed. Returns whether at least `count` cells are free afterwards."""

    def forget(self, adapter: str) -> None:
        """Frees the cells of all kept prefixes that were computed with this adapter."""

    def forget_all(self) -> None:
        """Frees the cells of all kept prefixes."""
