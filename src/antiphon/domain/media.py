"""Decoded media: pictures as pixels and recordings as samples, ready for a model's encoder."""

import hashlib

from antiphon.domain.messages import MediaKind
from antiphon.domain.values import Struct

MOST_PIXELS = 1 << 22
"""The most pixels of a picture for an engine. A reader scales larger ones down. No model looks closer."""

LONGEST_SIDE, LARGEST_RATIO = 8192, 200
"""The most pixels of a side, and the most times that one side may be as long as the other. Encoders failed at
more extreme pictures."""


class MediumShape(Struct, frozen=True):
    """What decides how many cells a medium takes."""

    kind: MediaKind
    width: int = 0
    """Pixels of a row; 0 for a recording."""
    height: int = 0
    samples: int = 0
    """Samples of a recording; 0 for a picture."""


class Medium(Struct, frozen=True, weakref=True):
    """A decoded picture or recording."""

    shape: MediumShape
    data: bytes
    """Of a picture: red, green and blue of each pixel, a byte each, row after row. Of a recording: float32
    samples of one channel, little-endian, at the model's sample rate."""
    digest: str
    """The SHA-256 of kind, shape and data in hexadecimal. Equal media share what was computed of them."""


def build_picture(width: int, height: int, pixels: bytes) -> Medium:
    """Builds a picture. Raises ValueError for pixels that do not fit the sides, or for too large sides."""
    if len(pixels) != 3 * width * height:
        raise ValueError(f"{width} x {height} pixels are not {len(pixels)} bytes")
    longest, shortest = max(width, height), min(width, height)
    if not 0 < shortest * longest <= MOST_PIXELS or longest > min(LONGEST_SIDE, LARGEST_RATIO * shortest):
        raise ValueError(f"{width} x {height} pixels are beyond the limits of an engine")
    return _build(MediumShape(MediaKind.IMAGE, width=width, height=height), pixels)


def build_recording(samples: bytes) -> Medium:
    """Builds a recording of float32 samples. Raises ValueError if there are none, or a part of one."""
    if not samples or len(samples) % 4:
        raise ValueError(f"{len(samples)} bytes are no whole samples")
    return _build(MediumShape(MediaKind.AUDIO, samples=len(samples) // 4), samples)


def _build(shape: MediumShape, data: bytes) -> Medium:
    """Builds a medium with its digest."""
    digest = hashlib.sha256(f"{shape.kind} {shape.width} {shape.height} {shape.samples} ".encode())
    digest.update(data)
    return Medium(shape, data, digest.hexdigest())
