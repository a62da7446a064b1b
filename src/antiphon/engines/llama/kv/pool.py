"""One pool of cells for all sequences: prefixes are shared without copying.

There are more ids than running sequences. The id of a finished sequence keeps holding what was computed until
its cells or its id are needed; the least recently used goes first, its end before its beginning.

A radix tree for each adapter and cache salt says which tokens are computed, by running and by kept sequences.
A node stands for cells that belong to the same ids, so shared cells are counted once. The tail of a running
sequence is an open node: it grows with the sequence's `computed`, at no cost. Sequences that compute equal
tokens at the same time have nodes side by side; a match looks into all of them. An id is kept when its
sequence is over and no other id holds the end of its path, which is a closed leaf then.
"""

from array import array
from heapq import heapify, heappop, heappush

from antiphon.engines.llama.kv.layout import Change, Copy, Match, Node, Trim
from antiphon.engines.llama.sequence import Key, Sequence, common


class PrefixTree:
    """All that is computed, and by which id it is held."""

    def __init__(self) -> None:
        self.kept: dict[int, Node] = {}
        """The leaf in which each kept id ends."""
        self.cached = 0
        """Cells that only kept ids hold."""
        self._shared = 0
        """Cells of closed nodes that running ids hold."""
        self._tails: dict[Sequence, Node] = {}
        """The open node of each running sequence."""
        self._roots: dict[Key, Node] = {}
        self._time = 0

    @property
    def used(self) -> int:
        """Cells that running ids hold."""
        tails = tuple(self._tails.items())
        return self._shared + sum(one.computed - tail.start for one, tail in tails)

    def match(self, key: Key, tokens: "array[int]", most: int, but: Node | None = None) -> Match:
        """The longest computed beginning of these tokens, not looking into the node `but`."""
        root = self._roots.get(key)
        if root is None:
            return Match(0)
        best, ways = Match(0, root), [root]
        while ways:
            node = ways.pop()
            for child in node.children:
                start, stop = child.start, min(child.end, most)
                if child is but or start >= stop or child.tokens[start] != tokens[start]:
                    continue
                length = common(child.tokens, tokens, start, stop)
                if length > best.length:
                    best = Match(length, child)
                if length == child.end:
                    ways.append(child)
        return best

    def idle_cells(self, match: Match) -> int:
        """Cells of the match that no running id holds."""
        path = match.node.path() if match.node is not None else ()
        return sum(min(node.end, match.length) - node.start for node in path if not node.active)

    def keeper(self, match: Match) -> int | None:
        """The kept id whose whole content the match is."""
        node = match.node
        if node is None or node.children or node.owner or node.parent is None or match.length < node.stop:
            return None
        (keeper,) = node.ids
        return keeper

    def begin(self, sequence: Sequence, match: Match) -> None:
        """The sequence, whose id is set, goes on from the match."""
        seat = sequence.seat
        root = self._roots.setdefault(sequence.key, Node(array("i"), 0, 0, None))
        above = self._ending_at(match.node or root, match.length)
        self.kept.pop(seat, None)
        tail = Node(sequence.tokens, match.length, match.length, above)
        tail.owner = sequence
        above.children.append(tail)
        self._time += 1
        for node in tail.path():
            node.ids.add(seat)
            if not node.active and node is not tail:
                self.cached -= node.size
                self._shared += node.size
            node.active += 1
            node.used = self._time
        self._tails[sequence] = tail

    def finish(self, sequence: Sequence, keep: bool) -> bool:
        """The sequence runs no more; whether its id is kept, with what it has computed."""
        tail, seat = self._tails.pop(sequence), sequence.seat
        tail.stop, tail.owner = sequence.computed, None
        self._shared += tail.size
        self._time += 1
        for node in tail.path():
            node.active -= 1
            node.used = self._time
            if not node.active:
                self._shared -= node.size
                self.cached += node.size
        self.kept[seat] = tail
        if not keep or self._is_double(tail, sequence.key):
            self.forget(seat)
            return False
        return self._settle(seat)

    def trim(self, seat: int, stop: int) -> bool:
        """Cuts the leaf of a kept id; whether the id is kept still."""
        leaf = self.kept[seat]
        self.cached -= leaf.stop - stop
        leaf.stop = stop
        return self._settle(seat)

    def forget(self, seat: int) -> None:
        """Gives up a kept id."""
        node: Node | None = self.kept.pop(seat)
        while node is not None and node.parent is not None:
            above = node.parent
            node.ids.discard(seat)
            if node.ids:
                self._join(node)
            else:
                self.cached -= node.size
                above.children.remove(node)
            node = above
        for key in [key for key, root in self._roots.items() if not root.children]:
            del self._roots[key]

    def kept_with(self, adapter: str) -> list[int]:
        """The kept ids of what was computed with this adapter."""
        roots = [root for (name, _), root in self._roots.items() if name == adapter]
        return [seat for seat, leaf in self.kept.items() if leaf.root() in roots]

    # --- nodes

    def _is_double(self, leaf: Node, key: Key) -> bool:
        """Whether other ids hold all that a leaf's one does."""
        return leaf.size > 0 and self.match(key, leaf.tokens, leaf.stop, leaf).length == leaf.stop

    def _settle(self, seat: int) -> bool:
        """Takes an empty leaf away; whether its id holds the end of what remains alone, and so is kept."""
        node = self.kept[seat]
        if node.size == 0 and not node.children and node.parent is not None and node.parent.parent:
            node.parent.children.remove(node)
            node = self.kept[seat] = node.parent
        if len(node.ids) > 1 or node.size == 0:
            self.forget(seat)
            return False
        return True

    def _ending_at(self, node: Node, length: int) -> Node:
        """The node that ends there; splits this one when it does not, or may still grow."""
        if node.owner is None and node.end == length:
            return node
        upper = Node(node.tokens, node.start, length, node.parent)
        upper.ids, upper.active, upper.used = set(node.ids), node.active, node.used
        upper.children = [node]
        if node.owner is not None:
            self._shared += upper.size
        self._replace(node, upper)
        node.start, node.parent = length, upper
        return upper

    def _join(self, node: Node) -> None:
        """Makes one node of this one and its only child, when the same ids hold both."""
        if len(node.children) != 1 or node.children[0].ids != node.ids:
            return
        (child,) = node.children
        if child.owner is not None:
            self._shared -= node.size
        self._replace(node, child)
        child.start, child.parent, child.used = node.start, node.parent, max(node.used, child.used)

    @staticmethod
    def _replace(node: Node, other: Node) -> None:
        if node.parent is not None:
            node.parent.children[node.parent.children.index(node)] = other


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
