"""One sequence as the scheduler and the decode loop see it, and the sizes that scheduling keeps to.

Values only: the scheduler decides which sequence runs.
"""

from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from antiphon.constraints.guide import Guide
from antiphon.engines.base import KVLayout, StopCause, TokenRequest
from antiphon.engines.sampling import SamplingState

PrefixKey = tuple[str | None, str]
"""Adapter and cache salt: only sequences with an equal key may share cells."""


class SequencePhase(StrEnum):
    """The phase of a sequence."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """It has an id, and more than one of its tokens is not computed yet."""
    DECODE = "decode"
    """All of its tokens but the last are computed: the next step gives it a token."""
    OVER = "over"
    """Finished, failed or closed; it holds nothing."""


class TokenSequence:
    """Owned by the decode thread once it is submitted."""

    __slots__ = (
        "_over",
        "actor",
        "arrival",
        "computed",
        "followers",
        "forced_spans",
        "furthest",
        "group",
        "guide",
        "id",
        "key",
        "max_length",
        "priority",
        "prompt_length",
        "queued_at",
        "request",
        "running_since",
        "sampling_state",
        "scored_tokens",
        "shared_tokens",
        "started",
        "stops",
        "tokens",
        "waits_for",
        "waits_until",
    )

    def __init__(
        self, request: TokenRequest, prompt: Tokens[int], context: int, drawing: SamplingState | None = None
    ) -> None:
        self.request = request
        self.sampling_state = drawing
        """What its draws depend on; it outlives preemption."""
        self.guide: Guide | None = None
        """What a constraint allows it."""
        self.prompt_length = len(prompt)
        """Tokens of the prompt."""
        self.tokens = array("i", prompt)
        """Those of the prompt, then those drawn."""
        self.max_length = min(len(prompt) + request.max_tokens, context)
        """Most tokens that it may have, the prompt included."""
        self.stops = frozenset(request.stop_token_ids)
        self.key: PrefixKey = (request.adapter, request.cache_salt)
        self.group = request.group
        self.actor = request.actor
        self.priority = request.priority
        self.arrival = 0
        """Its number among all that were queued; the higher, the younger."""
        self.queued_at = self.running_since = 0.0
        """Since when it waits, or runs."""
        self.furthest = 0
        """Most of its tokens that were computed when it was put back."""
        self.forced_spans: dict[int, int] = {}
        """Where spans of tokens behind its prompt began and ended: those that a constraint forced."""
        self.id: int | None = None
        """Its number in the library's KV cache while it runs."""
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.shared_tokens = 0
        """Prompt tokens that were computed before it came."""
        self.started = False
        """Whether it was admitted once: a preempted one is queued again, but its client knows it runs."""
        self.scored_tokens = 0 if request.prompt_logprobs is not None else len(prompt)
        """Prompt tokens whose rows' scores were said, where they were asked for."""
        self.waits_for: TokenSequence | None = None
        """The running sequence whose prompt it waits for, and up to where."""
        self.waits_until = 0
        self.followers = 0
        """How many wait for its prompt."""
        self._over = False

    def __repr__(self) -> str:
        return f"<Sequence {self.phase} id={self.id} {self.computed}/{len(self.tokens)}>"

    @property
    def phase(self) -> SequencePhase:
        if self._over:
            return SequencePhase.OVER
        if self.id is None:
            return SequencePhase.QUEUED
        return SequencePhase.DECODE if self.computed == len(self.tokens) - 1 else SequencePhase.PREFILL

    @property
    def is_undecided(self) -> bool:
        """Whether this step does not know yet which tokens must follow the last one."""
        return self.guide is not None and not self.guide.was_settled

    @property
    def is_idle(self) -> bool:
        """Whether nothing can be computed until its constraint has an answer."""
        left = len(self.tokens) - self.computed
        return left == 0 or (left == 1 and self.is_undecided)

    @property
    def running_id(self) -> int:
        """Its id while it runs."""
        if self.id is None:
            raise RuntimeError(f"{self} does not run")
        return self.id

    @property
    def completion_tokens(self) -> int:
        """Completion tokens so far; the position of the next draw."""
        return len(self.tokens) - self.prompt_length

    @property
    def needs_scores(self) -> bool:
        """Whether scores of its prompt are still to be sent."""
        return self.scored_tokens < self.prompt_length - 1

    @property
    def reusable_tokens(self) -> int:
        """Most tokens that it may take from the cache: its last one is its own decode row, and a scored
        prompt is computed anew."""
        return self.scored_tokens if self.needs_scores else len(self.tokens) - 1

    @property
    def is_complete(self) -> bool:
        """Whether it wanted scores alone, and has them."""
        return self.request.max_tokens == 0 and not self.needs_scores

    def note_span(self, start: int, stop: int) -> None:
        """Notes that one call computed these of its tokens."""
        self.computed = stop
        if start >= self.prompt_length - 1:
            self.forced_spans[start] = stop

    def end(self) -> None:
        """Marks it as over."""
        self._over = True

    def accept_forced(self, token: int, ends: frozenset[int]) -> StopCause | None:
        """Appends a forced token; the position of the next draw moves on."""
        if self.sampling_state is not None:
            self.sampling_state.accept(token)
        return self.accept(token, ends)

    def accept(self, token: int, ends: frozenset[int]) -> StopCause | None:
        """Appends a drawn token; returns the cause if the sequence ends with it."""
        self.tokens.append(token)
        if token in ends and not self.request.sampling.ignore_eos:
            return StopCause.END
        if token in self.stops:
            return StopCause.STOP_TOKEN
        return StopCause.LENGTH if len(self.tokens) >= self.max_length else None


def find_common_end(one: "array[int]", other: "array[int]", start: int, stop: int) -> int:
    """The place up to which two arrays of tokens are equal, at most `stop`; they are known to be equal below
    `start`."""
    if start >= stop:
        return stop
    differ = np.frombuffer(one, np.int32)[start:stop] != np.frombuffer(other, np.int32)[start:stop]
    first = int(differ.argmax())
    return start + first if differ[first] else stop


LEAST_PACE = 1280
"""Prompt tokens for each second of `step_latency`, however slow the machine is. Each step reads all weights
once more for those that generate, which costs as much as five prompt tokens: 4 % of parts of 128."""

MOST_PATIENCE = 4
"""A step's prompts may take as many times longer as prompts come in, up to this: the more wait for their
first token, the more is lost by computing few rows for those that have theirs."""

MOST_IDS = 256
"""llama.cpp's own limit of sequence ids."""


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """Sizes and bounds that the scheduler keeps to, fixed when the model is loaded."""

    sequences: int
    """Sequences that run at once."""
    chunk: int
    """Exact mode: most prompt tokens of one call, and the grid that chunks lie on."""
    budget: int
    """Most prompt tokens that one step computes, all sequences together."""
    cells: int
    """Cells that there are: of the pool, or of one stream."""
    exact: bool = False
    layout: KVLayout = KVLayout.POOL
    """`exact` implies STREAMS."""
    ids: int = MOST_IDS
    """Native sequence ids: in a pool more than `sequences`, as kept prefixes have one each; in streams as
    many."""
    row_counts: tuple[int, ...] = ()
    """Exact mode: the numbers of decode rows that compute every row alike, ascending; the last is
    `sequences`."""
    scored_rows: int = 128
    """Most prompt tokens whose scores one call may give: each takes a row of logits of the whole
    vocabulary."""
    step_latency: float = 0.1
    """Seconds of one step that a prompt may take while other sequences wait for their next token."""
    queue: int = 512
    queue_per_actor: int = 256
    keeps_prefixes: bool = True
    """Whether computed prefixes stay for later requests."""
    most_kept: int | None = None
    """Cells of a pool that may be kept: the rows of every step walk past each of them. None: all."""
    quantum: int = 4
    """Steps that the sequences of one adapter get at least before those of another have their turn."""
    min_turn: float = 0.0
    """Seconds that they get at least. The library builds its graphs anew when the adapter changes, which
    takes about as long as a step of a small model."""

    def compute_prompt_budget(self, coming: int, pace: float) -> int:
        """Prompt tokens of a step beside sequences that wait for their next token, while so many prompts come
        in. `pace`: seconds that one prompt token takes; 0 while unknown."""
        rate = max(LEAST_PACE, 1 / pace) if pace else LEAST_PACE
        patience = self.step_latency * max(1, min(MOST_PATIENCE, coming))
        return max(1, min(self.budget, int(patience * rate)))

    @property
    def has_streams(self) -> bool:
        """Whether each sequence has a stream of cells of its own."""
        return self.exact or self.layout is KVLayout.STREAMS
