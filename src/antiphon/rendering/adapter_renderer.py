"""A base model's renderer with one adapter: an `Engine` and `Tokenizing` that shares vocabulary, templates
and profile with the base.

It is not `Observable`: the base model reports the engine's load.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.models import Profile, TokenizerInfo
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.engines.base import EngineState
from antiphon.errors import AntiphonError, EngineUnavailable, InvalidValue, ModelNotFound
from antiphon.rendering.rendered_request import RenderedRequest
from antiphon.rendering.renderer import Renderer

ADAPTER = "adapter"
"""The `param` of an engine's error about an unknown adapter."""

RETRY_AFTER = 1.0
"""Seconds that a restarted engine needs to load small adapters again."""

FAILED_RETRY_AFTER = 15.0
"""Seconds until an engine that could not load an adapter tries again."""


class AdapterRenderer:
    """A renderer for one adapter. Close it when the adapter's name is removed."""

    def __init__(
        self, base: Renderer, digest: str, lacks_adapter: Callable[[str], bool] = lambda _: False
    ) -> None:
        """`lacks_adapter`: whether the engine has restarted and could not load the adapter with this
        digest."""
        self._base = base
        self._digest = digest
        self._lacks_adapter = lacks_adapter
        self._is_closed = False

    async def prepare(self, request: GenerationRequest, context: Context) -> "RenderedAdapterRequest":
        """Prepares the request like the base model's renderer, with this adapter."""
        prepared = await self._base.prepare_with_adapter(request, context, self._digest)
        return RenderedAdapterRequest(prepared, partial(self._build_missing_error, request.model))

    async def profile(self) -> Profile:
        return await self._base.profile()

    def state(self) -> EngineState:
        """Returns FAILED if the restarted engine could not load the adapter again, otherwise the state of the
        base model's engine."""
        return EngineState.FAILED if self._lacks_adapter(self._digest) else self._base.state()

    def request_load(self) -> None:
        """Has the base model loaded if it is parked."""
        self._base.request_load()

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Refuses later requests with ModelNotFound; running requests finish."""
        self._is_closed = True

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        return await self._base.encode(prompt, actor)

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        return await self._base.apply(conversation, actor)

    async def decode(self, tokens: Sequence[int]) -> str:
        return await self._base.decode(tokens)

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        return await self._base.spell(tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        return await self._base.describe_tokenizer()

    def _build_missing_error(self, name: str) -> AntiphonError:
        """Returns the error for a request whose adapter the engine does not know. `name`: the model's name in
        the request."""
        if self._is_closed:
            return ModelNotFound(f"the adapter {name!r} was unloaded", param="model")
        if self._lacks_adapter(self._digest):
            return EngineUnavailable(
                f"the engine of {name} started again and could not load its adapter; the log says why. The "
                "engine tries again by itself; POST /v1/load_lora_adapter makes it try at once",
                retry_after=FAILED_RETRY_AFTER,
            )
        return EngineUnavailable(
            f"the engine of {name} has not loaded its adapter yet; try again shortly", retry_after=RETRY_AFTER
        )


class RenderedAdapterRequest:
    """A `PreparedRequest` that reports a refused adapter as an error of the model."""

    def __init__(self, prepared: RenderedRequest, build_missing_error: Callable[[], AntiphonError]) -> None:
        """`build_missing_error`: returns the error for an adapter that the engine does not know."""
        self._prepared = prepared
        self._build_missing_error = build_missing_error
        self.size = prepared.size

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        return aclosing(self._events(context))

    async def _events(self, context: Context) -> AsyncGenerator[Event, None]:
        """Yields the request's events. Maps the engine's refusal of the adapter to an error of the model."""
        try:
            async with self._prepared.stream(context) as events:
                async for event in events:
                    yield event
        except InvalidValue as refused:
            if refused.param != ADAPTER:
                raise
            raise self._build_missing_error() from None
