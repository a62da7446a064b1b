"""Requests with media at the renderer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.context import Context, SystemClock
from antiphon.domain.media import Medium, build_picture
from antiphon.domain.messages import MediaContent, MediaKind, TextContent
from antiphon.domain.request import GenerationRequest, RawPrompt
from antiphon.errors import DeadlineExceeded
from antiphon.rendering.renderer import Renderer, RendererOptions
from tests.support.host_engines import Seeing


class Busy(Seeing):
    """Takes one medium, and no second one."""

    @asynccontextmanager
    async def hold(self, medium: Medium, cache_salt: str = "") -> AsyncIterator[None]:
        if self.held:
            await asyncio.Event().wait()
        async with super().hold(medium, cache_salt):
            yield


async def read_media(parts: Sequence[MediaContent], *_: object) -> Sequence[Medium]:
    return [build_picture(1, 1, bytes((index, 0, 0))) for index, _ in enumerate(parts)]


async def test_the_deadline_holds_while_an_engine_takes_the_pictures() -> None:
    engine, clock = Busy(), SystemClock()
    renderer = Renderer(engine, options=RendererOptions(read_media=read_media))
    pictures = [MediaContent(MediaKind.IMAGE, data="AAAA", field=f"images[{number}]") for number in range(2)]
    request = GenerationRequest("owl", (RawPrompt(content=(*pictures, TextContent("What?"))),))
    prepared = await renderer.prepare(request, Context("r"))
    async with asyncio.timeout(60):
        with pytest.raises(DeadlineExceeded):
            async with prepared.stream(Context("r", deadline=clock.monotonic() + 0.05)) as groups:
                await anext(groups)
    assert not engine.held
