"""One pool of cells for all: prefixes are shared without copying.

There are more ids than running sequences; the id of one that is over goes on holding what was computed, until
its cells or its id are needed. The least recently used goes first, its end before its beginning.
"""

from heapq import heapify, heappop, heappush

from antiphon.engines.llama.cells import Change, Copy, Trim
from antiphon.engines.llama.nodes import Match
from antiphon.engines.llama.prefixes import PrefixTree
from antiphon.engines.llama.sequence import Sequence, common

GRAIN = 64
"""Cells of a kept prefix that are given up at once, if it has so many: each time the library searches all."""


class PoolLayout:
    """`Cells` of one pool. Used cells, kept cells and free ones make up the total."""

    def __init__(self, ids: int, total: int, most_kept: int | None = None) -> None:
        self.total = total
        self._most_kept = total if most_kept is None else most_kept
        self.changes: list[Change] = []
        self.tree = PrefixTree()
        self._ids = list(range(ids))
        heapify(self._ids)

    @property
    def used(self) -> int:
        return self.tree.used

    @property
    def cached(self) -> int:
        return self.tree.cached

    @property
    def free(self) -> int:
        return self.total - self.tree.used - self.tree.cached

    def match(self, sequence: Sequence) -> Match:
        return self.tree.match(sequence.key, sequence.tokens, sequence.takes)

    def shareable(self, running: Sequence, waiting: Sequence) -> int:
        return common(running.tokens, waiting.tokens, 0, min(len(running.tokens), waiting.takes))

    def count_available(self, match: Match) -> int:
        return self.total - self.tree.used - self.tree.idle_cells(match)

    def admit(self, sequence: Sequence, match: Match) -> None:
        keeper = self.tree.keeper(match)
        if keeper is None and not self._ids:
            self._free_an_id(match)
            match = self.match(sequence)
            keeper = self.tree.keeper(match)
        if keeper is not None:
            sequence.id = keeper
        else:
            sequence.id = heappop(self._ids)
            if match.node is not None and match.length:
                self.changes.append(Copy(min(match.node.ids), sequence.id, match.length))
        sequence.computed = match.length
        self.tree.begin(sequence, match)

    def release(self, sequence: Sequence, keep: bool) -> None:
        seat = sequence.seat
        if not self.tree.finish(sequence, keep):
            self._take_back(seat)
        sequence.id = None
        while (excess := self.tree.cached - self._most_kept) > 0:
            self._give_up(excess)

    def reserve(self, count: int) -> bool:
        while (short := count - self.free) > 0 and self.tree.kept:
            self._give_up(short)
        return short <= 0

    def forget(self, adapter: str) -> None:
        self._forget(self.tree.kept_with(adapter))

    def forget_all(self) -> None:
        self._forget(list(self.tree.kept))

    def _forget(self, seats: list[int]) -> None:
        for seat in seats:
            self.tree.forget(seat)
            self._take_back(seat)

    def _give_up(self, count: int) -> None:
        """Frees about so many cells of the least recently used kept id."""
        seat, leaf = min(self.tree.kept.items(), key=lambda item: item[1].used)
        cut = max(count, GRAIN)
        stop = leaf.stop - cut if leaf.size >= cut + GRAIN else leaf.start
        if self.tree.trim(seat, stop):
            self.changes.append(Trim(seat, stop))
        else:
            self._take_back(seat)

    def _free_an_id(self, match: Match) -> None:
        """Gives up the least recently used kept id, best one that does not hold the match alone."""
        kept = self.tree.kept
        seat = min(kept, key=lambda seat: (kept[seat] is match.node, kept[seat].used))
        if kept[seat] is not match.node:
            self.tree.forget(seat)
            self._take_back(seat)
        else:
            self.tree.trim(seat, match.length)
            self.changes.append(Trim(seat, match.length))

    def _take_back(self, seat: int) -> None:
        self.changes.append(Trim(seat))
        heappush(self._ids, seat)
