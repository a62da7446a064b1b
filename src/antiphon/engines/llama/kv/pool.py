"""One pool of cells for all sequences: prefixes are shared without copying.

There are more ids than running sequences. The id of a finished sequence keeps its computed tokens until the
cells or the id are needed. The least recently used id is given up first, and the end of its tokens before
their beginning.

A radix tree for each adapter and cache salt records the computed tokens of running and kept sequences. A node
represents cells that belong to the same ids, so shared cells are counted once. The last node of a running
sequence is open: its end is the sequence's `computed`, so it grows without any work. Sequences that compute
equal tokens at the same time have nodes side by side, and a match searches all of these nodes. When a
sequence ends, its last node becomes a closed leaf. The sequence's id is kept if no other id ends in the same
leaf.
"""

from array import array
from heapq import heapify, heappop, heappush

from antiphon.engines.llama.kv.layout import CacheChange, CopyCells, PrefixMatch, PrefixNode, TrimCells
from antiphon.engines.llama.media import MediaNumbers
from antiphon.engines.llama.sequence import PrefixKey, TokenSequence, measure_common_prefix


class PrefixTree:
    """The computed tokens of running and kept sequences, and the ids whose cells contain them."""

    def __init__(self, numbers: MediaNumbers) -> None:
        self._numbers = numbers
        self.kept_nodes: dict[int, PrefixNode] = {}
        """The leaf at which each kept id ends."""
        self.cached_cells = 0
        """The number of cells that only kept ids use."""
        self._shared_cells = 0
        """The number of cells of closed nodes that running ids use."""
        self._tails: dict[TokenSequence, PrefixNode] = {}
        """The open node of each running sequence, in which its path ends."""
        self._roots: dict[PrefixKey, PrefixNode] = {}
        self._time = 0

    @property
    def used_cells(self) -> int:
        """The number of cells that running ids use."""
        tails = tuple(self._tails.items())
        return self._shared_cells + sum(sequence.computed - tail.start for sequence, tail in tails)

    def match(
        self, key: PrefixKey, tokens: "array[int]", limit: int, excluded: PrefixNode | None = None
    ) -> PrefixMatch:
        """Finds the longest computed beginning of these tokens that does not end inside a medium. It does
        not search the node `excluded`."""
        root = self._roots.get(key)
        if root is None:
            return PrefixMatch(0)
        longest_match, pending_nodes = PrefixMatch(0, root), [root]
        while pending_nodes:
            node = pending_nodes.pop()
            for child in node.children:
                start, stop = child.start, min(child.end, limit)
                if child is excluded or start >= stop or child.tokens[start] != tokens[start]:
                    continue
                length = measure_common_prefix(child.tokens, tokens, start, stop)
                whole_length = self._numbers.round_down(tokens, length)
                if whole_length > longest_match.length:
                    longest_match = PrefixMatch(whole_length, child)
                if length == child.end:
                    pending_nodes.append(child)
        return longest_match

    def count_idle_cells(self, match: PrefixMatch) -> int:
        """The number of cells of the match that no running id uses."""
        path = match.node.walk_up() if match.node is not None else ()
        return sum(min(node.end, match.length) - node.start for node in path if not node.running_count)

    def find_kept_id(self, match: PrefixMatch) -> int | None:
        """The kept id whose cells contain exactly the tokens of the match; None if there is none."""
        node = match.node
        if node is None or node.children or node.owner or node.parent is None or match.length < node.stop:
            return None
        (kept_id,) = node.ids
        return kept_id

    def add(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Adds a sequence to the tree, below the last node of its match. The sequence already has its id."""
        sequence_id = sequence.running_id
        root = self._roots.setdefault(sequence.key, PrefixNode(array("i"), 0, 0, None))
        parent = self._split_at(match.node or root, match.length)
        self.kept_nodes.pop(sequence_id, None)
        tail = PrefixNode(sequence.tokens, match.length, match.length, parent)
        tail.owner = sequence
        parent.children.append(tail)
        self._time += 1
        for node in tail.walk_up():
            node.ids.add(sequence_id)
            if not node.running_count and node is not tail:
                self.cached_cells -= node.size
                self._shared_cells += node.size
            node.running_count += 1
            node.last_used = self._time
        self._tails[sequence] = tail

    def finish(self, sequence: TokenSequence, keep_prefix: bool) -> bool:
        """Ends a running sequence. Returns whether its id is kept with the computed tokens."""
        tail, sequence_id = self._tails.pop(sequence), sequence.running_id
        tail.stop, tail.owner = sequence.computed, None
        self._shared_cells += tail.size
        self._time += 1
        for node in tail.walk_up():
            node.running_count -= 1
            node.last_used = self._time
            if not node.running_count:
                self._shared_cells -= node.size
                self.cached_cells += node.size
        self.kept_nodes[sequence_id] = tail
        if not keep_prefix or self._is_duplicate(tail, sequence.key):
            self.forget(sequence_id)
            return False
        return self._keep_nonempty_path(sequence_id)

    def trim(self, sequence_id: int, stop: int) -> bool:
        """Cuts the leaf of a kept id at the position `stop`. Returns whether the id is still kept."""
        leaf = self.kept_nodes[sequence_id]
        self.cached_cells -= leaf.stop - stop
        leaf.stop = stop
        return self._keep_nonempty_path(sequence_id)

    def forget(self, sequence_id: int) -> None:
        """Removes a kept id, and the tree nodes that only this id used."""
        node: PrefixNode | None = self.kept_nodes.pop(sequence_id)
        while node is not None and node.parent is not None:
            parent = node.parent
            node.ids.discard(sequence_id)
            if node.ids:
                self._merge_with_child(node)
            else:
                self.cached_cells -= node.size
                parent.children.remove(node)
            node = parent
        for key in [key for key, root in self._roots.items() if not root.children]:
            del self._roots[key]

    def list_kept_with(self, adapter: str) -> list[int]:
        """The kept ids that were computed with this adapter."""
        roots = [root for (root_adapter, _), root in self._roots.items() if root_adapter == adapter]
        return [sequence_id for sequence_id, leaf in self.kept_nodes.items() if leaf.find_root() in roots]

    # --- nodes

    def _is_duplicate(self, leaf: PrefixNode, key: PrefixKey) -> bool:
        """Whether other ids contain all tokens of the leaf's id."""
        return leaf.size > 0 and self.match(key, leaf.tokens, leaf.stop, leaf).length == leaf.stop

    def _keep_nonempty_path(self, sequence_id: int) -> bool:
        """Removes an empty leaf of a kept id. Returns whether the id is still kept: whether no other id ends
        where its remaining path ends."""
        node = self.kept_nodes[sequence_id]
        if node.size == 0 and not node.children and node.parent is not None and node.parent.parent:
            node.parent.children.remove(node)
            node = self.kept_nodes[sequence_id] = node.parent
        if len(node.ids) > 1 or node.size == 0:
            self.forget(sequence_id)
            return False
        return True

    def _split_at(self, node: PrefixNode, length: int) -> PrefixNode:
        """Returns a node that ends at `length` and does not grow. Splits `node` if it ends at another
        position or may still grow."""
        if node.owner is None and node.end == length:
            return node
        upper = PrefixNode(node.tokens, node.start, length, node.parent)
        upper.ids, upper.running_count, upper.last_used = set(node.ids), node.running_count, node.last_used
        upper.children = [node]
        if node.owner is not None:
            self._shared_cells += upper.size
        self._replace(node, upper)
        node.start, node.parent = length, upper
        return upper

    def _merge_with_child(self, node: PrefixNode) -> None:
        """Merges this node with its only child if the same ids use both."""
        if len(node.children) != 1 or node.children[0].ids != node.ids:
            return
        (child,) = node.children
        if child.owner is not None:
            self._shared_cells -= node.size
        self._replace(node, child)
        child.start, child.parent, child.last_used = (
            node.start,
            node.parent,
            max(node.last_used, child.last_used),
        )

    @staticmethod
    def _replace(node: PrefixNode, replacement: PrefixNode) -> None:
        """Puts `replacement` into the place of `node` among the children of its parent."""
        if node.parent is not None:
            node.parent.children[node.parent.children.index(node)] = replacement


MIN_TRIM = 64
"""The fewest cells of a kept prefix that are freed at once, unless the prefix has fewer. For each removal,
the library searches all cells."""


class PoolLayout:
    """The `CacheLayout` of one pool. Each cell is used, kept or free."""

    def __init__(
        self,
        ids: int,
        total: int,
        max_kept_cells: int | None = None,
        numbers: MediaNumbers | None = None,
    ) -> None:
        self._numbers = numbers or MediaNumbers()
        self.total = total
        self._max_kept_cells = total if max_kept_cells is None else max_kept_cells
        self.changes: list[CacheChange] = []
        self.tree = PrefixTree(self._numbers)
        self._free_ids = list(range(ids))
        heapify(self._free_ids)

    @property
    def used_cells(self) -> int:
        return self.tree.used_cells

    @property
    def cached_cells(self) -> int:
        return self.tree.cached_cells

    @property
    def free_cells(self) -> int:
        return self.total - self.tree.used_cells - self.tree.cached_cells

    def match(self, sequence: TokenSequence) -> PrefixMatch:
        return self.tree.match(sequence.key, sequence.tokens, sequence.reusable_tokens)

    def count_shareable(self, running: TokenSequence, waiting: TokenSequence) -> int:
        common_length = measure_common_prefix(
            running.tokens, waiting.tokens, 0, min(len(running.tokens), waiting.reusable_tokens)
        )
        return self._numbers.round_down(waiting.tokens, common_length)

    def count_available(self, match: PrefixMatch) -> int:
        return self.total - self.tree.used_cells - self.tree.count_idle_cells(match)

    def admit(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Gives the sequence an id and the cached prefix of `match`. Copies or reuses the cells of that
        prefix."""
        kept_id = self.tree.find_kept_id(match)
        if kept_id is None and not self._free_ids:
            self._free_an_id(match)
            match = self.match(sequence)
            kept_id = self.tree.find_kept_id(match)
        if kept_id is not None:
            sequence.id = kept_id
        else:
            sequence.id = heappop(self._free_ids)
            if match.node is not None and match.length:
                positions = self._numbers.count_positions(sequence.tokens, match.length)
                self.changes.append(CopyCells(min(match.node.ids), sequence.id, positions))
        sequence.computed = match.length
        self.tree.add(sequence, match)

    def release(self, sequence: TokenSequence, keep_prefix: bool) -> None:
        sequence_id = sequence.running_id
        if not self.tree.finish(sequence, keep_prefix):
            self._return_id(sequence_id)
        sequence.id = None
        while (excess_cells := self.tree.cached_cells - self._max_kept_cells) > 0:
            self._free_cells(excess_cells)

    def reserve(self, count: int) -> bool:
        """Frees kept cells as needed. Returns whether at least `count` cells are free afterwards."""
        while (missing_cells := count - self.free_cells) > 0 and self.tree.kept_nodes:
            self._free_cells(missing_cells)
        return missing_cells <= 0

    def forget(self, adapter: str) -> None:
        self._give_up_ids(self.tree.list_kept_with(adapter))

    def forget_all(self) -> None:
        self._give_up_ids(list(self.tree.kept_nodes))

    def _give_up_ids(self, sequence_ids: list[int]) -> None:
        """Gives up these kept ids and frees their cells."""
        for sequence_id in sequence_ids:
            self.tree.forget(sequence_id)
            self._return_id(sequence_id)

    def _free_cells(self, count: int) -> None:
        """Frees about `count` cells of the least recently used kept id."""
        sequence_id, leaf = min(self.tree.kept_nodes.items(), key=lambda item: item[1].last_used)
        cell_count = max(count, MIN_TRIM)
        stop = leaf.start
        if leaf.size >= cell_count + MIN_TRIM:
            stop = max(stop, self._numbers.round_down(leaf.tokens, leaf.stop - cell_count))
        if self.tree.trim(sequence_id, stop):
            self.changes.append(TrimCells(sequence_id, self._numbers.count_positions(leaf.tokens, stop)))
        else:
            self._return_id(sequence_id)

    def _free_an_id(self, match: PrefixMatch) -> None:
        """Gives up the least recently used kept id, if possible one that is not the end of the match. If the
        match ends in the only kept id, trims that id to the match, so that the sequence can use it."""
        kept_leaves = self.tree.kept_nodes
        sequence_id = min(
            kept_leaves,
            key=lambda sequence_id: (
                kept_leaves[sequence_id] is match.node,
                kept_leaves[sequence_id].last_used,
            ),
        )
        if kept_leaves[sequence_id] is not match.node:
            self.tree.forget(sequence_id)
            self._return_id(sequence_id)
        else:
            kept_leaf = kept_leaves[sequence_id]
            self.tree.trim(sequence_id, match.length)
            positions = self._numbers.count_positions(kept_leaf.tokens, match.length)
            self.changes.append(TrimCells(sequence_id, positions))

    def _return_id(self, sequence_id: int) -> None:
        """Frees all cells of an id and makes it available again."""
        self.changes.append(TrimCells(sequence_id))
        heappush(self._free_ids, sequence_id)
