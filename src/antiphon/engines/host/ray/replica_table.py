"""The replicas of a model, as its driver knows them: their names, the sequences on each, and the sequences
that still wait for a replica.

Ray Serve makes the request router itself, so the router and the token engine of one driver share a table by
the application's name.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random, SystemRandom

from antiphon.domain.values import Struct, field
from antiphon.engines.host.ray.affinity import Candidate, PrefixIndex, RoutingKey, choose_replica


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
