"""Chooses the replica of a sequence: one that has computed the beginning of its prompt or has loaded its
adapter. If there is none, the less loaded of two random replicas.

This module does not import Ray. The prompt is cut into blocks. The key of a block is a hash of the adapter,
the salt and all tokens up to the block's end, since the engines' prefix caches share no more than that.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from random import Random

from antiphon.domain.values import Struct, field

BLOCK = 32
"""Tokens of one block. A shorter common prefix does not justify a busier replica."""

MAX_BLOCKS = 512
"""The most blocks of one prompt that get a key. Longer prompts that are equal up to here go to one
replica."""

MAX_KEYS = 100_000
"""The most keys in the index, about 20 MB."""

MAX_EXTRA_LOAD = 4
"""How many more sequences than the least loaded replica a full replica may have and still be preferred for
its prefix or adapter. Computing a prefix again costs less than a long queue."""


def build_prefix_keys(tokens: Sequence[int], adapter: str, salt: str) -> tuple[bytes, ...]:
    """Returns the keys of the prompt's whole blocks, shortest prefix first. A prompt with an id outside 32
    bits gets no key: the engine refuses it."""
    try:
        ids = array("i", islice(tokens, BLOCK * MAX_BLOCKS)).tobytes()
    except OverflowError:
        return ()
    block_bytes = BLOCK * array("i").itemsize
    key = f"{adapter} {salt}".encode()
    keys = []
    for start in range(0, len(ids) - block_bytes + 1, block_bytes):
        key = blake2b(key + ids[start : start + block_bytes], digest_size=8).digest()
        keys.append(key)
    return tuple(keys)


class Candidate(Struct, frozen=True):
    """A replica that can take a sequence."""

    name: str
    load: int = 0
    """The number of sequences that wait or run there."""
    adapters: frozenset[str] = frozenset()
    """The adapters that it has loaded."""


class RoutingKey(Struct, frozen=True):
    """The properties by which a sequence prefers a replica."""

    prefixes: tuple[bytes, ...] = ()
    adapter: str = ""
    group: bytes = b""
    """Equal for all choices of one prompt, so that one replica computes them; empty for other calls."""


class PrefixIndex(Struct):
    """The replica that has last computed each prefix, by the prefix's key."""

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
        """Returns the one of `replicas` that has last computed the longest of these prefixes; None if it has
        computed none of them. `keys`: the shortest prefix first."""
        present = set(replicas)
        return next((name for key in reversed(keys) if (name := self._replicas.get(key)) in present), None)


def choose_replica(
    key: RoutingKey, candidates: Sequence[Candidate], index: PrefixIndex, max_sequences: int, random: Random
) -> Candidate:
    """Returns the replica for a sequence. `max_sequences`: the most sequences that one replica runs at once.

    All choices of one prompt go to one replica. For other sequences, a replica with the prefix is preferred,
    then one with the adapter. A replica is preferred only if it is not full, or has at most MAX_EXTRA_LOAD
    sequences more than the least loaded one.
    """
    by_name = {candidate.name: candidate for candidate in candidates}
    name = index.find((key.group,), by_name) if key.group else None
    if name is not None:
        return by_name[name]
    min_load = min(candidate.load for candidate in candidates)
    available = [
        candidate
        for candidate in candidates
        if candidate.load < max_sequences or candidate.load <= min_load + MAX_EXTRA_LOAD
    ]
    name = index.find(key.prefixes, (candidate.name for candidate in available))
    if name is not None:
        return by_name[name]
    with_adapter = (
        [candidate for candidate in available if key.adapter in candidate.adapters] if key.adapter else []
    )
    return _choose_less_loaded(with_adapter or candidates, random)


def _choose_less_loaded(candidates: Sequence[Candidate], random: Random) -> Candidate:
    """Draws two candidates and returns the less loaded one."""
    drawn = random.sample(candidates, min(2, len(candidates)))
    return min(drawn, key=lambda candidate: candidate.load)
