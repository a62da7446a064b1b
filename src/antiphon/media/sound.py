"""Decodes a recording to its samples. Only the decoding process imports this.

All channels are mixed to one, and resampled to the rate that the engine takes. No recording is decoded beyond
the most seconds, whatever length it says.
"""

import miniaudio
import numpy as np

from antiphon.media.facts import (
    MAX_CHANNELS,
    MAX_RATE,
    MAX_SECONDS,
    MIN_RATE,
    SAMPLE_BYTES,
    FileRefused,
    Reason,
    Refusal,
)

FRAMES_AT_ONCE = 16_384

STREAMED_LENGTH = 0xFFFFFFFF
"""The length of the samples in a WAV whose writer did not know it."""

CHUNK_HEADER = 8
"""The bytes before the content of a part of a WAV: four of its name and four of its length."""


def find_sound_type(data: bytes) -> str:
    """Returns the media type of a recording by its first bytes; empty if it is none that is decoded."""
    if data.startswith(b"RIFF") and data[8:12] == b"WAVE":
        return "audio/wav"
    if data.startswith(b"fLaC"):
        return "audio/flac"
    # A frame of MPEG begins with eleven bits, two of a version that is not reserved, and layer III.
    is_frame = len(data) > 2 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2 and data[1] & 0x18 != 0x08
    if data.startswith(b"ID3") or is_frame:
        return "audio/mpeg"
    return ""


def decode_sound(data: bytes, declared: str, rate: int) -> bytes:
    """Returns the samples. `declared`: the media type that the caller says; empty if it says none. `rate`:
    the samples for each second that the engine takes. Raises FileRefused; anything else that it raises means
    that the file is damaged."""
    found = find_sound_type(data)
    if not found:
        raise FileRefused(Refusal(Reason.UNKNOWN_SOUND))
    if declared and declared != found:
        raise FileRefused(Refusal(Reason.OTHER_TYPE, found))
    if found == "audio/wav":
        _require_whole_wav(data)
    elif found == "audio/flac":
        _require_possible_flac(data)
    samples = bytearray()
    max_bytes = MAX_SECONDS * rate * SAMPLE_BYTES
    chunks = miniaudio.stream_memory(
        data, miniaudio.SampleFormat.FLOAT32, nchannels=1, sample_rate=rate, frames_to_read=FRAMES_AT_ONCE
    )
    for chunk in chunks:
        samples += chunk.tobytes()
        if len(samples) > max_bytes:
            raise FileRefused(Refusal(Reason.SECONDS))
    if not samples:
        raise FileRefused(Refusal(Reason.SILENT))
    numbers = np.frombuffer(samples, np.float32)
    if not np.isfinite(numbers).all():
        raise FileRefused(Refusal(Reason.NUMBERS))
    return np.clip(numbers, -1, 1).tobytes()


def _require_whole_wav(data: bytes) -> None:
    """Raises FileRefused for a WAV that is cut off, or whose format is out of range."""
    position, has_format = 12, False
    while position + CHUNK_HEADER <= len(data):
        name, length = (
            data[position : position + 4],
            int.from_bytes(data[position + 4 : position + 8], "little"),
        )
        content = position + CHUNK_HEADER
        if name == b"fmt ":
            has_format = True
            channels = int.from_bytes(data[content + 2 : content + 4], "little")
            _require_range(channels, int.from_bytes(data[content + 4 : content + 8], "little"))
        if name == b"data":
            if has_format and (length == STREAMED_LENGTH or content + length <= len(data)):
                return
            break
        position = content + length + length % 2
    raise FileRefused(Refusal(Reason.DAMAGED))


def _require_possible_flac(data: bytes) -> None:
    """Raises FileRefused for a FLAC whose first block says a format out of range, or too many samples."""
    if len(data) < 42 or data[4] & 0x7F:
        raise FileRefused(Refusal(Reason.DAMAGED))
    packed = int.from_bytes(data[18:26], "big")  # 20 bits of rate, 3 of channels, 5 of depth, 36 of samples
    rate, channels, frames = packed >> 44, (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    _require_range(channels, rate)
    if frames > MAX_SECONDS * rate:
        raise FileRefused(Refusal(Reason.SECONDS))


def _require_range(channels: int, rate: int) -> None:
    """Raises FileRefused for channels or a rate out of range."""
    if not 1 <= channels <= MAX_CHANNELS:
        raise FileRefused(Refusal(Reason.CHANNELS, channels))
    if not MIN_RATE <= rate <= MAX_RATE:
        raise FileRefused(Refusal(Reason.RATE, rate))
