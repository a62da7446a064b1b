"""Reads the images and recordings of a request: fetches them if the operator allows it, and has them decoded.

It keeps nothing: the next turn of a conversation decodes its images again, which takes milliseconds. An
engine knows by the digest what it has encoded before.
"""

from collections.abc import Awaitable, Callable, Sequence
from weakref import ref

from antiphon.domain.context import Clock, Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.media import MOST_PIXELS, Medium
from antiphon.domain.messages import MediaContent, MediaKind
from antiphon.domain.values import Struct
from antiphon.errors import InvalidValue, Overloaded, ServerBusy
from antiphon.media.decoder import MediaDecoder, MediaFile
from antiphon.media.facts import MAX_FILE_BYTES

LOW_PIXELS = 512 * 512
"""The most pixels of an image whose `detail` is `low`. OpenAI makes such images as small."""

MAX_MEDIA = 64
"""The most images and recordings of one request."""

MAX_DECODED_BYTES = 64 << 20
"""The most bytes of the pixels and samples of one request."""

MAX_ALL_BYTES = 1 << 30
"""The most bytes of the pixels and samples of all running requests of this process. A small file can have
many pixels, so the limit of the bodies does not limit them."""

RETRY_AFTER = 1.0
"""Seconds after which a refused caller can try again."""

Fetch = Callable[[str, int, str, str, Clock], Awaitable[bytes]]
"""Returns the bytes at an address: `MediaFetcher.fetch`."""


class _Decoded(Struct, frozen=True):
    """A medium that a request may still use."""

    medium: "ref[Medium]"
    size: int
    caller: str


class DecodedMedia:
    """Counts the bytes of the media that requests still use, which ends when nothing refers to a medium."""

    def __init__(self, max_bytes: int = MAX_ALL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._media: list[_Decoded] = []

    def add(self, medium: Medium, actor: Actor) -> None:
        """Counts a medium of an actor. Raises ServerBusy if all media pass the limit, and Overloaded if an
        actor with a key has more bytes than it leaves free."""
        self._media = [each for each in self._media if each.medium() is not None]
        size = len(medium.data)
        free_bytes = self._max_bytes - size - sum(each.size for each in self._media)
        if free_bytes < 0:
            raise ServerBusy(
                f"the images and recordings of running requests would pass {self._max_bytes:,} bytes of "
                "pixels and samples; try again",
                retry_after=RETRY_AFTER,
            )
        own_bytes = size + sum(each.size for each in self._media if each.caller == actor.caller)
        if actor.kind is not ActorKind.ANONYMOUS and own_bytes > free_bytes:
            raise Overloaded(
                "the images and recordings of your running requests would use more memory than they leave "
                f"free (of {self._max_bytes:,} bytes of pixels and samples); wait for some of them to end",
                retry_after=RETRY_AFTER,
            )
        self._media.append(_Decoded(ref(medium), size, actor.caller))


class MediaReader:
    """Reads parts of requests. Belongs to one event loop."""

    def __init__(
        self, decoder: MediaDecoder, fetch: Fetch | None = None, decoded: DecodedMedia | None = None
    ) -> None:
        """`fetch`: fetches an address; None refuses addresses."""
        self._decoder = decoder
        self._fetch = fetch
        self._decoded = decoded or DecodedMedia()

    async def read(
        self, parts: Sequence[MediaContent], sample_rate: int, context: Context
    ) -> tuple[Medium, ...]:
        """Returns the medium of each part. `sample_rate`: the samples for each second that the engine takes.
        Raises a RequestError whose sentence names the part, or the error of a busy server."""
        if len(parts) > MAX_MEDIA:
            field = parts[MAX_MEDIA].field
            raise InvalidValue(
                f"{field} is one of {len(parts)} images and recordings, and {MAX_MEDIA} are the most of one "
                "request; send fewer",
                param=field,
            )
        media: list[Medium] = []
        decoded_bytes = 0
        actor, clock = context.actor.caller, context.clock
        for part in parts:  # one after the other, so that a request with many takes no more places
            file = MediaFile(part.field, part.data, part.media_type)
            if part.url:
                file = MediaFile(part.field, await self._fetch_file(part, actor, clock))
            if part.kind is MediaKind.IMAGE:
                most_pixels = LOW_PIXELS if part.detail == "low" else MOST_PIXELS
                medium = await self._decoder.decode_image(file, actor, clock, most_pixels)
            else:
                medium = await self._decoder.decode_recording(file, actor, clock, sample_rate)
            self._decoded.add(medium, context.actor)
            decoded_bytes += len(medium.data)
            if decoded_bytes > MAX_DECODED_BYTES:
                raise InvalidValue(
                    f"{part.field} makes the images and recordings of this request larger than "
                    f"{MAX_DECODED_BYTES:,} bytes of pixels and samples; send fewer or smaller ones",
                    param=part.field,
                )
            media.append(medium)
        return tuple(media)

    async def _fetch_file(self, part: MediaContent, actor: str, clock: Clock) -> bytes:
        """Returns the bytes at a part's address."""
        if self._fetch is None:
            raise InvalidValue(
                f"{part.field} is an https: address, and this server fetches none for its own models; send "
                "the file as a data: URL with base64",
                param=part.field,
            )
        return await self._fetch(part.url, MAX_FILE_BYTES, part.field, actor, clock)
