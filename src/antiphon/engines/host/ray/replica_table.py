"""The replicas of a model, as its driver knows them: their sequences, and the choice among them.

This module does not import Ray. A sequence goes to a replica that has computed the beginning of its prompt or
has loaded its adapter. If there is none, it goes to the less loaded of two random replicas. The prompt is cut
into blocks. The key of a block is a hash of the adapter, the salt and all tokens up to the block's end. The
engines' prefix caches share no more than that.

Ray Serve makes the request router itself, so the router and the token engine of one driver share a table by
the application's name.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import islice
from random import Random, SystemRandom

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


class ReplicaTable(Struct):
    """The replicas of one model."""

    max_sequences: int = 1
    """The most sequences that one replica runs at once."""
    on_change: Callable[[], None] = lambda: None
    """Called when the set of replicas changes."""
    names: tuple[str, ...] = ()
    """The names of the replicas that take calls."""
    index: PrefixIndex = field(default_factory=PrefixIndex)
    keys: dict[int, RoutingKey] = field(default_factory=dict)
    """The routing key of each open sequence, by its number."""
    assigned: dict[int, str] = field(default_factory=dict)
    """The replica of each open sequence that has one."""
    loads: Counter[str] = field(default_factory=Counter)
    """The open sequences of this driver on each replica."""
    adapters: dict[str, set[str]] = field(default_factory=dict)
    """Adapters that sequences of this driver brought to each replica."""
    random: Random = field(default_factory=SystemRandom)
    uses_affinity: bool = True
    """Whether the choice depends on prefixes and adapters. A benchmark turns it off, for random choices."""

    def set_replicas(self, names: Sequence[str]) -> None:
        """Notes the replicas that take calls from now on."""
        if set(names) == set(self.names):
            return
        self.names = tuple(names)
        self.adapters = {name: digests for name, digests in self.adapters.items() if name in self.names}
        self.on_change()

    def open(self, number: int, key: RoutingKey) -> None:
        """Begins a sequence."""
        self.keys[number] = key

    def choose(
        self, number: int | None, known_loads: dict[str, int], reported_adapters: dict[str, set[str]]
    ) -> str:
        """Returns the replica for a sequence; `number` is None for a call without a sequence. `known_loads`:
        the open calls of all drivers on each replica that can be chosen, as far as Ray knows.
        `reported_adapters`: the adapters that each replica has reported."""
        candidates = [
            Candidate(
                name,
                max(self.loads[name], load),
                frozenset(self.adapters.get(name, set()) | reported_adapters.get(name, set())),
            )
            for name, load in known_loads.items()
        ]
        key = self.keys.get(-1 if number is None else number, RoutingKey())
        if not self.uses_affinity:
            return self.random.choice(candidates).name
        chosen = choose_replica(key, candidates, self.index, self.max_sequences, self.random).name
        self._note(key, chosen)  # now, so that the next choices already see it
        return chosen

    def _note(self, key: RoutingKey, replica: str) -> None:
        """Notes that a replica computes this prompt and has this adapter."""
        self.index.add(key.prefixes, replica)
        if key.group:
            self.index.add((key.group,), replica)
        if key.adapter:
            self.adapters.setdefault(replica, set()).add(key.adapter)

    def assign(self, number: int, replica: str) -> None:
        """Notes the replica to which Ray has sent a sequence. Ray may send a sequence again, to another
        one."""
        key = self.keys.get(number)
        if key is None:
            return
        if number in self.assigned:
            self.loads[self.assigned[number]] -= 1
        self.assigned[number] = replica
        self.loads[replica] += 1
        self._note(key, replica)

    def close(self, number: int) -> None:
        """Ends a sequence."""
        self.keys.pop(number, None)
        if (replica := self.assigned.pop(number, None)) is not None:
            self.loads[replica] -= 1
            if not self.loads[replica]:
                del self.loads[replica]


TABLES: dict[str, ReplicaTable] = {}
"""The table of each application of this process, by the application's name."""


def get_table(application: str) -> ReplicaTable:
    """Returns the table of an application; creates it at the first call."""
    return TABLES.setdefault(application, ReplicaTable())
