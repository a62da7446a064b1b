"""Reads the images and recordings of a request: fetches them if the operator allows it, and has them decoded.

Some decoded media stay in memory, because each turn of a conversation sends its images again. They are found
by the digest of the file, within one cache salt: otherwise the time of an answer would tell what another
project has sent.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from weakref import ref

from antiphon.domain.context import Clock, Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.media import MOST_PIXELS, Medium
from antiphon.domain.messages import MediaContent, MediaKind
from antiphon.domain.values import Struct, replace
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

MAX_KEPT_BYTES = 64 << 20
"""The most bytes of the pixels and samples that stay after their requests: those of one request."""

RETRY_AFTER = 1.0
"""Seconds after which a refused caller can try again."""

Fetch = Callable[[str, int, str, str, Clock], Awaitable[bytes]]
"""Returns the bytes at an address: `MediaFetcher.fetch`."""


class FileKey(Struct, frozen=True):
    """What a decoded medium depends on, and who may find it."""

    cache_salt: str
    digest: bytes
    """The SHA-256 of the file, as it was sent."""
    kind: MediaKind
    media_type: str
    """The declared type."""
    limit: int
    """The most pixels of an image, or the samples for each second of a recording."""


class _Decoded(Struct, frozen=True):
    """A medium that a request may still use."""

    medium: "ref[Medium]"
    size: int
    caller: str


class DecodedMedia:
    """Counts the bytes of the media that requests still use, which ends when nothing refers to a medium.
    Keeps the latest media in what these leave free."""

    def __init__(self, max_bytes: int = MAX_ALL_BYTES, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._max_kept_bytes = max_kept_bytes
        self._media: list[_Decoded] = []
        self._kept: OrderedDict[FileKey, Medium] = OrderedDict()
        """Decoded media, the least recently used first. No request has these objects: it has copies, which
        share the data."""

    def find(self, key: FileKey) -> Medium | None:
        """Returns the medium of a file that was decoded before; None if it is not kept."""
        medium = self._kept.get(key)
        return None if medium is None else replace(medium)

    def keep(self, key: FileKey, medium: Medium) -> None:
        """Keeps a medium that was added, as the most recently used one."""
        self._kept[key] = replace(medium)
        self._kept.move_to_end(key)
        self._trim()

    def _trim(self) -> None:
        """Forgets the least recently used media for which there is no room."""
        free_bytes = self._max_bytes - sum(each.size for each in self._media)
        kept_bytes = sum(len(medium.data) for medium in self._kept.values())
        while kept_bytes > min(self._max_kept_bytes, free_bytes):
            kept_bytes -= len(self._kept.popitem(last=False)[1].data)

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
        self._trim()


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
        self, parts: Sequence[MediaContent], sample_rate: int, cache_salt: str, context: Context
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
            limit = sample_rate
            if part.kind is MediaKind.IMAGE:
                limit = LOW_PIXELS if part.detail == "low" else MOST_PIXELS
            digest = await asyncio.to_thread(_compute_digest, file.data)
            key = FileKey(cache_salt, digest, part.kind, file.declared, limit)
            medium = self._decoded.find(key)
            if medium is None and part.kind is MediaKind.IMAGE:
                medium = await self._decoder.decode_image(file, actor, clock, limit)
            elif medium is None:
                medium = await self._decoder.decode_recording(file, actor, clock, limit)
            self._decoded.add(medium, context.actor)
            self._decoded.keep(key, medium)
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


def _compute_digest(data: str | bytes) -> bytes:
    """Returns the SHA-256 of a file, or of its base64."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).digest()
