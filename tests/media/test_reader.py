"""How many pixels and samples running requests may have in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.media import Medium
from antiphon.domain.messages import MediaContent, MediaKind
from antiphon.errors import Overloaded, ServerBusy
from antiphon.media.decoder import MediaDecoder
from antiphon.media.reader import DecodedMedia, MediaReader
from tests.support.media_files import draw

PICTURE_BYTES = 3 * 100 * 100
KEYED = Context("r", Actor(ActorKind.SERVICE_KEY, "key_a"))
OTHER = Context("r", Actor(ActorKind.SERVICE_KEY, "key_b"))


@asynccontextmanager
async def open_reader(pictures: int) -> AsyncIterator[MediaReader]:
    """A reader for at most so many pictures at once."""
    decoder = MediaDecoder()
    try:

        async def fetch(*_: object) -> bytes:
            return draw(100, 100)

        yield MediaReader(decoder, fetch, DecodedMedia(pictures * PICTURE_BYTES))
    finally:
        await decoder.aclose()


async def read(reader: MediaReader, context: Context) -> Medium:
    part = MediaContent(MediaKind.IMAGE, url="https://localhost/red.png", field="messages[0].content[0]")
    (medium,) = await reader.read([part], 0, context)
    return medium


async def test_pictures_of_running_requests_are_bounded_and_ended_ones_do_not_count() -> None:
    async with open_reader(3) as reader:
        used = [await read(reader, Context("r")) for _ in range(3)]
        assert used[0] == used[1], "equal pictures are separate bytes"
        with pytest.raises(ServerBusy, match="90,000 bytes") as refusal:
            await read(reader, Context("r"))
        assert refusal.value.retry_after
        used.pop()
        used.append(await read(reader, Context("r")))
        with pytest.raises(ServerBusy):
            await read(reader, Context("r"))


async def test_one_caller_leaves_as_many_bytes_free_as_its_pictures_have() -> None:
    async with open_reader(4) as reader:
        used = [await read(reader, KEYED) for _ in range(2)]
        with pytest.raises(Overloaded, match="leave free"):
            await read(reader, KEYED)
        used.append(await read(reader, OTHER))
        with pytest.raises(Overloaded):
            await read(reader, OTHER)
        del used[:2]
        used.append(await read(reader, OTHER))
