"""The state of a model that is loaded on request, in an HTTP process: whether the model is parked, and why it
cannot be loaded now. The supervisor loads it."""

import asyncio
import time
from collections.abc import Callable

from antiphon.engines.base import EngineState
from antiphon.engines.host.control import EngineNews
from antiphon.errors import EngineUnavailable, ModelNotLoaded

RETRY_AFTER = 2.0
"""Retry delay in seconds for callers that do not wait for the load."""


class Parking:
    """The state of one model, by the latest news of the supervisor."""

    def __init__(
        self, name: str, ask_load: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask_load`: asks the supervisor to load the model. The supervisor always answers with news."""
        self._name = name
        self._ask_load = ask_load
        self._clock = clock
        self._state = EngineState.PARKED
        self._has_asked = False
        """Whether the supervisor was asked since the latest news."""
        self._refusal = ""
        self._refuses_until = 0.0
        self._loads = asyncio.Event()

    @property
    def state(self) -> EngineState:
        """The model's state while there is no connection. A host that is ready is connected at once."""
        return EngineState.LOADING if self._state is EngineState.READY else self._state

    def note(self, news: EngineNews) -> None:
        """Notes the supervisor's news."""
        self._state = news.state
        self._has_asked = False
        self._refusal = news.detail
        self._refuses_until = self._clock() + news.retry_after
        if news.state is EngineState.PARKED:
            self._loads.clear()
        else:
            self._loads.set()

    async def wait_for_load(self) -> None:
        """Waits while the model is parked."""
        await self._loads.wait()

    def request_load(self) -> None:
        """Asks for the load once if the model is parked, unless a refusal of the supervisor still holds."""
        if self._state is EngineState.PARKED and not self._has_asked and not self._is_refused():
            self._has_asked = True
            self._ask_load()

    def build_absence(self) -> EngineUnavailable:
        """Asks for the load, and returns the error of a call without a connection. The error is final while
        the supervisor's refusal holds."""
        if self._is_refused():
            return ModelNotLoaded(self._refusal, retry_after=max(1.0, self._refuses_until - self._clock()))
        self.request_load()
        return EngineUnavailable(
            f"the model {self._name} is being loaded; try again shortly", retry_after=RETRY_AFTER
        )

    def _is_refused(self) -> bool:
        """Whether the supervisor has refused to load the model, and its reason still holds."""
        return (
            bool(self._refusal) and self._state is EngineState.PARKED and self._clock() < self._refuses_until
        )
