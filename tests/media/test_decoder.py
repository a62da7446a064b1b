"""Files of callers become pixels and samples in a process of its own; what is no such file gets one
sentence."""

import asyncio
import base64
import os
import signal
import struct
import subprocess
import sys
import time
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from io import BytesIO

import psutil
import pytest
from PIL import Image

from antiphon.domain.context import SystemClock
from antiphon.domain.media import Medium, build_picture
from antiphon.errors import AntiphonError, InvalidValue, ServerBusy
from antiphon.media.decoder import MediaDecoder, MediaFile
from antiphon.media.decoding_process import MEMORY_BYTES
from tests.support.media_files import (
    RED,
    build_png,
    build_wav,
    draw,
    draw_corners,
    list_hostile_images,
    list_hostile_recordings,
    record,
)
from tests.support.waiting import await_until

CLOCK = SystemClock()
SECONDS = 10.0
"""Ten times what a hostile file may take."""


@asynccontextmanager
async def open_decoder() -> AsyncIterator[MediaDecoder]:
    """A decoder whose processes a test ends."""
    decoder = MediaDecoder()
    try:
        yield decoder
    finally:
        await decoder.aclose()


@pytest.fixture(scope="module")
async def decoder() -> AsyncIterator[MediaDecoder]:
    """The decoder of all tests that leave its process alone."""
    async with open_decoder() as opened:
        yield opened


async def decode(decoder: MediaDecoder, data: bytes, said: str = "", most_pixels: int = 1 << 20) -> Medium:
    file = MediaFile(
        "messages[0].content[1].image_url", base64.b64encode(data).decode(), said and f"image/{said}"
    )
    return await decoder.decode_image(file, "someone", CLOCK, most_pixels)


async def listen(decoder: MediaDecoder, data: bytes, said: str = "", rate: int = 16_000) -> Medium:
    types = {"wav": "audio/wav", "mp3": "audio/mpeg", "flac": "audio/flac", "": ""}
    return await decoder.decode_recording(
        MediaFile("messages[0].content[0].input_audio", data, types[said]), "a", CLOCK, rate
    )


def pixel(medium: Medium, x: int = 0, y: int = 0) -> tuple[int, ...]:
    start = 3 * (y * medium.shape.width + x)
    return tuple(medium.data[start : start + 3])


async def test_every_format_gives_the_same_picture(decoder: MediaDecoder) -> None:
    expected = build_picture(16, 8, bytes(RED) * 128)
    for form in ("PNG", "GIF", "WEBP"):
        data = draw(form=form, lossless=True) if form == "WEBP" else draw(form=form)
        assert await decode(decoder, data, form.lower()) == expected, form
    jpeg = await decode(decoder, draw(form="JPEG", quality=95), "jpeg")
    assert max(abs(one - other) for one, other in zip(pixel(jpeg), RED, strict=True)) <= 4
    assert await decode(decoder, draw()) == expected, "a fetched file says no type"


async def test_every_kind_of_pixels_becomes_eight_bits_on_white(decoder: MediaDecoder) -> None:
    def draw_palette(**options: object) -> bytes:
        image, file = Image.new("P", (8, 8), 1), BytesIO()
        image.putpalette([0, 0, 0, *RED])
        image.save(file, "PNG", **options)
        return file.getvalue()

    grey_16 = build_png(4, 4, (b"\0" + b"\x80\x40" * 4) * 4, depth=16)
    color_16 = build_png(4, 4, (b"\0" + b"\x80\x40\x10\xff\xff\xff" * 4) * 4, depth=16, color_type=2)
    cases = {
        "half transparent": (draw(color=(255, 0, 0, 128), mode="RGBA"), (255, 127, 127)),
        "grey with alpha": (draw(color=(0, 0), mode="LA"), (255, 255, 255)),
        "grey": (draw(color=77, mode="L"), (77, 77, 77)),
        "two colors": (draw(color=1, mode="1"), (255, 255, 255)),
        "a palette": (draw_palette(), RED),
        "a palette with a transparent entry": (draw_palette(transparency=1), (255, 255, 255)),
        "a transparent grey": (draw(color=7, mode="L", transparency=7), (255, 255, 255)),
        "16 bits of grey": (grey_16, (0x80, 0x80, 0x80)),
        "16 bits of color": (color_16, (0x80, 0x10, 0xFF)),
        "CMYK": (draw(form="JPEG", mode="CMYK", color=(0, 255, 255, 0), quality=100), (255, 0, 0)),
    }
    for name, (data, expected) in cases.items():
        found = pixel(await decode(decoder, data))
        assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) <= 2, name


async def test_a_picture_is_turned_as_its_exif_says(decoder: MediaDecoder) -> None:
    # The picture's left half is black. What is black after the turn: left, right, top or bottom.
    black = dict(enumerate(("left", "right", "right", "left", "top", "top", "bottom", "bottom"), 1))
    for orientation, side in black.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        turned = await decode(decoder, draw_corners("JPEG", quality=95, exif=exif), "jpeg")
        shape = turned.shape
        right, bottom = shape.width - 1, shape.height - 1
        assert (shape.width, shape.height) == ((16, 8) if orientation < 5 else (8, 16))
        dark = {(x > 0, y > 0) for x in (0, right) for y in (0, bottom) if pixel(turned, x, y)[0] < 15}
        index = side in ("top", "bottom")
        assert {corner[index] for corner in dark} == {side in ("right", "bottom")}, orientation
        assert len(dark) == 2, orientation
    broken = draw(form="JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert (await decode(decoder, broken)).shape.width == 16


async def test_a_large_picture_is_made_smaller_in_its_process(decoder: MediaDecoder) -> None:
    small = await decode(decoder, draw(1600, 400, "JPEG"), "jpeg", most_pixels=10_000)
    assert (small.shape.width, small.shape.height) == (200, 50)
    assert (await decode(decoder, draw(100, 100), most_pixels=10_000)).shape.width == 100
    for width, height in ((8000, 40), (40, 8000), (1999, 10), (7, 1400)):
        shape = (await decode(decoder, draw(width, height), most_pixels=1000)).shape
        assert shape.width * shape.height <= 1000, "build_picture checks the ratio"


async def test_an_animation_gives_its_first_frame(decoder: MediaDecoder) -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, (0, 0, 0))]
    for form in ("GIF", "PNG", "WEBP"):
        file = BytesIO()
        options = {"lossless": True} if form == "WEBP" else {}
        frames[0].save(file, form, save_all=True, append_images=frames[1:], **options)
        assert pixel(await decode(decoder, file.getvalue())) == RED, form


async def test_a_recording_is_mixed_and_resampled(decoder: MediaDecoder) -> None:
    for channels, rate in ((1, 16_000), (2, 44_100), (6, 8_000)):
        medium = await listen(decoder, record(0.5, channels, rate), "wav")
        assert abs(medium.shape.samples - 8_000) <= 64, (channels, rate)
    exact = array("f", (await listen(decoder, record())).data)
    assert exact[0] == -0.5 and exact[40] == 0.5
    loud = await listen(decoder, build_wav(struct.pack("<2f", 5.0, -5.0) * 50, code=3, bits=32))
    assert set(array("f", loud.data)) == {1.0, -1.0}
    # A program that writes to a pipe does not know the length when it writes the header.
    assert (await listen(decoder, build_wav(bytes(2_000), length=2**32 - 1))).shape.samples == 1_000


async def test_every_hostile_file_gets_one_sentence_and_harms_nothing(decoder: MediaDecoder) -> None:
    async def refuse(read: Callable[..., object], name: str, said: str, data: bytes, words: str) -> None:
        begun = time.monotonic()
        with pytest.raises(InvalidValue) as refused:
            await read(decoder, data, said)  # type: ignore[misc]
        error = refused.value
        assert time.monotonic() - begun < SECONDS, name
        assert words in error.message and error.message.startswith(str(error.param)), (name, error.message)
        assert "0x7f" not in error.message and "Traceback" not in error.message, name

    await decode(decoder, draw())
    pids = decoder.pids
    images, recordings = tuple(list_hostile_images()), tuple(list_hostile_recordings())
    assert len(images) + len(recordings) >= 60
    for name, said, data, words in images:
        await refuse(decode, name, said, data, words)
    for name, said, data, words in recordings:
        await refuse(listen, name, said, data, words)
    assert pixel(await decode(decoder, draw())) == RED
    assert decoder.pids == pids, "no file ended the process"
    assert psutil.Process(pids[0]).memory_info().rss < 150 << 20


async def test_bombs_that_no_limit_names_end_within_memory_and_time(decoder: MediaDecoder) -> None:
    """These say small sides, and have much more behind them."""
    for data in (build_png(10, 10, bytes(50_000_000)), draw() + bytes(1_000_000)):
        begun = time.monotonic()
        with suppress(InvalidValue):
            assert (await decode(decoder, data)).shape.width in (10, 16)
        assert time.monotonic() - begun < SECONDS
    assert MEMORY_BYTES <= 512 << 20


async def test_a_killed_process_is_an_error_of_one_request_only() -> None:
    async with open_decoder() as decoder:
        await decode(decoder, draw())
        os.kill(decoder.pids[0], signal.SIGKILL)
        results = await asyncio.gather(*(decode(decoder, draw()) for _ in range(4)), return_exceptions=True)
        assert sum(isinstance(result, ServerBusy) for result in results) <= 1
        assert sum(isinstance(result, Medium) for result in results) >= 3
        assert pixel(await decode(decoder, draw())) == RED


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_the_child_of_the_next_file_waits_for_it_and_ends_alone_or_with_its_process() -> None:
    async with open_decoder() as decoder:

        async def find_waiting(*ended: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
            """The process, and its child that waits for a file, once that is none of these."""
            process = psutil.Process(decoder.pids[0])
            pids = [each.pid for each in ended]
            await await_until(lambda: [each.pid for each in process.children() if each.pid not in pids] != [])
            (waiting,) = (each for each in process.children() if each.pid not in pids)
            return process, waiting

        await decode(decoder, draw())
        _, first = await find_waiting()
        assert pixel(await decode(decoder, draw())) == RED
        _, second = await find_waiting(first)
        assert has_ended(first), "no child decodes two files"
        second.kill()
        with pytest.raises(ServerBusy):
            await decode(decoder, draw())
        assert pixel(await decode(decoder, draw())) == RED, "it is an error of one request only"
        process, waiting = await find_waiting()
        process.kill()
        await await_until(lambda: has_ended(waiting))


async def test_a_cancelled_request_leaves_no_process_that_still_decodes() -> None:
    async with open_decoder() as decoder:
        await decode(decoder, draw())
        process = psutil.Process(decoder.pids[0])
        process.suspend()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(decode(decoder, draw()))
            await await_until(lambda: decoder.pids == ())
            task.cancel()
        await await_until(lambda: not process.is_running())
        assert pixel(await decode(decoder, draw())) == RED


async def test_few_files_are_decoded_at_once_and_callers_take_turns() -> None:
    async with open_decoder() as decoder:
        done: list[str] = []

        async def ask(actor: str) -> None:
            await decoder.decode_image(MediaFile("x", draw()), actor, CLOCK)
            done.append(actor)

        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(ask("busy"))
            await asyncio.sleep(0)
            group.create_task(ask("other"))
        assert done.index("other") < 10
        assert len(decoder.pids) == 2


def test_a_file_s_child_cannot_write_to_the_next_caller() -> None:
    """It decodes without the two ends that its parent shares with the server."""
    script = (
        "import os, sys; from antiphon.media.decoding_process import Job, decode_alone\n"
        "reading, writing = os.pipe()\n"
        "decode_alone(Job(True, '', False), b'no picture', writing)\n"
        "assert len(os.read(reading, 4096)) > 8\n"
        "for shared in (0, 1):\n"
        "    try: os.write(shared, b'x')\n"
        "    except OSError: continue\n"
        "    os._exit(3)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0


async def test_a_file_with_too_many_bytes_is_refused_unread() -> None:
    decoder = MediaDecoder()
    with pytest.raises(AntiphonError, match="20,971,520 are the most"):
        await decode(decoder, bytes(21 << 20))
    assert decoder.pids == ()
