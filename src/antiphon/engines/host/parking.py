"""The state of a model that is loaded on request, in an HTTP process: whether the model is parked, and why it
cannot be loaded now. The supervisor loads it."""

import asyncio
import time
from collections.abc import Callable

from antiphon.engines.base import EngineState
from antiphon.engines.host.control import EngineStateNotice
from antiphon.errors import EngineUnavailable, ModelNotLoaded

LOAD_RETRY_AFTER = 2.0
"""Retry delay in seconds for callers that do not wait for the load."""


class Parking:
    """The state of one model, as the supervisor last reported it."""

    def __init__(
        self, name: str, ask_load: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask_load`: asks the supervisor to load the model. The supervisor always replies with a notice of
        the model's state."""
        self._name = name
        self._ask_load = ask_load
        self._clock = clock
        self._state = EngineState.PARKED
        self._has_asked = False
        """Whether the supervisor was asked since its latest notice."""
        self._refusal = ""
        """Why the supervisor cannot load the model; empty without a refusal."""
        self._refuses_until = 0.0
        self._load_begun = asyncio.Event()
        """Set while the model is not parked."""

    @property
    def state(self) -> EngineState:
        """The model's state while there is no connection. A host that is READY counts as LOADING until the
        connection is made."""
        return EngineState.LOADING if self._state is EngineState.READY else self._state

    def note(self, notice: EngineStateNotice) -> None:
        """Notes the state that the supervisor reports."""
        self._state = notice.state
        self._has_asked = False
        self._refusal = notice.detail
        self._refuses_until = self._clock() + notice.retry_after
        if notice.state is EngineState.PARKED:
            self._load_begun.clear()
        else:
            self._load_begun.set()

    async def wait_for_load(self) -> None:
        """Waits while the model is parked."""
        await self._load_begun.wait()

    def request_load(self) -> None:
        """Asks for the load once if the model is parked, unless a refusal of the supervisor still holds."""
        if self._state is EngineState.PARKED and not self._has_asked and not self._is_refused():
            self._has_asked = True
            self._ask_load()

    def build_absence_error(self) -> EngineUnavailable:
        """Builds the error of a call without a connection. While a refusal of the supervisor holds, the error
        is final. Without a refusal, requests the load, and the caller can try again."""
        if self._is_refused():
            return ModelNotLoaded(self._refusal, retry_after=max(1.0, self._refuses_until - self._clock()))
        self.request_load()
        return EngineUnavailable(
            f"the model {self._name} is being loaded; try again shortly", retry_after=LOAD_RETRY_AFTER
        )

    def _is_refused(self) -> bool:
        """Whether the supervisor has refused to load the model, and its reason still holds."""
        return (
            bool(self._refusal) and self._state is EngineState.PARKED and self._clock() < self._refuses_until
        )
