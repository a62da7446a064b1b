"""Chooses the replica of a sequence: one that has computed the beginning of its prompt and holds its adapter,
otherwise the less loaded of two.

It knows no Ray. The prompt is cut into blocks; the key of a block is a hash of everything before its end, the
adapter and the salt, as the engines' own prefix caches require.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from random import Random

BLOCK = 32
"""Tokens of one block: a shorter common prefix is not worth a loaded replica."""

MAX_BLOCKS = 512
"""The most blocks of one prompt that are remembered. Prompts that are equal up to here go to one replica."""

MAX_KEYS = 100_000
"""The most blocks that are remembered in all, about 20 MB."""

SLACK = 4
"""Sequences that a replica with the prefix may have above the least loaded one when its places are taken.
Computing a prefix again costs less than a long queue."""


def build_prefix_keys(tokens: Sequence[int], adapter: str, salt: str) -> tuple[bytes, ...]:
    """Returns the keys of the prompt's whole blocks, shortest prefix first. A prompt with an id that no
    vocabulary has gets no key: the engine refuses it."""
    try:
        ids = array("i", islice(tokens, BLOCK * MAX_BLOCKS)).tobytes()
    except OverflowError:
        return ()
    size = BLOCK * array("i").itemsize
    key = f"{adapter} {salt}".encode()
    keys = []
    for start in range(0, len(ids) - size + 1, size):
        key = blake2b(key + ids[start : start + size], digest_size=8).digest()
        keys.append(key)
    return tuple(keys)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that can take a sequence."""

    name: str
    load: int = 0
    """Sequences that wait and run there."""
    adapters: frozenset[str] = frozenset()
    """Adapters that it has loaded."""


@dataclass(frozen=True, slots=True)
class RoutingKey:
    """What a sequence has in common with earlier ones."""

    prefixes: tuple[bytes, ...] = ()
    adapter: str = ""
    group: bytes = b""
    """The same for all choices of one prompt, which one replica computes together; empty for other calls."""


@dataclass(slots=True)
class PrefixIndex:
    """The replica that has last computed each prefix."""

    max_keys: int = MAX_KEYS
    _replicas: OrderedDict[bytes, str] = field(default_factory=OrderedDict)

    def add(self, keys: Iterable[bytes], replica: str) -> None:
        """Notes that a replica computes these prefixes."""
        for key in keys:
            self._replicas[key] = replica
            self._replicas.move_to_end(key)
        while len(self._replicas) > self.max_keys:
            self._replicas.popitem(last=False)

    def find(self, keys: Sequence[bytes], replicas: Iterable[str]) -> str | None:
        """Returns the replica that has the longest of these prefixes, among `replicas`."""
        present = set(replicas)
        return next((name for key in reversed(keys) if (name := self._replicas.get(key)) in present), None)


def choose_replica(
    key: RoutingKey, candidates: Sequence[Candidate], index: PrefixIndex, places: int, random: Random
) -> Candidate:
    """Returns the replica for a sequence. `places`: the sequences that one replica runs at once.

    The choices of one prompt always go to one replica. Otherwise a replica is preferred for its prefix or its
    adapter while it has a place, or hardly more load than the least loaded one.
    """
    by_name = {each.name: each for each in candidates}
    found = index.find((key.group,), by_name) if key.group else None
    if found is not None:
        return by_name[found]
    least = min(each.load for each in candidates)
    able = [each for each in candidates if each.load < places or each.load <= least + SLACK]
    found = index.find(key.prefixes, (each.name for each in able))
    if found is not None:
        return by_name[found]
    holders = [each for each in able if key.adapter in each.adapters] if key.adapter else []
    return _choose_less_loaded(holders or candidates, random)


def _choose_less_loaded(candidates: Sequence[Candidate], random: Random) -> Candidate:
    """Returns the less loaded of two that are drawn, and either of them if their loads are equal."""
    two = random.sample(candidates, min(2, len(candidates)))
    return min(two, key=lambda each: each.load)
