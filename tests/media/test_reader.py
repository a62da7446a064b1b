"""How many pixels and samples running requests may have in memory, and which stay after them."""

import base64
from collections.abc import AsyncIterator

import pytest

from antiphon.domain.context import Clock, Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.media import MOST_PIXELS, Medium
from antiphon.domain.messages import MediaContent, MediaKind
from antiphon.errors import InvalidValue, Overloaded, ServerBusy
from antiphon.media.decoder import MediaDecoder, MediaFile
from antiphon.media.reader import DecodedMedia, MediaReader
from tests.support.media_files import draw

PICTURE_BYTES = 3 * 100 * 100
KEYED = Context("r", Actor(ActorKind.SERVICE_KEY, "key_a"))
OTHER = Context("r", Actor(ActorKind.SERVICE_KEY, "key_b"))


async def read(reader: MediaReader, context: Context) -> Medium:
    part = MediaContent(MediaKind.IMAGE, url="https://localhost/red.png", field="messages[0].content[0]")
    (medium,) = await reader.read([part], 0, "", context)
    return medium


class CountingDecoder(MediaDecoder):
    """Counts the files that it decodes."""

    count = 0

    async def decode_image(
        self, file: MediaFile, actor: str, clock: Clock, most_pixels: int = MOST_PIXELS
    ) -> Medium:
        self.count += 1
        return await super().decode_image(file, actor, clock, most_pixels)


@pytest.fixture(scope="module")
async def decoder() -> AsyncIterator[CountingDecoder]:
    decoder = CountingDecoder()
    yield decoder
    await decoder.aclose()


def build_reader(decoder: MediaDecoder, pictures: int) -> MediaReader:
    """A reader for at most so many pictures at once."""

    async def fetch(*_: object) -> bytes:
        return draw(100, 100)

    return MediaReader(decoder, fetch, DecodedMedia(pictures * PICTURE_BYTES))


async def test_a_file_is_decoded_once_for_a_salt_and_forgotten_beyond_the_limits(
    decoder: CountingDecoder,
) -> None:
    decoder.count = 0
    files = [base64.b64encode(draw(100, 100, color=(shade, 0, 0))).decode() for shade in range(3)]
    decoded = DecodedMedia(4 * PICTURE_BYTES, max_kept_bytes=2 * PICTURE_BYTES)
    reader, context = MediaReader(decoder, None, decoded), Context("r")

    async def show(index: int, salt: str = "a", detail: str = "", media_type: str = "") -> Medium:
        part = MediaContent(MediaKind.IMAGE, media_type, files[index], detail=detail, field="images[0]")
        (medium,) = await reader.read([part], 0, salt, context)
        return medium

    assert await show(0) == await show(0) and decoder.count == 1
    assert (await show(0)).data[:3] == bytes((0, 0, 0))
    await show(0, salt="b")
    assert decoder.count == 2, "another project does not learn what was sent"
    with pytest.raises(InvalidValue, match="declared type"):
        await show(0, media_type="image/gif")
    await show(1)
    assert decoder.count == 4
    await show(0)
    assert decoder.count == 5, "two pictures stay, and the first one was used before the others"
    used = [await show(2), await show(2), await show(2)]
    assert decoder.count == 6
    assert await show(2) == used[0] and decoder.count == 6
    await show(0)
    assert decoder.count == 7, "running requests leave room for one"


async def test_pictures_of_running_requests_are_bounded_and_ended_ones_do_not_count(
    decoder: CountingDecoder,
) -> None:
    reader = build_reader(decoder, 3)
    used = [await read(reader, Context("r")) for _ in range(3)]
    assert used[0] == used[1], "equal pictures are separate bytes"
    with pytest.raises(ServerBusy, match="90,000 bytes") as refusal:
        await read(reader, Context("r"))
    assert refusal.value.retry_after
    used.pop()
    used.append(await read(reader, Context("r")))
    with pytest.raises(ServerBusy):
        await read(reader, Context("r"))


async def test_one_caller_leaves_as_many_bytes_free_as_its_pictures_have(decoder: CountingDecoder) -> None:
    reader = build_reader(decoder, 4)
    used = [await read(reader, KEYED) for _ in range(2)]
    with pytest.raises(Overloaded, match="leave free"):
        await read(reader, KEYED)
    used.append(await read(reader, OTHER))
    with pytest.raises(Overloaded):
        await read(reader, OTHER)
    del used[:2]
    used.append(await read(reader, OTHER))
