"""The tree of prefixes against an obvious model: a table of which id holds which tokens."""

import random
from array import array

import pytest

from antiphon.engines.llama.kv.layout import PrefixMatch
from antiphon.engines.llama.kv.pool import PrefixTree
from antiphon.engines.llama.media import MediaNumbers
from antiphon.engines.llama.sequence import PrefixKey, TokenSequence
from tests.engines.llama.simulation import sequence

KEYS: list[PrefixKey] = [(None, ""), (None, "salt"), ("adapter", "")]


class Model:
    """Each id's tokens, as a list of cells; a shared cell is the same object in several lists."""

    def __init__(self) -> None:
        self.cells: dict[int, list[object]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.keys: dict[int, PrefixKey] = {}

    def longest(self, key: PrefixKey, tokens: list[int]) -> int:
        """Of all that is computed, how much these tokens begin with."""
        return max(
            (alike(self.tokens[held], tokens) for held in self.tokens if self.keys[held] == key), default=0
        )

    def count(self, ids: set[int]) -> int:
        return len({id(cell) for held in ids for cell in self.cells[held]})


def alike(one: list[int], other: list[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


class Trial:
    """A tree and its model, in step."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.tree, self.model = PrefixTree(MediaNumbers()), Model()
        self.running: dict[int, TokenSequence] = {}
        self.next = 0

    def begin(self) -> None:
        key, tokens = self.dice.choice(KEYS), [self.dice.randrange(2) for _ in range(self.dice.randint(2, 9))]
        one = sequence(tuple(tokens), adapter=key[0], cache_salt=key[1])
        match = self.tree.match(key, one.tokens, len(tokens) - 1)
        assert match.length == self.model.longest(key, tokens[:-1])
        keeper = self.tree.find_kept_id(match)
        one.id, one.computed = self.next if keeper is None else keeper, match.length
        self.next += 1
        cells: list[object] = []
        if match.node is not None and match.length:
            assert match.node.ids <= self.model.cells.keys(), "what was given up is not offered"
            cells = self.model.cells[min(match.node.ids)][: match.length]
        self.tree.add(one, match)
        self.running[one.running_id] = one
        self.model.cells[one.running_id], self.model.keys[one.running_id] = cells, key
        self.model.tokens[one.running_id] = tokens[: match.length]

    def compute(self) -> None:
        seat, one = self.dice.choice(list(self.running.items()))
        if one.computed == len(one.tokens):
            one.tokens.append(self.dice.randrange(2))
        self.model.tokens[seat].append(one.tokens[one.computed])
        self.model.cells[seat].append(object())
        one.computed += 1

    def finish(self) -> None:
        seat = self.dice.choice(list(self.running))
        if not self.tree.finish(self.running.pop(seat), keep_prefix=self.dice.random() < 0.8):
            self.lose(seat)

    def evict(self) -> None:
        seat = self.dice.choice(list(self.tree.kept_nodes))
        leaf = self.tree.kept_nodes[seat]
        stop = self.dice.randint(leaf.start, leaf.stop - 1)
        if self.dice.random() < 0.3:
            self.tree.forget(seat)
            self.lose(seat)
        elif self.tree.trim(seat, stop):
            del self.model.cells[seat][stop:], self.model.tokens[seat][stop:]
        else:
            self.lose(seat)

    def lose(self, seat: int) -> None:
        del self.model.cells[seat], self.model.tokens[seat], self.model.keys[seat]

    def check(self) -> None:
        running = set(self.running)
        assert set(self.tree.kept_nodes) == self.model.cells.keys() - running
        assert self.tree.used_cells == self.model.count(running)
        assert self.tree.used_cells + self.tree.cached_cells == self.model.count(set(self.model.cells))


@pytest.mark.parametrize("seed", range(6))
def test_the_tree_finds_counts_and_forgets_as_a_table_does(seed):
    trial = Trial(seed)
    for _ in range(600):
        steps = [trial.begin]
        steps += [trial.compute, trial.compute, trial.finish] if trial.running else []
        steps += [trial.evict] if len(trial.tree.kept_nodes) > 6 else []
        trial.dice.choice(steps)()
        trial.check()
    for seat in list(trial.running):
        trial.tree.finish(trial.running.pop(seat), keep_prefix=False)
    for seat in list(trial.tree.kept_nodes):
        trial.tree.forget(seat)
    assert (trial.tree.used_cells, trial.tree.cached_cells, trial.tree.kept_nodes) == (0, 0, {})


def test_a_prefix_is_found_under_its_own_adapter_and_salt_only():
    tree = PrefixTree(MediaNumbers())
    one = sequence((1, 2, 3, 4), adapter="a", cache_salt="s")
    one.id = 0
    tree.add(one, PrefixMatch(0))
    one.computed = 3
    tokens = array("i", (1, 2, 3, 9))
    assert tree.match(("a", "s"), tokens, 3).length == 3
    assert tree.match(("a", "t"), tokens, 3).length == 0
    assert tree.match((None, "s"), tokens, 3).length == 0
