"""Admits sequences to vLLM: a limited number runs at once, each in a place, and the others wait in a queue.
vLLM gets a sequence only when a place is free. So vLLM's own queue stays empty, and callers take turns in
this queue."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.domain.fair_queue import FairQueue, Waiter
from antiphon.domain.values import Struct
from antiphon.engines.base import TokenRequest


class AdmissionLimits(Struct, frozen=True):
    """The most sequences that run, and the most that wait."""

    sequences: int
    queue: int
    queue_per_actor: int


class Prefill:
    """The prefill of a group's common prompt. One sequence of the group computes it, and the others wait."""

    def __init__(self) -> None:
        self.members = 0
        """The number of queued and running sequences of the group."""
        self.is_computed = False
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator["PrefillTurn"]:
        """Waits while another sequence of the group computes the prompt. If the prompt is not computed then,
        this sequence has the turn, until it calls `finish` or leaves the context."""
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
        """Whether the sequence holds the group's lock."""

    def finish(self) -> None:
        """Notes that the prompt is computed."""
        self._prefill.is_computed = True
        self.release()

    def release(self) -> None:
        if self.is_held:
            self.is_held = False
            self._lock.release()


class Admission:
    """Gives the places of one engine to sequences. It belongs to one event loop."""

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
    async def hold_place(self, request: TokenRequest) -> AsyncIterator[Prefill]:
        """Waits for a place, and holds it while the context lasts. Yields the prefill that the sequence's
        group shares. Raises Overloaded or EngineBusy if too many sequences wait. A sequence whose group
        already waits or runs is never refused."""
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
        """Takes a free place, or waits in the queue for one."""
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
        """Frees a place of this caller. Gives it to the waiting caller with the fewest places; callers with
        equally many take turns."""
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
