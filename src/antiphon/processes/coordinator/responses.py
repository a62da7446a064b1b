"""Kept responses of a server without keys, as one HTTP process uses them. The coordinator has them in
memory, and loses them when it ends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from antiphon.domain.stored_responses import KeptResponse, StoredChain, StoredResponse
from antiphon.errors import StoreUnavailable
from antiphon.processes.coordinator.client import CoordinatorClient
from antiphon.processes.coordinator.frames import (
    ChainReply,
    CompletedReply,
    FindChain,
    FindItems,
    FindResponse,
    ItemsReply,
    KeepResponse,
    Question,
    RemoveResponse,
    Reply,
    ResponseReply,
)
from antiphon.processes.coordinator.limiter import PATIENCE_S
from antiphon.processes.ipc import FrameError
from antiphon.services.response_memory import ResponseMemory

MAX_REPLY_BYTES = 12 * 1024 * 1024
"""The most bytes of the items of one reply. A message between two processes has at most 16 MiB."""

NO_CALL = 0
"""The number of a question whose reply nobody awaits. Calls have the numbers from 1 on."""

R = TypeVar("R", bound=Reply)


class SharedResponses:
    """`store.base.ResponseBackend` in the coordinator."""

    def __init__(self, coordinator: CoordinatorClient, patience: float = PATIENCE_S) -> None:
        """`patience`: seconds that a call waits for a missing coordinator."""
        self._coordinator = coordinator
        self._patience = patience

    async def add(self, kept: KeptResponse, now: int) -> bool:
        if (memory := self._local) is not None:
            return await memory.add(kept, now)
        try:
            return (await self._ask(lambda call: KeepResponse(call, kept, now), CompletedReply)).is_done
        except (StoreUnavailable, asyncio.CancelledError):
            # The answer says that the response is not stored, but the coordinator may keep it later.
            self._coordinator.send(RemoveResponse(NO_CALL, kept.project, kept.response.id))
            raise

    async def find(self, project: str, id_: str, now: int) -> StoredResponse | None:
        if (memory := self._local) is not None:
            return await memory.find(project, id_, now)
        return (await self._ask(lambda call: FindResponse(call, project, id_, now), ResponseReply)).response

    async def find_chain(self, project: str, id_: str, now: int, max_bytes: int) -> StoredChain:
        bound = min(max_bytes, MAX_REPLY_BYTES)
        if (memory := self._local) is not None:
            return await memory.find_chain(project, id_, now, bound)
        return (await self._ask(lambda call: FindChain(call, project, id_, now, bound), ChainReply)).chain

    async def find_items(
        self, project: str, ids: Sequence[str], now: int, max_bytes: int
    ) -> Mapping[str, bytes]:
        wanted, bound = tuple(ids), min(max_bytes, MAX_REPLY_BYTES)
        if (memory := self._local) is not None:
            return await memory.find_items(project, wanted, now, bound)
        return (await self._ask(lambda call: FindItems(call, project, wanted, now, bound), ItemsReply)).items

    async def remove(self, project: str, id_: str) -> bool:
        if (memory := self._local) is not None:
            return await memory.remove(project, id_)
        return (await self._ask(lambda call: RemoveResponse(call, project, id_), CompletedReply)).is_done

    @property
    def _local(self) -> ResponseMemory | None:
        """The memory, if the coordinator runs in this process."""
        coordinator = self._coordinator.local_coordinator
        return None if coordinator is None else coordinator.responses

    async def _ask(self, build_question: Callable[[int], Question], kind: type[R]) -> R:
        """Asks the coordinator. If it is lost, asks the next one. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(self._patience):
                reply = await self._coordinator.call(build_question)
        except FrameError as problem:
            raise StoreUnavailable(
                f"the response cannot be sent to the process that keeps it: {problem}"
            ) from None
        except TimeoutError:
            raise StoreUnavailable("the process that keeps responses is unavailable; try again") from None
        if not isinstance(reply, kind):
            raise StoreUnavailable("the process that keeps responses sent a wrong reply")
        return reply
