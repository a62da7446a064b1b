"""Media in sequences: the encoder, which turns pictures and recordings into embeddings once, and the places
that they have among the tokens of a sequence.

A sequence's array of tokens has one number for each cell of a medium. All cells of a part of a medium have
the same negative number, and no other part has it. So the prefix cache compares media as it compares tokens.

The encoder has a thread of its own and encodes one part of a medium at a time, so that decodes go on
meanwhile. Callers take turns. The encode of a part cannot be aborted.
"""

import asyncio
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress

import numpy as np

from antiphon.domain.context import SystemClock
from antiphon.domain.fair_queue import FairSemaphore, QueueLimits
from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.values import Struct
from antiphon.engines.base import MEDIUM_CELL, MediumLayout, PromptTokens
from antiphon.engines.llama.libllama.media import EncodedPart, NativeProjector
from antiphon.errors import InvalidValue, UnsupportedParameter

ENCODE_LIMITS = QueueLimits(
    at_once=1, queue=512, queue_per_actor=256, seconds_per_item=1.0, item_name="pictures and recordings"
)

PLACED_FACTOR = 2
"""How many times as many sequences may have encoded media as can run at once. The others wait with a digest
alone, because the embeddings of a prompt can be as large as its cells of the cache."""

MOST_NUMBERED = 1 << 16
"""The most parts of media whose numbers are known at once. After that, known media get new numbers, and are
computed once more."""


EncodingKey = tuple[str, str]
"""The cache salt and the digest of an encoded medium. If salts shared it, the time of an answer would tell
one caller what another one has sent."""


class MediaNumbers:
    """The numbers of parts of media in arrays of tokens. A number is never used for another part, because a
    kept prefix can have it for as long as the process lives."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        self._sizes: list[tuple[int, int]] = [(0, 0)]
        """Cells and positions of a part, by the number without its sign."""
        self._shared_sizes: dict[tuple[int, int], tuple[int, int]] = {}
        self._has_lost_positions = False
        """Whether any part has fewer positions than cells."""

    def number(self, digest: str, index: int, part: EncodedPart) -> int:
        """Returns the number of a part of the medium with this digest."""
        key = digest, index
        if key not in self._numbers:
            if len(self._numbers) >= MOST_NUMBERED:
                self._numbers.clear()
            size = part.cells, part.positions
            self._numbers[key] = -len(self._sizes)
            self._sizes.append(self._shared_sizes.setdefault(size, size))
            self._has_lost_positions |= part.positions != part.cells
        return self._numbers[key]

    def round_down(self, tokens: "array[int]", length: int) -> int:
        """Returns the most of the first `length` tokens that end with a whole medium, or with a token."""
        if not length or tokens[length - 1] >= 0:
            return length
        number, start = tokens[length - 1], length
        while start and tokens[start - 1] == number:
            start -= 1
        return length - (length - start) % self._sizes[-number][0]

    def count_positions(self, tokens: "array[int]", length: int) -> int:
        """Returns the number of positions of the first `length` tokens, which end with a whole medium, or
        with a token."""
        if not self._has_lost_positions:
            return length
        ids = np.frombuffer(tokens, np.int32)[:length]
        numbers, counts = np.unique(ids[ids < 0], return_counts=True)
        lost_positions = 0
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            cells, positions = self._sizes[-number]
            lost_positions += count // cells * (cells - positions)
        return length - lost_positions


class MediaRun(Struct, frozen=True):
    """The cells of one part of a medium in a sequence."""

    start: int
    stop: int
    position: int
    """The position of the first cell."""
    part: EncodedPart

    @property
    def lost_positions(self) -> int:
        """How many positions the part has fewer than cells."""
        return self.part.cells - self.part.positions


class PlacedPrompt(Struct, frozen=True):
    """A prompt whose cells have the numbers of their media."""

    tokens: Sequence[int]
    runs: tuple[MediaRun, ...] = ()


class _Held(Struct):
    """A medium that requests have given to the engine."""

    medium: Medium
    holders: int = 0


class MediaEncoder:
    """Encodes the media of one model. Only the event loop's thread uses it; `lay_out` blocks, and may run in
    any thread."""

    def __init__(self, projector: NativeProjector, most_bytes: int, places: QueueLimits) -> None:
        """`most_bytes`: the most bytes of embeddings that stay for later requests. `places`: the sequences
        that may have encoded media at once."""
        self.numbers = MediaNumbers()
        self.encode_count = 0
        """How many media were encoded."""
        self.report: Callable[[str], None] = lambda _: None
        """Called with a digest when its encode begins, and with an empty text when it has ended."""
        self.refused: dict[str, float] = {}
        """Media that are not encoded, and the Unix time until then, by digest."""
        self._projector = projector
        self._most_bytes = most_bytes
        self._held: dict[str, _Held] = {}
        self._encoded: OrderedDict[EncodingKey, tuple[EncodedPart, ...]] = OrderedDict()
        """Encoded media, the least recently used first."""
        self._encoded_bytes = 0
        self._pinned = Counter[EncodingKey]()
        """How many requests rely on an encoded medium, because they have not sent its data."""
        self._running: dict[EncodingKey, asyncio.Event] = {}
        """Set when this encode has ended."""
        self._turns = FairSemaphore(ENCODE_LIMITS)
        self._places = FairSemaphore(places)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-encode")

    @property
    def waiting_count(self) -> int:
        """The number of sequences that wait for a place, and of media that wait for their encode."""
        return self._places.waiting_count + len(self._running)

    def lay_out(self, shape: MediumShape) -> MediumLayout:
        """Tells how a prompt shows a medium of this shape. Raises UnsupportedParameter for a kind that the
        model does not take, and InvalidValue for a shape."""
        if shape.kind not in self._projector.facts.kinds:
            raise UnsupportedParameter(f"this model takes no {shape.kind}", param="messages")
        return self._projector.lay_out(shape)

    def has_encoded(self, key: EncodingKey) -> bool:
        """Whether a medium is encoded, so that it can be held without its data."""
        return key in self._encoded

    @contextmanager
    def hold(self, medium: Medium, salt: str) -> Iterator[None]:
        """Has a medium for sequences that name its digest, while the context lasts. A medium without data
        must be encoded, and its embeddings stay."""
        key = salt, medium.digest
        if not medium.data:
            self._pinned[key] += 1
            try:
                yield
            finally:
                self._pinned[key] -= 1
                if not self._pinned[key]:
                    del self._pinned[key]
            return
        held = self._held.setdefault(medium.digest, _Held(medium))
        held.holders += 1
        try:
            yield
        finally:
            held.holders -= 1
            if not held.holders:
                del self._held[medium.digest]

    @asynccontextmanager
    async def hold_place(self, actor: str, priority: int) -> AsyncIterator[None]:
        """Holds a place for a sequence with media, at the actor's turn. Raises Overloaded or EngineBusy if
        too many wait."""
        clock = SystemClock()
        await self._places.acquire(actor, clock, priority)
        try:
            yield
        finally:
            self._places.release(actor, clock)

    async def place(self, prompt: PromptTokens, salt: str, actor: str) -> PlacedPrompt:
        """Encodes the media of a prompt, unless they are encoded already for the same cache salt, and puts
        their numbers into its cells. Raises InvalidValue for spans that do not fit the media."""
        tokens, runs, lost_positions = array("i", prompt.ids), list[MediaRun](), 0
        for span in prompt.media:
            parts = await self._encode((salt, span.digest), actor)
            stop = span.start + span.cells
            cells = prompt.ids[span.start : stop]
            fits = span.part < len(parts) and parts[span.part].cells == span.cells == len(cells)
            if fits and not parts[span.part].is_causal and span.cells > self._projector.most_cells:
                raise InvalidValue("the model cannot take an image with these sides", param="messages")
            if not fits or set(cells) != {MEDIUM_CELL} or (runs and runs[-1].stop > span.start):
                raise InvalidValue("the prompt has not the cells that its media take", param="prompt")
            part = parts[span.part]
            number = self.numbers.number(span.digest, span.part, part)
            tokens[span.start : stop] = array("i", [number]) * span.cells
            run = MediaRun(span.start, stop, span.start - lost_positions, part)
            lost_positions += run.lost_positions
            runs.append(run)
        return PlacedPrompt(tokens, tuple(runs))

    async def _encode(self, key: EncodingKey, actor: str) -> tuple[EncodedPart, ...]:
        """Returns the parts of a medium. Requests that need the same medium at the same time encode it
        once."""
        while True:
            if (parts := self._encoded.get(key)) is not None:
                self._encoded.move_to_end(key)
                return parts
            if (ended := self._running.get(key)) is None:
                break
            await ended.wait()
        if (held := self._held.get(key[1])) is None:
            raise InvalidValue("the prompt names a medium that the engine does not have", param="prompt")
        if time.time() < self.refused.get(key[1], 0.0):
            raise InvalidValue(
                "an image or recording of this request has ended the engine before, and is not tried again "
                "for an hour; send another one",
                param="messages",
            )
        ended = self._running[key] = asyncio.Event()
        try:
            parts = await self._encode_parts(held.medium, actor)
            self.encode_count += 1
            self._keep(key, parts)
            return parts
        finally:
            del self._running[key]
            ended.set()

    async def _encode_parts(self, medium: Medium, actor: str) -> tuple[EncodedPart, ...]:
        """Encodes a medium, each part at a turn of the actor."""
        parts, encoding = list[EncodedPart](), self._projector.encode(medium)
        loop, clock = asyncio.get_running_loop(), SystemClock()

        def encode_next() -> tuple[EncodedPart, int]:
            """Encodes the next part. The report is the last one if the library ends the process."""
            self.report(medium.digest)
            try:
                return next(encoding)
            finally:
                self.report("")

        try:
            parts_left = 1
            while parts_left:
                async with self._turns.hold(actor, clock):
                    part, parts_left = await loop.run_in_executor(self._thread, encode_next)
                parts.append(part)
            return tuple(parts)
        finally:
            with suppress(RuntimeError):  # the thread has ended, and frees nothing more
                self._thread.submit(encoding.close)  # behind a part that it still encodes

    def _keep(self, key: EncodingKey, parts: tuple[EncodedPart, ...]) -> None:
        """Keeps an encoded medium, and forgets the least recently used ones beyond the limit. The pinned ones
        are within it, because they were kept before."""
        self._encoded[key] = parts
        self._encoded_bytes += _count_bytes(parts)
        while self._encoded_bytes > self._most_bytes:
            oldest = next(each for each in self._encoded if each not in self._pinned)
            self._encoded_bytes -= _count_bytes(self._encoded.pop(oldest))

    def end(self) -> None:
        """Waits for the running encode, and begins no other. The projector may be freed afterwards."""
        self._thread.shutdown(cancel_futures=True)


def _count_bytes(parts: Sequence[EncodedPart]) -> int:
    """Returns the bytes of the embeddings of a medium."""
    return sum(part.rows.nbytes for part in parts)
