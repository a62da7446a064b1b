"""Responses that the server keeps for later requests of the same project.

`ResponseKeeper` applies the settings and makes the errors that callers see. It keeps responses in a backend:
the database if keys are on, otherwise the memory of the coordinator.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence

from antiphon.domain.context import Clock
from antiphon.domain.identity import Actor
from antiphon.domain.stored_responses import (
    MAX_LINKS,
    KeptResponse,
    StoredChain,
    StoredResponse,
    is_plain,
    list_item_ids,
)
from antiphon.domain.values import Value
from antiphon.errors import (
    AntiphonError,
    InvalidValue,
    NotFound,
    PreviousResponseNotFound,
    UnsupportedParameter,
)
from antiphon.store.base import ResponseBackend
from antiphon.telemetry.logs import record

DAY_S = 86_400

PATIENCE_S = 5.0
"""Seconds that the end of an answer waits for the store. A write takes milliseconds."""

PREVIOUS = "previous_response_id"
"""The field that names the response to continue."""

LONGEST_SHOWN_ID = 100
"""The most characters of a caller's id in an error."""


class ResponseLimits(Value, frozen=True):
    """The limits of kept responses."""

    days: int = 30
    """How long a response is kept."""
    max_bytes: int = 8 << 20
    """The most bytes of one response."""
    max_chain_bytes: int = 8 << 20
    """The most bytes of the items of one chain."""


class ResponseKeeper:
    """`dialects.services.ResponseStore` over a backend; None keeps no responses."""

    def __init__(
        self,
        backend: ResponseBackend | None,
        limits: ResponseLimits,
        clock: Clock,
        patience: float = PATIENCE_S,
    ) -> None:
        self._patience = patience
        self._backend = backend
        self._limits = limits
        self._clock = clock
        self.refusals = dict.fromkeys(("failed", "too_large"), 0)
        """The number of responses that could not be kept: the backend failed, or they were too large."""

    @property
    def is_on(self) -> bool:
        return self._backend is not None

    async def save(self, response: StoredResponse, actor: Actor) -> bool:
        if self._backend is None:
            return False
        if response.size > self._limits.max_bytes:
            self.refusals["too_large"] += 1
            return False
        kept = KeptResponse(
            response,
            actor.project,
            int(self._clock.wall()) + self._limits.days * DAY_S,
            (*list_item_ids(response.input), *list_item_ids(response.output)),
        )
        try:
            async with asyncio.timeout(self._patience):
                return await self._backend.add(kept, self._now())
        except TimeoutError:
            reason = f"the store needs longer than {self._patience:g} s"
        except AntiphonError as error:
            reason = error.message
        self.refusals["failed"] += 1
        record("response_not_stored", logging.WARNING, reason=reason)
        return False

    async def load(self, id_: str, actor: Actor) -> StoredResponse:
        response = None
        if self._backend is not None and is_plain(id_):
            response = await self._backend.find(actor.project, id_, self._now())
        if response is None:
            raise NotFound(f"Response with id '{id_[:LONGEST_SHOWN_ID]}' not found.")
        return response

    async def load_chain(self, id_: str, actor: Actor) -> tuple[bytes, ...]:
        max_bytes = self._limits.max_chain_bytes
        backend = self._require_backend(PREVIOUS)
        chain = StoredChain(missing=id_)
        if is_plain(id_):
            chain = await backend.find_chain(actor.project, id_, self._now(), max_bytes)
        if chain.missing is not None:
            raise PreviousResponseNotFound(
                f"Previous response with id '{chain.missing[:LONGEST_SHOWN_ID]}' not found.", param=PREVIOUS
            )
        if chain.is_too_long:
            raise InvalidValue(
                f"{PREVIOUS}: the conversation has more than {MAX_LINKS:,} responses or {max_bytes:,} bytes; "
                "begin a new one with the items that still matter",
                param=PREVIOUS,
            )
        return chain.arrays

    async def load_items(self, ids: Sequence[str], actor: Actor) -> Mapping[str, bytes]:
        max_bytes = self._limits.max_chain_bytes
        backend = self._require_backend("input")
        plain_ids = tuple(id_ for id_ in dict.fromkeys(ids) if is_plain(id_))
        items = await backend.find_items(actor.project, plain_ids, self._now(), max_bytes)
        total = 0
        for id_ in ids:
            if id_ not in items:
                raise NotFound(f"Item with id '{id_[:LONGEST_SHOWN_ID]}' not found.", param="input")
            total += len(items[id_])
            if total > max_bytes or not items[id_]:
                raise InvalidValue(
                    f"input: the items to which it refers have more than {max_bytes:,} bytes", param="input"
                )
        return items

    async def delete(self, id_: str, actor: Actor) -> None:
        if self._backend is None or not is_plain(id_) or not await self._backend.remove(actor.project, id_):
            raise NotFound(f"Response with id '{id_[:LONGEST_SHOWN_ID]}' not found.")

    def _now(self) -> int:
        return int(self._clock.wall())

    def _require_backend(self, field: str) -> ResponseBackend:
        if self._backend is None:
            raise UnsupportedParameter(
                f"{field} refers to a stored response, and this server stores none (responses.store is "
                "false): send all items of the conversation",
                param=field,
            )
        return self._backend
