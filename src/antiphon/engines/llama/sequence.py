"""The state of one sequence in the scheduler and the decode loop, the limits of scheduling, and the queue.

The scheduler chooses which sequence runs. The queue only gives the order in which it tries to admit
sequences: preempted sequences come first, then the callers take turns. Sequences of a group that already
waits or runs are never refused.

A running sequence has a place in the batch. Turns alone are not fair: a caller that came first with long
answers would occupy all places until one of its sequences ends. So all callers with running or waiting
sequences have equal shares of the places, and of the cells when cells run short. A lone caller has all of
them. `choose_exchange` chooses the sequence that yields its place, and the scheduler carries the exchange
out.
"""

from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Tokens
from enum import StrEnum
from heapq import heapify, heappop, heapreplace

import numpy as np

from antiphon.constraints.guide import Guide
from antiphon.domain.fair_queue import FairQueue
from antiphon.domain.values import Struct
from antiphon.engines.base import KVLayout, StopCause, TokenRequest
from antiphon.engines.sampling import SamplingState
from antiphon.errors import AntiphonError

PrefixKey = tuple[str | None, str]
"""Adapter and cache salt. Only sequences with equal keys may share cells."""


class SequencePhase(StrEnum):
    """The phase of a sequence."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """The sequence has an id, and at least two of its tokens are not computed yet."""
    DECODE = "decode"
    """Only the last token is not computed yet; the next step draws a token."""
    OVER = "over"
    """The sequence has finished, failed or been closed, and uses no cells."""


class TokenSequence:
    """The state of a sequence: its tokens, its cells and its progress. After the sequence is submitted, only
    the decode thread uses this object."""

    __slots__ = (
        "_over",
        "actor",
        "arrival",
        "computed",
        "followers",
        "forced_spans",
        "group",
        "guide",
        "has_started",
        "id",
        "key",
        "max_computed",
        "max_length",
        "priority",
        "prompt_length",
        "queued_at",
        "request",
        "running_since",
        "sampling_state",
        "scored_tokens",
        "shared_tokens",
        "stop_ids",
        "tokens",
        "waits_for",
        "waits_until",
    )

    def __init__(
        self,
        request: TokenRequest,
        prompt: Tokens[int],
        context: int,
        sampling_state: SamplingState | None = None,
    ) -> None:
        self.request = request
        self.sampling_state = sampling_state
        """The state of its draws, which stays when the sequence is preempted."""
        self.guide: Guide | None = None
        """Tells which tokens its constraint allows; None without a constraint."""
        self.prompt_length = len(prompt)
        """The number of prompt tokens."""
        self.tokens = array("i", prompt)
        """The prompt's tokens, then the drawn ones."""
        self.max_length = min(len(prompt) + request.max_tokens, context)
        """The most tokens that the sequence may have, including those of the prompt."""
        self.stop_ids = frozenset(request.stop_token_ids)
        self.key: PrefixKey = (request.adapter, request.cache_salt)
        self.group = request.group
        self.actor = request.actor
        self.priority = request.priority
        self.arrival = 0
        """Its number in order of queueing; a higher number is younger."""
        self.queued_at = self.running_since = 0.0
        """The times at which the sequence was last queued, and at which it last began to run."""
        self.max_computed = 0
        """The number of its tokens that were computed at its last preemption."""
        self.forced_spans: dict[int, int] = {}
        """The ends of spans of forced tokens after the prompt, by their starts. One call has computed each
        span, and exact mode computes it in one call again after a preemption."""
        self.id: int | None = None
        """Its id in the library's KV cache while it runs."""
        self.computed = 0
        """The number of tokens whose keys and values are in the cache."""
        self.shared_tokens = 0
        """The number of prompt tokens whose cells it took from the cache."""
        self.has_started = False
        """Whether the sequence was admitted before. A preempted sequence is queued again, but its client was
        already told that it runs."""
        self.scored_tokens = 0 if request.prompt_logprobs is not None else len(prompt)
        """The number of prompt tokens whose scores were sent, if scores are requested."""
        self.waits_for: TokenSequence | None = None
        """The running sequence whose prompt this sequence waits for, until as many tokens of it as
        `waits_until` are computed; None if it does not wait."""
        self.waits_until = 0
        self.followers = 0
        """The number of sequences that wait for this sequence's prompt."""
        self._over = False

    def __repr__(self) -> str:
        return f"<Sequence {self.phase} id={self.id} {self.computed}/{len(self.tokens)}>"

    @property
    def phase(self) -> SequencePhase:
        """The current phase, derived from the sequence's other attributes."""
        if self._over:
            return SequencePhase.OVER
        if self.id is None:
            return SequencePhase.QUEUED
        return SequencePhase.DECODE if self.computed == len(self.tokens) - 1 else SequencePhase.PREFILL

    @property
    def is_undecided(self) -> bool:
        """Whether the sequence has a constraint whose forced tokens are unknown in this step."""
        return self.guide is not None and not self.guide.was_settled

    @property
    def is_idle(self) -> bool:
        """Whether the sequence can compute nothing until its constraint has forced tokens or a mask for
        it."""
        tokens_left = len(self.tokens) - self.computed
        return tokens_left == 0 or (tokens_left == 1 and self.is_undecided)

    @property
    def running_id(self) -> int:
        """The KV cache id of a running sequence."""
        if self.id is None:
            raise RuntimeError(f"{self} does not run")
        return self.id

    @property
    def completion_tokens(self) -> int:
        """The number of completion tokens so far, which is the position of the next draw."""
        return len(self.tokens) - self.prompt_length

    @property
    def needs_scores(self) -> bool:
        """Whether some scores of the prompt were requested and are not sent yet."""
        return self.scored_tokens < self.prompt_length - 1

    @property
    def reusable_tokens(self) -> int:
        """The most tokens that the sequence may take from the cache. The last token must be computed, to draw
        the next one. Prompt tokens whose scores are not sent must be computed, to score the prompt."""
        return self.scored_tokens if self.needs_scores else len(self.tokens) - 1

    @property
    def is_complete(self) -> bool:
        """Whether the request asks for prompt scores only, and all scores are sent."""
        return self.request.max_tokens == 0 and not self.needs_scores

    def note_span(self, start: int, stop: int) -> None:
        """Notes that one call computed this span of the sequence's tokens."""
        self.computed = stop
        if start >= self.prompt_length - 1:
            self.forced_spans[start] = stop

    def end(self) -> None:
        """Marks the sequence as over."""
        self._over = True

    def accept_forced(self, token: int, end_ids: frozenset[int]) -> StopCause | None:
        """Appends a forced token, and counts it as a draw in the sampling state. Returns the cause if the
        sequence ends with the token."""
        if self.sampling_state is not None:
            self.sampling_state.accept(token)
        return self.accept(token, end_ids)

    def accept(self, token: int, end_ids: frozenset[int]) -> StopCause | None:
        """Appends a drawn token. Returns the cause if the sequence ends with the token."""
        self.tokens.append(token)
        if token in end_ids and not self.request.sampling.ignore_eos:
            return StopCause.END
        if token in self.stop_ids:
            return StopCause.STOP_TOKEN
        return StopCause.LENGTH if len(self.tokens) >= self.max_length else None


def measure_common_prefix(tokens: "array[int]", other_tokens: "array[int]", start: int, stop: int) -> int:
    """Returns the length of the common prefix of two token arrays, at most `stop`. The caller knows that they
    are equal before `start`."""
    if start >= stop:
        return stop
    is_different = (
        np.frombuffer(tokens, np.int32)[start:stop] != np.frombuffer(other_tokens, np.int32)[start:stop]
    )
    first_difference = int(is_different.argmax())
    return start + first_difference if is_different[first_difference] else stop


MIN_TOKENS_PER_SECOND = 1280
"""The fewest prompt tokens for each second of `step_latency`, even on a slow machine. Each step reads all
weights once more for the sequences that generate tokens. That costs as much as five prompt tokens: 4 % of a
chunk of 128."""

MAX_STEP_FACTOR = 4
"""The largest factor by which a step's time for prompts is multiplied. The factor is the number of arriving
prompts: steps with few rows take more time in all, and each waiting prompt would wait for that time."""

MAX_IDS = 256
"""llama.cpp's own limit of sequence ids."""


class SchedulingPolicy(Struct, frozen=True):
    """The limits that the scheduler follows, fixed when the model is loaded."""

    sequences: int
    """The most sequences that run at once."""
    chunk: int
    """In exact mode, the most prompt tokens of one call; chunks begin at its multiples."""
    budget: int
    """The most prompt tokens that one step computes, all sequences together."""
    cells: int
    """The number of cells of the pool; with streams, of each stream."""
    exact: bool = False
    layout: KVLayout = KVLayout.POOL
    """How cells are assigned to sequences; `exact` implies STREAMS."""
    ids: int = MAX_IDS
    """The number of native sequence ids. A pool has more ids than `sequences`, since each kept prefix needs
    an id; streams have exactly `sequences` ids."""
    row_counts: tuple[int, ...] = ()
    """The allowed numbers of decode rows, ascending; the last is `sequences`. In exact mode, these are the
    numbers of rows with which every row is computed alike."""
    scored_rows: int = 128
    """The most prompt tokens that one call may score. Each token takes a row of logits of the whole
    vocabulary."""
    step_latency: float = 0.1
    """Seconds of one step that prompts may take while other sequences wait for their next token."""
    queue: int = 512
    queue_per_actor: int = 256
    keeps_prefixes: bool = True
    """Whether computed prefixes stay for later requests."""
    max_kept_cells: int | None = None
    """The most cells of a pool that may be kept, because every row of a step passes over each kept cell.
    None: all cells."""
    quantum: int = 4
    """The fewest steps that one adapter's sequences get before another adapter has its turn."""
    min_turn: float = 0.0
    """The fewest seconds that one adapter's sequences get before another adapter has its turn. The library
    rebuilds its graphs when the adapter changes, which takes about as long as a step of a small model."""

    def compute_prompt_budget(self, arriving_prompts: int, seconds_per_token: float) -> int:
        """The number of prompt tokens that a step computes while other sequences wait for their next token.
        `arriving_prompts`: the number of prompts that are not computed yet. `seconds_per_token`: the seconds
        that one prompt token takes; 0 while unknown."""
        rate = (
            max(MIN_TOKENS_PER_SECOND, 1 / seconds_per_token) if seconds_per_token else MIN_TOKENS_PER_SECOND
        )
        seconds = self.step_latency * max(1, min(MAX_STEP_FACTOR, arriving_prompts))
        return max(1, min(self.budget, int(seconds * rate)))

    @property
    def has_streams(self) -> bool:
        """Whether each sequence has its own stream of cells."""
        return self.exact or self.layout is KVLayout.STREAMS


class SequenceQueue(FairQueue[TokenSequence]):
    """The sequences that wait to be admitted, and the recent rate of admissions."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        super().__init__(policy)
        self._preempted: deque[TokenSequence] = deque()
        self._groups: Counter[str] = Counter()
        """The number of queued and running sequences of each group."""

    def list_waiting(self) -> list[TokenSequence]:
        """All waiting sequences, in no particular order. Any thread may call it."""
        return [*tuple(self._preempted), *super().list_waiting()]

    def find_refusal(self, sequence: TokenSequence, now: float, free_places: int = 0) -> AntiphonError | None:
        """The error that refuses the sequence, or None if it may be queued."""
        if sequence.group is not None and self._groups[sequence.group]:
            return None
        return super().find_refusal(sequence, now, free_places)

    def add(self, sequence: TokenSequence) -> None:
        super().add(sequence)
        if sequence.group is not None:
            self._groups[sequence.group] += 1

    def requeue_preempted(self, sequence: TokenSequence) -> None:
        """Queues a preempted sequence before all sequences of callers' turns. Of several preempted sequences,
        the oldest comes first."""
        self._preempted.append(sequence)
        if len(self._preempted) > 1:
            self._preempted = deque(sorted(self._preempted, key=lambda preempted: preempted.arrival))
        self._item_count += 1

    def requeue_yielded(self, sequence: TokenSequence) -> None:
        """Queues a sequence that has yielded its place. It comes before its caller's other sequences, except
        those with a lower priority number. All other callers have a turn before this caller."""
        actor_queue = self._lines.setdefault(sequence.actor, deque())
        actor_queue.insert(sum(queued.priority < sequence.priority for queued in actor_queue), sequence)
        self._item_count += 1
        self._move_to_end(sequence.actor)

    def remove(self, sequence: TokenSequence) -> None:
        """Removes a sequence that is admitted or cancelled."""
        if sequence.has_started and sequence in self._preempted:
            self._item_count -= 1
            self._preempted.remove(sequence)
        else:
            super().remove(sequence)

    def admit(self, sequence: TokenSequence) -> None:
        """Removes an admitted sequence. The next turn of its caller comes after those of all other
        callers."""
        self.take_turn(sequence)

    def note_departure(self, sequence: TokenSequence, now: float) -> None:
        """Notes that a sequence has left the queue and the batch."""
        if sequence.has_started:
            self.note_end(now)
        if sequence.group is not None:
            self._groups[sequence.group] -= 1
            if not self._groups[sequence.group]:
                del self._groups[sequence.group]

    def list_in_turn(self, place_counts: Mapping[str, int]) -> Iterator[TokenSequence]:
        """Yields all sequences in the order in which to admit them: those of callers with the fewest places
        first; callers with equally many take turns. `place_counts`: the number of places of each caller. The
        queue may change during the iteration."""
        yield from tuple(self._preempted)
        caller_queues = [tuple(caller_queue) for caller_queue in self._lines.values()]
        order = [
            (place_counts.get(caller_queue[0].actor, 0), turn, 0)
            for turn, caller_queue in enumerate(caller_queues)
        ]
        heapify(order)
        while order:
            places, turn, index = order[0]
            yield caller_queues[turn][index]
            if index + 1 < len(caller_queues[turn]):
                heapreplace(order, (places + 1, turn, index + 1))
            else:
                heappop(order)

    def list_actors(self) -> set[str]:
        """The callers that have a waiting sequence."""
        return {*self._lines, *(sequence.actor for sequence in self._preempted)}

    def has_waited_since(self, time: float) -> bool:
        """Whether the first sequence of any caller, or a preempted sequence, was queued at this time or
        before."""
        return any(caller_queue[0].queued_at <= time for caller_queue in self._lines.values()) or any(
            sequence.queued_at <= time for sequence in self._preempted
        )

    def list_first_in_line(
        self, waits_for_prompt: Callable[[TokenSequence], bool]
    ) -> Iterator[TokenSequence]:
        """The first sequence of each caller, in the order of turns. It skips those for which
        `waits_for_prompt` is true."""
        yield from (sequence for sequence in self._preempted if not waits_for_prompt(sequence))
        for caller_queue in self._lines.values():
            first_sequence = next(
                (sequence for sequence in caller_queue if not waits_for_prompt(sequence)), None
            )
            if first_sequence is not None:
                yield first_sequence


YIELD_DELAY = 0.25
"""Seconds that a caller waits before another caller must yield a place. A place may become free by itself in
that time."""
MIN_RUN_SECONDS = 1.0
"""Seconds that a sequence runs before it may yield."""
MIN_NEW_TOKENS = 16
"""The number of tokens that a sequence computes for the first time before it may yield again. So every
sequence makes progress."""


def choose_exchange(
    running: Collection[TokenSequence],
    waiting: SequenceQueue,
    policy: SchedulingPolicy,
    now: float,
    waits_for_prompt: Callable[[TokenSequence], bool],
) -> tuple[TokenSequence, TokenSequence] | None:
    """Returns a waiting sequence that gets a place, and the running sequence that yields it; None if no place
    is exchanged. The newest sequence of the caller that uses the most yields. Use and shares are counted in
    places if all places are taken, and in cells if not. A caller yields only what exceeds its share.
    `waits_for_prompt`: tells whether a sequence waits for another sequence's prompt, so that it needs no
    place."""
    if not waiting.has_waited_since(now - YIELD_DELAY):
        return None
    callers = len({sequence.actor for sequence in running} | waiting.list_actors())
    if callers < 2:
        return None
    is_full = len(running) >= policy.sequences
    if not is_full and policy.has_streams:
        return None
    share = -(-(policy.sequences if is_full else policy.cells) // callers)
    used_by_actor: Counter[str] = Counter()
    for sequence in running:
        used_by_actor[sequence.actor] += 1 if is_full else len(sequence.tokens)
    givers = [
        sequence
        for sequence in running
        if used_by_actor[sequence.actor] - (1 if is_full else len(sequence.tokens)) >= share
        and _can_yield(sequence, policy, now)
    ]
    if not givers:
        return None
    for taker in waiting.list_first_in_line(waits_for_prompt):
        if used_by_actor[taker.actor] < share and now - taker.queued_at >= YIELD_DELAY:
            return taker, max(givers, key=lambda sequence: (used_by_actor[sequence.actor], sequence.arrival))
    return None


def _can_yield(sequence: TokenSequence, policy: SchedulingPolicy, now: float) -> bool:
    """Whether the sequence has run long enough and made progress. In exact mode, a sequence with a scored
    prompt never yields: its chunks may have been shorter, so its prompt could not be computed again with
    equal bits."""
    if policy.exact and sequence.request.prompt_logprobs is not None:
        return False
    return (
        now - sequence.running_since >= MIN_RUN_SECONDS
        and sequence.computed - sequence.max_computed >= MIN_NEW_TOKENS
    )
