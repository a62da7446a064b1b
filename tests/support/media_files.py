"""Images and recordings for tests: good ones, and hostile ones that are all refused."""

import gzip
import struct
import wave
import zlib
from collections.abc import Iterator
from io import BytesIO

from PIL import Image

PNG_START = b"\x89PNG\r\n\x1a\n"
RED = (200, 10, 30)


def draw(
    width: int = 16,
    height: int = 8,
    form: str = "PNG",
    color: object = RED,
    mode: str = "RGB",
    **options: object,
) -> bytes:
    """Returns a picture of one color."""
    file = BytesIO()
    Image.new(mode, (width, height), color).save(file, form, **options)  # type: ignore[arg-type]  # any color
    return file.getvalue()


def draw_corners(form: str = "PNG", **options: object) -> bytes:
    """Returns a picture of 16 by 8 pixels whose left half is black and whose right half is white."""
    image = Image.new("RGB", (16, 8), (0, 0, 0))
    image.paste((255, 255, 255), (8, 0, 16, 8))
    file = BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def build_chunk(name: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG with its checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def build_png(
    width: int, height: int, pixels: bytes, *chunks: bytes, depth: int = 8, color_type: int = 0
) -> bytes:
    """Returns a PNG of these sides. `pixels`: its rows before compression, which need not fit the sides.
    `chunks`: come before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, color_type, 0, 0, 0)
    data = build_chunk(b"IDAT", zlib.compress(pixels, 1))
    return PNG_START + build_chunk(b"IHDR", header) + b"".join(chunks) + data + build_chunk(b"IEND", b"")


def build_gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """Returns a GIF with one frame, whose pixels are too few for a large one."""
    palette = bytes((0, 0, 0, 255, 255, 255))
    start = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + palette
    return start + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\x00;"


def build_wav(
    data: bytes,
    channels: int = 1,
    rate: int = 16_000,
    length: int | None = None,
    code: int = 1,
    bits: int = 16,
) -> bytes:
    """Returns a WAV. `length`: what its header says of `data`. `code`: 1 is integers, 3 is floats."""
    frame = channels * bits // 8
    numbers = struct.pack(
        "<HHIIHH", code, channels & 0xFFFF, rate, rate * frame & 0xFFFFFFFF, frame & 0xFFFF, bits
    )
    said = len(data) if length is None else length
    body = b"WAVEfmt " + struct.pack("<I", 16) + numbers + b"data" + struct.pack("<I", said) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def record(seconds: float = 0.5, channels: int = 1, rate: int = 16_000) -> bytes:
    """Returns a WAV of a tone that is a rectangle, so its samples are known."""
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        frames = int(seconds * rate)
        writer.writeframes(
            b"".join(
                struct.pack("<h", 16384 if index // 40 % 2 else -16384) * channels for index in range(frames)
            )
        )
    return file.getvalue()


def build_flac(frames: int, rate: int = 16_000, channels: int = 1) -> bytes:
    """Returns a FLAC that has a first block and no frame."""
    packed = rate << 44 | (channels - 1) << 41 | 15 << 36 | frames
    block = struct.pack(">HH", 4096, 4096) + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    return b"fLaC" + bytes((0x80, 0, 0, len(block))) + block


def resize_jpeg(width: int, height: int) -> bytes:
    """Returns a small JPEG whose header says other sides."""
    data = bytearray(draw(form="JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def list_hostile_images() -> Iterator[tuple[str, str, bytes, str]]:
    """Yields the name of each hostile image, the type that its sender says, its bytes, and words of the
    error."""
    png, jpeg, webp, gif = (draw(64, 64, form) for form in ("PNG", "JPEG", "WEBP", "GIF"))
    noise = build_png(64, 64, bytes(range(65)) * 64)
    damaged, unknown, side = (
        "damaged, or not whole",
        "not a JPEG, PNG, WebP or GIF",
        "each side may have 1 to 8,192",
    )
    bomb = zlib.compress(bytes(50_000_000), 1)
    yield "half a PNG", "png", noise[: len(noise) // 2], damaged
    yield "a PNG without its pixels", "png", PNG_START + noise[8:33], damaged
    yield "a PNG's first bytes", "png", PNG_START, damaged
    yield "a PNG with a wrong checksum", "png", png[:40] + bytes((png[40] ^ 1,)) + png[41:], damaged
    yield "half a JPEG", "jpeg", jpeg[: len(jpeg) // 2], damaged
    yield "a JPEG's first bytes", "jpeg", b"\xff\xd8\xff\xe0", damaged
    yield "half a WebP", "webp", webp[: len(webp) // 2], damaged
    yield "half a GIF", "gif", gif[: len(gif) // 2], damaged
    yield "a PNG without width", "png", build_png(0, 10, bytes(100)), damaged
    yield "a PNG without height", "png", build_png(10, 0, bytes(100)), damaged
    yield "a PNG with huge sides", "png", build_png(2**31 - 1, 2**31 - 1, bytes(100)), side
    yield "a PNG one pixel too wide", "png", build_png(8193, 100, bytes(100)), side
    yield "a JPEG with huge sides", "jpeg", resize_jpeg(65535, 65535), side
    yield "a JPEG without sides", "jpeg", resize_jpeg(0, 0), ""
    yield "a GIF without sides", "gif", build_gif((0, 0), (0, 0)), ""
    yield "a GIF with a huge screen", "gif", build_gif((65535, 65535), (1, 1)), side
    yield "a GIF with a huge frame", "gif", build_gif((1, 1), (60000, 60000)), damaged
    yield "a WebP with a huge canvas", "webp", _build_webp_canvas(16384, 16384), ""
    yield "a thread", "png", build_png(1, 1000, bytes(2) * 1000), "200 times as long"
    yield (
        "a PNG of 64 million pixels",
        "png",
        build_png(8000, 8000, bytes(1001) * 8000, depth=1),
        "16,777,216",
    )
    yield "a GIF of 64 million pixels", "gif", build_gif((8000, 8000), (8000, 8000)), "16,777,216"
    yield (
        "a bomb in a color profile",
        "png",
        build_png(1, 1, bytes(2), build_chunk(b"iCCP", b"x\0\0" + bomb)),
        damaged,
    )
    yield "a bomb in a text", "png", build_png(1, 1, bytes(2), build_chunk(b"zTXt", b"x\0\0" + bomb)), damaged
    text = build_chunk(b"iTXt", b"x\0\1\0\0\0" + bomb)
    yield "a bomb in an international text", "png", build_png(1, 1, bytes(2), text), damaged
    texts = build_chunk(b"zTXt", b"x\0\0" + zlib.compress(bytes(1_000_000), 9)) * 80
    yield "80 texts of a megabyte", "png", build_png(1, 1, bytes(2), texts), damaged
    yield "a JPEG that says it is a PNG", "png", jpeg, "is JPEG, and its declared type is PNG"
    yield "a PNG that says it is a GIF", "gif", png, "is PNG, and its declared type is GIF"
    yield "a recording", "png", record(), unknown
    yield "a text", "png", b"not a picture at all", unknown
    yield "an SVG", "png", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://a/"/></svg>', unknown
    yield "a HEIC", "jpeg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200), unknown
    yield "an AVIF", "webp", b"\0\0\0\x18ftypavif\0\0\0\0mif1avif" + bytes(200), unknown
    yield "a video", "gif", b"\0\0\0\x18ftypmp42\0\0\0\0isommp42" + bytes(200), unknown
    yield "a TIFF", "png", draw(form="TIFF"), unknown
    yield "a BMP", "png", draw(form="BMP"), unknown
    yield "an icon", "png", draw(16, 16, form="ICO"), unknown
    yield "a program of PostScript", "png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", unknown
    yield "a PDF around a PNG", "png", b"%PDF-1.7\n" + png, unknown
    yield "a script that begins like a GIF", "gif", b"GIF89a/*" + bytes(20) + b"*/=alert(1)//", ""
    yield "a WAV that begins like a WebP", "webp", b"RIFF\x24\0\0\0WEBP" + record()[12:], damaged
    yield "a bomb of gzip", "png", gzip.compress(bytes(5_000_000)), unknown


def _build_webp_canvas(width: int, height: int) -> bytes:
    """Returns a WebP with a canvas of these sides around a small picture."""
    image = draw(16, 16, "WEBP")[12:]
    canvas = struct.pack("<I", 0) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", len(canvas)) + canvas + image
    return b"RIFF" + struct.pack("<I", len(body)) + body


def list_hostile_recordings() -> Iterator[tuple[str, str, bytes, str]]:
    """Yields the same of each hostile recording."""
    wav, samples = record(), bytes(2000)
    damaged, unknown = "damaged, or not whole", "not a WAV, MP3 or FLAC"
    yield "half a WAV", "wav", wav[: len(wav) // 2], damaged
    yield "a WAV that says too much", "wav", build_wav(samples, length=2**31), damaged
    yield "a WAV without a format", "wav", wav[:12] + wav[36:], damaged
    yield "a WAV without channels", "wav", build_wav(samples, channels=0), "has 0 channels"
    yield "a WAV of 65,535 channels", "wav", build_wav(samples, channels=65535), "has 65535 channels"
    yield "a WAV without a rate", "wav", build_wav(samples, rate=0), "has 0 samples a second"
    yield "a WAV with an absurd rate", "wav", build_wav(samples, rate=2**32 - 1), "samples a second"
    yield "an empty WAV", "wav", build_wav(b""), "no sound"
    numbers = struct.pack("<4f", 0.5, float("nan"), float("inf"), 0)
    yield "a WAV of no numbers", "wav", build_wav(numbers * 99, code=3, bits=32), "no numbers"
    yield "a WAV of a code that nobody knows", "wav", build_wav(samples, code=0x4242), "no sound"
    yield "a WAV that says it is an MP3", "mp3", wav, "is WAV, and its declared type is MP3"
    yield "an MP3 without a frame", "mp3", b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(500), ""
    yield "an MP3 of nonsense", "mp3", b"\xff\xfb\x90\0" + bytes(range(256)) * 4, ""
    yield "an MP3 that is one header", "mp3", b"\xff\xfb\x90\0", ""
    yield "a FLAC of eleven days", "flac", build_flac(2**36 - 1), "longer than 600 seconds"
    yield "a FLAC without a frame", "flac", build_flac(16_000), ""
    yield "a FLAC's first bytes", "flac", b"fLaC\x80", damaged
    yield "a FLAC without a rate", "flac", build_flac(100, rate=0), "has 0 samples a second"
    yield "an Ogg", "wav", b"OggS\0\2" + bytes(300), unknown
    yield "an AAC", "mp3", b"\xff\xf1\x50\x80" + bytes(300), unknown
    yield "an AIFF", "wav", b"FORM\0\0\1\0AIFF" + bytes(300), unknown
    yield "a picture", "wav", draw(), unknown
