"""The request router that Ray Serve makes in each driver. Import it only where Ray is installed."""

import logging
import random
from typing import TYPE_CHECKING

from ray.serve.request_router import ReplicaID, RequestRouter

from antiphon.engines.host.ray.replica_table import get_table
from antiphon.telemetry.logs import describe_exception, record

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest, ReplicaResult, RunningReplica


class AffinityRouter(RequestRouter):  # type: ignore[misc]  # Ray is not installed where types are checked
    """Sends each call to the replica that `replica_table` chooses."""

    def initialize_state(self) -> None:
        self._table = get_table(self.app_name)

    async def choose_replicas(
        self, candidate_replicas: "list[RunningReplica]", pending_request: "PendingRequest | None" = None
    ) -> "list[list[RunningReplica]]":
        """Returns the chosen replica first, and then all other replicas in random order. Ray takes the first
        replica that is not full. If the choice fails, the order is random, because Ray would let the request
        wait for ever after an exception."""
        shuffled = random.sample(candidate_replicas, len(candidate_replicas))
        try:
            chosen = self._choose(candidate_replicas, pending_request)
        except Exception as defect:  # noqa: BLE001 - the request must be served even without a choice
            record("replica_choice_failed", logging.ERROR, problem=describe_exception(defect))
            return [[replica] for replica in shuffled]
        preferred = [replica for replica in shuffled if replica.replica_id.unique_id == chosen]
        return [
            [replica]
            for replica in (*preferred, *(replica for replica in shuffled if replica not in preferred))
        ]

    def _choose(self, candidates: "list[RunningReplica]", pending: "PendingRequest | None") -> str | None:
        """Returns the name of the replica for a request."""
        if not candidates:
            return None
        loads = {
            replica.replica_id.unique_id: self.replica_queue_len_cache.get(replica.replica_id) or 0
            for replica in candidates
        }
        reported_adapters = {
            replica.replica_id.unique_id: set((replica.routing_stats or {}).get("adapters", ()))
            for replica in candidates
        }
        return self._table.choose(find_sequence_number(pending), loads, reported_adapters)

    def on_request_routed(
        self, pending_request: "PendingRequest", replica_id: ReplicaID, result: "ReplicaResult"
    ) -> None:
        number = find_sequence_number(pending_request)
        if number is not None:
            self._table.assign(number, replica_id.unique_id)

    def update_replicas(self, replicas: "list[RunningReplica]") -> None:
        super().update_replicas(replicas)
        self._note_replicas()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._note_replicas()

    def _note_replicas(self) -> None:
        get_table(self.app_name).set_replicas([replica.unique_id for replica in self.curr_replicas])


def find_sequence_number(pending: "PendingRequest | None") -> int | None:
    """Returns the number of the sequence that a request begins; None for other calls."""
    if pending is None or len(pending.args) < 2:
        return None
    number = pending.args[1]
    return number if isinstance(number, int) else None
