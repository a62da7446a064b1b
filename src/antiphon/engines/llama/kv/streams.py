"""The layout with a stream of cells for each sequence: each KV cache id has one stream.

No cells are shared. To reuse a prefix, a sequence either continues in the stream that has the prefix, or
copies that whole stream. Exact mode reuses only whole chunks of prompts, whose bits are the same for every
sequence. It also reuses a whole prompt for a prompt of the same length, because both have the same last
chunk.

llama.cpp computes rows of neighbouring streams together, and other rows in separate passes. So gaps between
streams are filled with padding rows, whose results are dropped. The running streams of an adapter are kept
together, because only sequences with the same adapter share a call.
"""

import sys
from array import array

from antiphon.domain.values import Struct, field
from antiphon.engines.llama.kv.layout import CacheChange, CopyCells, PrefixMatch, TrimCells
from antiphon.engines.llama.media import MediaNumbers
from antiphon.engines.llama.sequence import PrefixKey, SchedulingPolicy, TokenSequence, measure_common_prefix

MIN_COPIED, MIN_COPIED_PART = 8, 128
"""A whole stream is copied only if the common tokens are at least MIN_COPIED, and at least one 128th of the
stream's cells. With fewer tokens, computing them is faster."""

ADAPTED_ROWS = 2
"""The fewest decode rows with an adapter. With adapters' F32, F16 or BF16 matrices, a single row is computed
differently from a row among others. The test at load covers only the model's own matrices."""


class KVStream(Struct):
    """The stream of one KV cache id. It contains the cells of a running sequence, kept tokens, or nothing."""

    id: int
    owner: TokenSequence | None = None
    key: PrefixKey | None = None
    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    kept_tokens: int = 0
    """The number of tokens whose cells are kept. It is 0 while a sequence runs in the stream."""
    last_used: int = 0
    """The number of the release that last left tokens in this stream. A higher number is later."""

    @property
    def length(self) -> int:
        """The number of cells in use."""
        return self.kept_tokens if self.owner is None else self.owner.computed


class StreamLayout:
    """`CacheLayout` of several streams."""

    def __init__(self, policy: SchedulingPolicy, numbers: MediaNumbers | None = None) -> None:
        self._numbers = numbers or MediaNumbers()
        self.total = policy.cells * policy.sequences
        self.changes: list[CacheChange] = []
        self.streams = [KVStream(number) for number in range(policy.sequences)]
        self._policy = policy
        self._min_copied_tokens = max(MIN_COPIED, policy.cells // MIN_COPIED_PART)
        self._release_count = 0

    @property
    def used_cells(self) -> int:
        return sum(stream.owner.computed for stream in self.streams if stream.owner is not None)

    @property
    def cached_cells(self) -> int:
        return sum(stream.kept_tokens for stream in self.streams)

    def match(self, sequence: TokenSequence) -> PrefixMatch:
        """Finds the stream with the longest common prefix. Of streams with equally long prefixes, prefers one
        without a running sequence, because the new sequence can continue in it."""
        matches = [
            (self._count_reusable(stream, sequence), stream.owner is None, -stream.id)
            for stream in self.streams
            if stream.key == sequence.key
        ]
        length, _, negative_id = max(matches, default=(0, True, 0))
        return PrefixMatch(length, id=-negative_id) if length else PrefixMatch(0)

    def count_shareable(self, running: TokenSequence, waiting: TokenSequence) -> int:
        limit = min(len(running.tokens), waiting.reusable_tokens)
        if self._policy.exact:
            limit = min(limit, running.prompt_length, waiting.prompt_length - 1)
        common_length = measure_common_prefix(running.tokens, waiting.tokens, 0, limit)
        length = self._round_length(common_length, running.prompt_length - 1, waiting)
        return length if length >= self._min_copied_tokens else 0

    def count_available(self, match: PrefixMatch) -> int:
        return sys.maxsize  # each stream has room for any sequence that may run in it

    def admit(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """Gives the sequence a stream that begins with the prefix of `match`."""
        source = self.streams[match.id] if match.id is not None else None
        positions = self._numbers.count_positions(sequence.tokens, match.length)
        if source is not None and self._is_continued(source, match):
            stream = source
            if source.kept_tokens > match.length:
                self.changes.append(TrimCells(stream.id, positions))
        else:
            stream = self._find_empty_stream(sequence, source)
            if source is not None:
                self.changes.append(CopyCells(source.id, stream.id, positions))
        stream.owner, stream.key, stream.tokens, stream.kept_tokens = (
            sequence,
            sequence.key,
            sequence.tokens,
            0,
        )
        sequence.id, sequence.computed = stream.id, match.length

    def release(self, sequence: TokenSequence, keep_prefix: bool) -> None:
        """Frees the stream of a sequence. `keep_prefix`: whether the computed tokens stay in the stream."""
        stream = self.streams[sequence.running_id]
        length = sequence.computed if not self._policy.exact else self._count_whole_chunks(stream)
        length = self._numbers.round_down(sequence.tokens, length)
        self._release_count += 1
        stream.owner, stream.kept_tokens, stream.last_used = (
            None,
            length if keep_prefix else 0,
            self._release_count,
        )
        if stream.kept_tokens < sequence.computed:
            kept_positions = self._numbers.count_positions(sequence.tokens, stream.kept_tokens)
            self.changes.append(TrimCells(stream.id, kept_positions))
        stream.tokens = sequence.tokens[: stream.kept_tokens]
        if not stream.kept_tokens:
            stream.key = None
        sequence.id = None

    def reserve(self, count: int) -> bool:
        return True

    def forget(self, adapter: str) -> None:
        for stream in self.streams:
            if stream.kept_tokens and stream.key is not None and stream.key[0] == adapter:
                self._clear(stream)

    def forget_all(self) -> None:
        for stream in self.streams:
            if stream.kept_tokens:
                self._clear(stream)

    def count_positions(self, stream: KVStream) -> int:
        """Returns the first position in a stream that no cell has."""
        if stream.owner is not None:
            return stream.owner.get_position(stream.owner.computed)
        return self._numbers.count_positions(stream.tokens, stream.kept_tokens)

    # --- the order of streams

    def find_window(self, decoding: list[TokenSequence]) -> list[KVStream]:
        """Lists the streams from the first to the last of these sequences. It adds neighbouring streams until
        their number is in `row_counts`."""
        ids = [sequence.running_id for sequence in decoding]
        first_id, last_id = min(ids), max(ids)
        min_count = max(
            last_id - first_id + 1, min(ADAPTED_ROWS, len(self.streams)) if decoding[0].request.adapter else 1
        )
        count = next(count for count in self._policy.row_counts if count >= min_count)
        first_id = min(first_id, len(self.streams) - count)
        return self.streams[first_id : first_id + count]

    def compact(self) -> None:
        """Moves the first or the last running stream of an adapter nearer to the adapter's other streams, if
        there is room."""
        groups: dict[str | None, list[KVStream]] = {}
        for stream in self.streams:
            if stream.owner is not None:
                groups.setdefault(stream.owner.request.adapter, []).append(stream)
        for group in groups.values():
            if group[-1].id - group[0].id >= len(group):
                self._move_closer(group)

    def _move_closer(self, group: list[KVStream]) -> None:
        """Moves the first or the last stream of a group if the move brings the streams of the group closer
        together."""
        free_streams = [stream for stream in self.streams if stream.owner is None]
        moves = [
            (_measure_span(remaining, target), target.id, source)
            for source, remaining in ((group[-1], group[:-1]), (group[0], group[1:]))
            for target in free_streams
        ]
        span, target, source = min(moves, key=lambda move: move[:2], default=(len(self.streams), 0, group[0]))
        if span < _measure_span(group):
            self._move(source, self.streams[target])

    def _move(self, source: KVStream, target: KVStream) -> None:
        """Moves the sequence that runs in one stream to another."""
        sequence = source.owner
        self._vacate(target)
        if sequence is None:
            return
        if sequence.computed:
            positions = sequence.get_position(sequence.computed)
            self.changes += CopyCells(source.id, target.id, positions), TrimCells(source.id)
        target.owner, target.key, target.tokens = sequence, sequence.key, sequence.tokens
        source.owner, source.key, sequence.id = None, None, target.id

    def _is_continued(self, source: KVStream, match: PrefixMatch) -> bool:
        """Whether a new sequence continues in the stream of its match: if few kept tokens are lost by that,
        or no other stream is free."""
        if source.owner is not None:
            return False
        has_other_stream = any(stream.owner is None and stream is not source for stream in self.streams)
        return source.kept_tokens <= 2 * match.length or not has_other_stream

    def _find_empty_stream(self, sequence: TokenSequence, source: KVStream | None) -> KVStream:
        """Returns an empty stream, as near as possible to the running streams of the sequence's adapter. For
        the first sequence of an adapter, the stream is as far as possible from running streams, so that the
        adapter's next sequences can be near it. Kept tokens in the chosen stream are moved to another
        stream."""
        free_streams = [stream for stream in self.streams if stream.owner is None and stream is not source]
        running = [stream for stream in self.streams if stream.owner is not None]
        adapter_streams = [
            stream for stream in running if stream.key is not None and stream.key[0] == sequence.key[0]
        ]
        if adapter_streams:
            stream = min(free_streams, key=lambda stream: (_measure_span(adapter_streams, stream), stream.id))
        else:
            stream = max(free_streams, key=lambda stream: (_measure_distance(stream, running), -stream.id))
        self._vacate(stream, source)
        return stream

    def _vacate(self, stream: KVStream, source: KVStream | None = None) -> None:
        """Empties a stream. Its kept tokens are moved to an empty stream, or replace the least recently used
        kept tokens of another stream. `source`: a stream that must not change."""
        if not stream.kept_tokens:
            return
        idle_streams = [
            candidate for candidate in self.streams if candidate.owner is None and candidate is not source
        ]
        new_stream = min(idle_streams, key=lambda candidate: (candidate.kept_tokens > 0, candidate.last_used))
        if new_stream is not stream:
            if new_stream.kept_tokens:
                self._clear(new_stream)
            self.changes.append(CopyCells(stream.id, new_stream.id, self.count_positions(stream)))
            new_stream.key, new_stream.tokens = stream.key, stream.tokens
            new_stream.kept_tokens, new_stream.last_used = stream.kept_tokens, stream.last_used
        self._clear(stream)

    def _clear(self, stream: KVStream) -> None:
        """Lists a change that frees all cells of a stream, and forgets its kept tokens."""
        self.changes.append(TrimCells(stream.id))
        stream.key, stream.kept_tokens = None, 0

    # --- reuse of prefixes

    def _count_reusable(self, stream: KVStream, sequence: TokenSequence) -> int:
        """The number of a stream's tokens that the sequence can reuse. It is 0 if copying them would take
        longer than computing them."""
        limit = min(stream.length, sequence.reusable_tokens)
        if self._policy.exact:
            limit = min(limit, sequence.prompt_length - 1)  # the sequence's own drawn tokens were decode rows
        length = measure_common_prefix(stream.tokens, sequence.tokens, 0, limit)
        if self._policy.exact:
            chunked_length = self._count_whole_chunks(stream)
            length = min(length, chunked_length)
        else:
            chunked_length = length
        length = self._round_length(length, chunked_length, sequence)
        is_copied = stream.owner is not None or stream.kept_tokens > 2 * length
        return 0 if is_copied and length < self._min_copied_tokens else length

    def _round_length(self, common_length: int, chunked_length: int, sequence: TokenSequence) -> int:
        """Returns how many of the `common_length` equal tokens may be reused: in exact mode only whole
        chunks, and no part of a medium. `chunked_length` is the number of tokens that were computed as chunks
        of the other sequence's prompt."""
        length = self._numbers.round_down(sequence.tokens, common_length)
        if not self._policy.exact or length == chunked_length == sequence.prompt_length - 1:
            return length
        while length % self._policy.chunk:
            chunked = length - length % self._policy.chunk
            length = self._numbers.round_down(sequence.tokens, chunked)
        return length

    def _count_whole_chunks(self, stream: KVStream) -> int:
        """Returns how many of a stream's tokens were computed in whole prompt chunks."""
        if not self._policy.exact:
            return stream.length
        if stream.owner is None:
            return stream.kept_tokens
        scored = stream.owner.request.prompt_logprobs is not None
        if scored and self._policy.scored_rows < self._policy.chunk:
            return 0  # the chunks of that prompt were shorter
        return min(stream.length, stream.owner.prompt_length - 1)


def _measure_span(streams: list[KVStream], *added: KVStream) -> int:
    """The number of streams from the first to the last of these streams, both included."""
    ids = [stream.id for stream in (*streams, *added)]
    return max(ids) - min(ids) + 1


def _measure_distance(stream: KVStream, other_streams: list[KVStream]) -> int:
    """The distance from a stream to the nearest of the other streams."""
    return min((abs(stream.id - candidate.id) for candidate in other_streams), default=0)
