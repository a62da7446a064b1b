"""What the scheduler asks of a layout of the KV cache, and the changes that a layout orders.

`pool` and `lanes` implement it. They decide and count; the decode loop carries the changes out, in order.
"""

from dataclasses import dataclass
from typing import Protocol

from antiphon.engines.llama.nodes import Match
from antiphon.engines.llama.sequence import Sequence


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
