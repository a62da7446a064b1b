"""Decodes an image to its pixels. Only the decoding process imports this.

The first frame of an animation is its image. The picture is turned as its EXIF says, stands on white where it
is transparent, and has eight bits for each colour. Colour profiles are ignored.
"""

import math
import struct
from collections.abc import Mapping
from io import BytesIO

import PIL.TiffImagePlugin  # noqa: F401 - EXIF needs it, and a decoding child may not import it
from PIL import Image
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from antiphon.domain.media import LARGEST_RATIO, LONGEST_SIDE
from antiphon.media.facts import MAX_PIXELS, FileRefused, Reason, Refusal

OPENERS: Mapping[str, type[ImageFile]] = {
    "image/jpeg": JpegImageFile,
    "image/png": PngImageFile,
    "image/webp": WebPImageFile,
    "image/gif": GifImageFile,
}
"""What reads each type. The library's own search would try more types."""

ORIENTATION_TAG = 0x0112

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What undoes each orientation of EXIF."""

REDUCING_GAP = 2.0
"""How many times larger than its result an image can be before pixels are averaged, which is faster than the
filter and looks alike."""

WHITE = (255, 255, 255)

EXIF_ERRORS = (
    AttributeError, EOFError, IndexError, KeyError, OSError, SyntaxError, TypeError, ValueError, struct.error,
)  # fmt: skip
"""What damaged EXIF raises."""


def find_image_type(data: bytes) -> str:
    """Returns the media type of an image by its first bytes; empty if it is none that is decoded."""
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return ""


def decode_image(data: bytes, declared: str, most_pixels: int) -> tuple[int, int, bytes]:
    """Returns width, height, and the pixels row by row. `declared`: the media type that the caller says;
    empty if it says none. `most_pixels`: a larger image is made smaller. Raises FileRefused; anything else
    that it raises means that the file is damaged."""
    found = find_image_type(data)
    if not found:
        raise FileRefused(Refusal(Reason.UNKNOWN_IMAGE))
    if declared and declared != found:
        raise FileRefused(Refusal(Reason.OTHER_TYPE, found))
    image: Image.Image = OPENERS[found](BytesIO(data))
    width, height = image.size
    if not (1 <= width <= LONGEST_SIDE and 1 <= height <= LONGEST_SIDE):
        raise FileRefused(Refusal(Reason.SIDE, width=width, height=height))
    if max(width, height) > LARGEST_RATIO * min(width, height):
        raise FileRefused(Refusal(Reason.RATIO, width=width, height=height))
    size = _fit(width, height, most_pixels)
    if isinstance(image, JpegImageFile):
        image.draft(None, (int(size[0] * REDUCING_GAP), int(size[1] * REDUCING_GAP)))
    if image.width * image.height > MAX_PIXELS:
        raise FileRefused(Refusal(Reason.PIXELS, width=width, height=height))
    image.load()
    turn = _find_turn(image)
    if image.mode.startswith("I"):  # 16 bits of grey, whose lower eight are dropped
        image.info.pop("transparency", None)
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    has_alpha = image.has_transparency_data
    image = image.convert("RGBA" if has_alpha else "RGB")
    if size != image.size:
        image = image.resize(size, Image.Resampling.BICUBIC, reducing_gap=REDUCING_GAP)
    if has_alpha:
        opaque = Image.new("RGB", image.size, WHITE)
        opaque.paste(image, mask=image.getchannel("A"))
        image = opaque
    if turn is not None:
        image = image.transpose(turn)
    return image.width, image.height, image.tobytes()


def _fit(width: int, height: int, most_pixels: int) -> tuple[int, int]:
    """Returns the largest sides of at most `most_pixels` pixels with nearly the same ratio, which is at most
    LARGEST_RATIO."""
    if width * height <= most_pixels:
        return width, height
    scale = (most_pixels / (width * height)) ** 0.5
    long, short = max(width, height) * scale, min(width, height) * scale
    short_pixels = max(1, round(short), math.ceil(long / LARGEST_RATIO))
    long_pixels = min(int(long), most_pixels // short_pixels)
    return (long_pixels, short_pixels) if width >= height else (short_pixels, long_pixels)


def _find_turn(image: Image.Image) -> Image.Transpose | None:
    """Returns what undoes the orientation in the image's EXIF; None if it has none, or none that can be
    read."""
    try:
        return TURNS.get(image.getexif().get(ORIENTATION_TAG, 0))
    except EXIF_ERRORS:
        return None
