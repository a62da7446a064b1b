"""The places of running sequences, and the queue for them. vLLM gets a sequence only when a place is free. So
vLLM's own queue stays empty, and callers take turns in this queue."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from antiphon.domain.fair_queue import FairQueue, Waiter
from antiphon.engines.base import TokenRequest


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The most sequences that run, and the most that wait."""

    sequences: int
    queue: int
    queue_per_actor: int


class Prefill:
    """The prompt of a group. One sequence of the group computes it, and the others wait."""

    def __init__(self) -> None:
        self.members = 0
        self.is_computed = False
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator["PrefillTurn"]:
        """Waits until no other sequence of the group computes the prompt, or the prompt is computed. The
        sequence that gets the turn has it until it calls `finish`, or leaves the context."""
        turn = PrefillTurn(self, self._lock)
        if not self.is_computed:
            await self._lock.acquire()
            turn.is_held = True
            if self.is_computed:
                turn.release()
        try:
            yield turn
        finally:
            turn.release()


class PrefillTurn:
    """One sequence's turn to compute its group's prompt."""

    def __init__(self, prefill: Prefill, lock: asyncio.Lock) -> None:
        self._prefill = prefill
        self._lock = lock
        self.is_held = False

    def finish(self) -> None:
        """Notes that the prompt is computed."""
        self._prefill.is_computed = True
        self.release()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._lock.release()


class Admission:
    """The places of one engine. It belongs to one event loop."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._queue: FairQueue[Waiter] = FairQueue(limits, "sequences")
        self._groups: dict[str, Prefill] = {}
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    @property
    def refusal_count(self) -> int:
        return self._queue.refusal_count

    @asynccontextmanager
    async def hold(self, request: TokenRequest) -> AsyncIterator[Prefill]:
        """Waits for a place at the caller's turn, and holds it while the context lasts. Yields the
        shared prefill state of the sequence's group. Raises Overloaded or EngineBusy if too many sequences
        wait. A sequence whose group already waits or runs is never refused."""
        prefill = None if request.group is None else self._groups.get(request.group)
        has_known_group = prefill is not None
        if prefill is None:
            prefill = Prefill()
            if request.group is not None:
                self._groups[request.group] = prefill
        prefill.members += 1
        try:
            await self._acquire(request, has_known_group)
            try:
                yield prefill
            finally:
                self._release(request.actor)
        finally:
            prefill.members -= 1
            if request.group is not None and not prefill.members:
                del self._groups[request.group]

    async def _acquire(self, request: TokenRequest, has_known_group: bool) -> None:
        """Takes a place, or waits for one."""
        if self.running < self._limits.sequences and not len(self._queue):
            self._running[request.actor] += 1
            return
        waiter = Waiter(request.actor, request.priority)
        await waiter.wait(
            self._queue,
            None if has_known_group else self._queue.find_refusal(waiter, time.monotonic()),
            lambda: self._release(request.actor),
        )

    def _release(self, actor: str) -> None:
        """Gives a place to the caller with the fewest places; equal callers take turns."""
        self._running[actor] -= 1
        if not self._running[actor]:
            del self._running[actor]
        if not len(self._queue):
            self._queue.note_empty()
            return
        self._queue.note_end(time.monotonic())
        waiter = min(self._queue.iterate_turns(), key=lambda waiter: self._running[waiter.actor])
        self._queue.take_turn(waiter)
        self._running[waiter.actor] += 1
        waiter.has_place.set()
