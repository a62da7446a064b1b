"""What the scheduler asks of a layout of the KV cache, and the values that layouts share."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from antiphon.engines.llama.sequence import TokenSequence


class PrefixNode:
    """Tokens from `start` on of every sequence that passes through."""

    __slots__ = ("active", "children", "ids", "owner", "parent", "start", "stop", "tokens", "used")

    def __init__(self, tokens: "array[int]", start: int, stop: int, parent: "PrefixNode | None") -> None:
        self.tokens = tokens
        """The whole sequence's; the node's own lie from `start` to `end`."""
        self.start = start
        self.stop = stop
        self.parent = parent
        """None for a root."""
        self.owner: TokenSequence | None = None
        """The running sequence whose tail it is."""
        self.children: list[PrefixNode] = []
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

    def find_root(self) -> "PrefixNode":
        """The root of its tree."""
        node = self
        while node.parent is not None:
            node = node.parent
        return node

    def walk_up(self) -> "Iterator[PrefixNode]":
        """Itself and the nodes above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The tokens of a sequence that are computed already, and their place in the cache."""

    length: int
    node: PrefixNode | None = None
    """In a pool: the node of the tree in which it ends."""
    id: int | None = None
    """In streams: the stream whose content begins so."""


@dataclass(frozen=True, slots=True)
class TrimCells:
    """Frees the cells of an id from a position on."""

    id: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class CopyCells:
    """Copies the first `length` positions of one id to another, which is empty."""

    source: int
    target: int
    length: int


CacheChange = TrimCells | CopyCells


class CacheLayout(Protocol):
    """The cells of the cache: which sequences use them, and which are kept."""

    total: int
    changes: list[CacheChange]
    """What is to be done to the cache, in this order; whoever does it empties the list."""

    @property
    def used(self) -> int:
        """Cells of running sequences, shared ones counted once."""

    @property
    def cached(self) -> int:
        """Cells that are kept for later and that no running sequence uses."""

    def match(self, sequence: TokenSequence) -> PrefixMatch:
        """The longest beginning of the sequence that it may take from the cache."""

    def count_shareable(self, running: TokenSequence, waiting: TokenSequence) -> int:
        """How many tokens of a waiting sequence a running one will have computed when its prompt is
        computed."""

    def count_available(self, match: PrefixMatch) -> int:
        """Cells that a sequence with this match may get, including kept cells that it does not share."""

    def admit(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Gives the sequence an id and the prefix that it shares."""

    def release(self, sequence: TokenSequence, keep: bool) -> None:
        """Takes the sequence's id back; its computed tokens may stay."""

    def reserve(self, count: int) -> bool:
        """Frees kept cells as needed; whether so many cells are free then."""

    def forget(self, adapter: str) -> None:
        """Gives up all kept prompts that were computed with this adapter."""

    def forget_all(self) -> None:
        """Gives up all kept prompts."""
