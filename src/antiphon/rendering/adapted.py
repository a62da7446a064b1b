"""A base model's renderer as it speaks with one adapter: an `Engine` and `Tokenizing` of its own, which
shares all that the renderer knows (vocabulary, templates, profile) and owns nothing.

How busy the engine is, is the base model's to say: this is not `Observable`.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.events import Event
from antiphon.domain.identity import LOCAL_ANONYMOUS, Actor
from antiphon.domain.profile import Profile
from antiphon.domain.request import Conversation, GenerationRequest, Prompt
from antiphon.domain.tokenizer import TokenizerInfo
from antiphon.engines.base import EngineState
from antiphon.errors import AntiphonError, EngineUnavailable, InvalidValue, ModelNotFound
from antiphon.rendering.rendered_request import RenderedRequest
from antiphon.rendering.renderer import Renderer

ADAPTER = "adapter"
"""The `param` of an engine's refusal of a digest that it does not know."""

RETRY_AFTER = 1.0
"""Seconds that an engine which has just come back needs to read its adapters again, with small ones."""

LACKING_RETRY_AFTER = 15.0
"""Seconds within which an engine that could not read an adapter is given it again."""


class AdapterRenderer:
    """Speaks with the adapter of one digest. Closing it is saying that the adapter's name was taken away."""

    def __init__(self, base: Renderer, digest: str, lacks: Callable[[str], bool] = lambda _: False) -> None:
        """`lacks`: whether the engine came back and could not load the adapter of a digest again."""
        self._base = base
        self._digest = digest
        self._lacks = lacks
        self._closed = False

    async def prepare(self, request: GenerationRequest, context: Context) -> "AdapterRequest":
        """As the base model, with the adapter."""
        prepared = await self._base.prepare_with(request, context, self._digest)
        return AdapterRequest(prepared, partial(self._missing, request.model))

    async def profile(self) -> Profile:
        """That of the base model."""
        return await self._base.profile()

    def state(self) -> EngineState:
        """That of the base model's engine, or FAILED where that could not load the adapter again."""
        return EngineState.FAILED if self._lacks(self._digest) else self._base.state()

    async def aclose(self) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """What runs goes on; a request that its engine does not know yet is told that the model is gone."""
        self._closed = True

    async def encode(self, prompt: Prompt, actor: Actor = LOCAL_ANONYMOUS) -> tuple[int, ...]:
        """As the base model."""
        return await self._base.encode(prompt, actor)

    async def apply(self, conversation: Conversation, actor: Actor = LOCAL_ANONYMOUS) -> str:
        """As the base model."""
        return await self._base.apply(conversation, actor)

    async def decode(self, tokens: Sequence[int]) -> str:
        """As the base model."""
        return await self._base.decode(tokens)

    async def spell(self, tokens: Sequence[int]) -> tuple[bytes, ...]:
        """As the base model."""
        return await self._base.spell(tokens)

    async def describe_tokenizer(self) -> TokenizerInfo:
        """That of the base model."""
        return await self._base.describe_tokenizer()

    def _missing(self, name: str) -> AntiphonError:
        if self._closed:
            return ModelNotFound(f"the adapter {name!r} was unloaded", param="model")
        if self._lacks(self._digest):
            return EngineUnavailable(
                f"the engine of {name} started again and could not load its adapter; the log says why. It is "
                "tried again; POST /v1/load_lora_adapter tries at once",
                retry_after=LACKING_RETRY_AFTER,
            )
        return EngineUnavailable(
            f"the engine of {name} has not loaded its adapter yet; try again shortly", retry_after=RETRY_AFTER
        )


class AdapterRequest:
    """`PreparedRequest` whose caller named an adapter, so that a refused adapter is an error of the model."""

    def __init__(self, prepared: RenderedRequest, missing: Callable[[], AntiphonError]) -> None:
        """`missing`: the error of an adapter that the engine does not know."""
        self._prepared = prepared
        self._missing = missing
        self.size = prepared.size

    def stream(self, context: Context) -> AbstractAsyncContextManager[AsyncIterator[Event]]:
        """The base model's events."""
        return aclosing(self._events(context))

    async def _events(self, context: Context) -> AsyncGenerator[Event, None]:
        try:
            async with self._prepared.stream(context) as events:
                async for event in events:
                    yield event
        except InvalidValue as refused:
            if refused.param != ADAPTER:
                raise
            raise self._missing() from None
