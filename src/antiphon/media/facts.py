"""The limits of images and recordings, and the reasons for which one is refused. Decodes nothing."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from antiphon.domain.media import LARGEST_RATIO, LONGEST_SIDE
from antiphon.domain.values import Struct

MAX_FILE_BYTES = 20 << 20
"""The most bytes of one file. OpenAI has about the same limit."""

MAX_PIXELS = 1 << 24
"""The most pixels that are decoded. A screen of 5120 by 2880 pixels has 14,745,600. A JPEG of a camera can
have more, because it is decoded at a fraction of its size."""

MAX_SECONDS = 600
"""The most seconds of a recording."""

MAX_CHANNELS = 8

MIN_RATE, MAX_RATE = 4_000, 192_000
"""The bounds of the samples for each second in a recording."""

SAMPLE_BYTES = 4
"""The bytes of one sample, a little-endian float32."""

PIXEL_BYTES = 3
"""The bytes of one pixel: red, green, blue."""

MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "image/jpeg": "JPEG",
        "image/png": "PNG",
        "image/webp": "WebP",
        "image/gif": "GIF",
        "audio/wav": "WAV",
        "audio/mpeg": "MP3",
        "audio/flac": "FLAC",
    }
)
"""The types that are decoded, with their names for people."""


class Reason(StrEnum):
    """Why a file is refused."""

    UNKNOWN_IMAGE = "unknown image"
    """Its bytes begin like no image that is decoded."""
    UNKNOWN_SOUND = "unknown sound"
    OTHER_TYPE = "other type"
    """Its bytes are of another type than the caller says."""
    DAMAGED = "damaged"
    """It is damaged, cut off, or not what its first bytes say."""
    SIDE = "side"
    RATIO = "ratio"
    PIXELS = "pixels"
    SECONDS = "seconds"
    CHANNELS = "channels"
    RATE = "rate"
    SILENT = "silent"
    """It contains no sample."""
    NUMBERS = "numbers"
    """Its samples are infinite, or no numbers."""
    TIME = "time"
    MEMORY = "memory"


SENTENCES: Mapping[Reason, str] = {
    Reason.UNKNOWN_IMAGE: "is not a JPEG, PNG, WebP or GIF image; convert it to one of them",
    Reason.UNKNOWN_SOUND: "is not a WAV, MP3 or FLAC recording; convert it to one of them",
    Reason.OTHER_TYPE: "is {found}, and its declared type is {declared}; declare the type that it has",
    Reason.DAMAGED: "is damaged, or not whole; save it again and send all of it",
    Reason.SIDE: f"has {{width}} by {{height}} pixels; each side may have 1 to {LONGEST_SIDE:,}: resize it",
    Reason.RATIO: f"has {{width}} by {{height}} pixels; a side may be {LARGEST_RATIO} times as long as the "
    "other at most: cut it",
    Reason.PIXELS: f"has {{width}} by {{height}} pixels; {MAX_PIXELS:,} are the most of one image: resize it",
    Reason.SECONDS: f"is longer than {MAX_SECONDS:,} seconds; send a part of it",
    Reason.CHANNELS: f"has {{found}} channels; 1 to {MAX_CHANNELS} are possible: mix them",
    Reason.RATE: f"has {{found}} samples a second; {MIN_RATE:,} to {MAX_RATE:,} are possible: resample it",
    Reason.SILENT: "contains no sound that can be decoded; save it as a WAV of 16 bits",
    Reason.NUMBERS: "has samples that are infinite or no numbers; record it again",
    Reason.TIME: "takes too much time to decode; send it smaller, or in another format",
    Reason.MEMORY: "takes too much memory to decode; send it smaller, or in another format",
}
"""What a caller reads, after the name of the part."""


class Refusal(Struct, frozen=True):
    """A refusal by the decoding process. It has no text of its own: a text of that process could be any text,
    or quote its memory."""

    reason: Reason
    found: int | str = ""
    """The type, by MEDIA_TYPES, or the number that is out of range."""
    width: int = 0
    height: int = 0

    def describe(self, declared: str) -> str:
        """Returns the sentence's predicate. `declared`: the type that the caller says."""
        found = MEDIA_TYPES.get(str(self.found), self.found)
        return SENTENCES[self.reason].format(
            found=found,
            declared=MEDIA_TYPES.get(declared, declared),
            width=self.width,
            height=self.height,
        )


class FileRefused(Exception):
    """Raised where a file is decoded, with the reason."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal
