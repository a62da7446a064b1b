"""The state of one sequence in the scheduler and the decode loop, and the limits of scheduling.

This module decides nothing: the scheduler chooses which sequence runs.
"""

from array import array
from collections.abc import Sequence as Tokens
from enum import StrEnum

import numpy as np

from antiphon.constraints.guide import Guide
from antiphon.domain.values import Struct
from antiphon.engines.base import DraftMode, KVLayout, StopCause, TokenRequest
from antiphon.engines.llama.drafting import Drafter, DraftPolicy
from antiphon.engines.llama.media import MediaRun
from antiphon.engines.sampling import SamplingState

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
        "drafter",
        "followers",
        "forced_spans",
        "group",
        "guide",
        "has_started",
        "id",
        "key",
        "lost_positions",
        "max_computed",
        "max_length",
        "media",
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
        media: tuple[MediaRun, ...] = (),
    ) -> None:
        """`prompt`: the tokens, with the numbers of media in their cells. `media`: where these cells are."""
        self.request = request
        self.media = media
        self.lost_positions = sum(run.lost_positions for run in media)
        """How many positions all media together have fewer than cells."""
        self.sampling_state = sampling_state
        """The state of its draws, which stays when the sequence is preempted."""
        self.guide: Guide | None = None
        """Tells which tokens its constraint allows; None without a constraint."""
        self.drafter: Drafter | None = None
        """Proposes drafts; None if the sequence gets none."""
        self.prompt_length = len(prompt)
        """The number of prompt tokens."""
        self.tokens = array("i", prompt)
        """The prompt's tokens, then the drawn ones. A cell of a medium has a negative number."""
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
        """Maps the start of each span of forced tokens after the prompt to the span's end. One call has
        computed each span, and exact mode computes it in one call again after a preemption."""
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

    def find_medium(self, index: int) -> MediaRun | None:
        """Returns the part of a medium that has the cell with this index; None for a token."""
        return next((run for run in self.media if run.start <= index < run.stop), None)

    def get_position(self, index: int) -> int:
        """Returns the position of the token or cell with this index in the cache. Inside a medium with
        coordinates, returns the first position after the medium, because its cells have no order there."""
        position = index
        for run in self.media:
            if index <= run.start:
                break
            if index < run.stop and run.lost_positions:
                return run.position + run.part.positions
            position -= run.lost_positions
        return position

    def find_span_end(self, start: int, stop: int) -> int:
        """Returns the end of the part of a span that one call computes: media are computed apart from
        tokens, and whole if their cells see each other."""
        for run in self.media:
            if run.start <= start < run.stop:
                return min(stop, run.stop) if run.part.is_causal else run.stop
            if start < run.start < stop:
                return run.start
        return stop

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
    drafts: DraftPolicy = DraftPolicy()
    """How many drafts a sequence gets."""

    def create_drafter(self, request: TokenRequest, prompt_length: int) -> Drafter | None:
        """Returns what proposes the drafts of a sequence; None if it gets none. A constraint's mask for the
        next token is not known before the last token is drawn, so there is nothing to verify drafts with."""
        if not self.drafts.is_possible or request.constraint is not None:
            return None
        looks_up = self.drafts.mode is not DraftMode.OFF
        return (
            Drafter(request.prediction, looks_up, prompt_length) if request.prediction or looks_up else None
        )

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
