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
from antiphon.engines.sampling import Drawing

Key = tuple[str | None, str]
"""Adapter and cache salt: only sequences with an equal key may share cells."""


class Phase(StrEnum):
    """Where a sequence stands."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """It has an id, and more than one of its tokens is not computed yet."""
    DECODE = "decode"
    """All of its tokens but the last are computed: the next step gives it a token."""
    OVER = "over"
    """Finished, failed or closed; it holds nothing."""


class Sequence:
    """Owned by the decode thread once it is submitted."""

    __slots__ = (
        "_over",
        "actor",
        "arrival",
        "awaited",
        "awaits",
        "computed",
        "drawing",
        "forced",
        "goal",
        "group",
        "guide",
        "id",
        "key",
        "limit",
        "priority",
        "prompt",
        "queued",
        "reached",
        "request",
        "scored",
        "shared",
        "since",
        "started",
        "stops",
        "tokens",
    )

    def __init__(
        self, request: TokenRequest, prompt: Tokens[int], context: int, drawing: Drawing | None = None
    ) -> None:
        self.request = request
        self.drawing = drawing
        """What its draws depend on; it outlives preemption."""
        self.guide: Guide | None = None
        """What a constraint allows it."""
        self.prompt = len(prompt)
        """Tokens of the prompt."""
        self.tokens = array("i", prompt)
        """Those of the prompt, then those drawn."""
        self.limit = min(len(prompt) + request.max_tokens, context)
        """Most tokens that it may have, the prompt included."""
        self.stops = frozenset(request.stop_token_ids)
        self.key: Key = (request.adapter, request.cache_salt)
        self.group = request.group
        self.actor = request.actor
        self.priority = request.priority
        self.arrival = 0
        """Its number among all that were queued; the higher, the younger."""
        self.queued = self.since = 0.0
        """Since when it waits, or runs."""
        self.reached = 0
        """Most of its tokens that were computed when it was put back."""
        self.forced: dict[int, int] = {}
        """Where spans of tokens behind its prompt began and ended: those that a constraint forced."""
        self.id: int | None = None
        """Its number in the library's KV cache while it runs."""
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.shared = 0
        """Prompt tokens that were computed before it came."""
        self.started = False
        """Whether it was admitted once: a preempted one is queued again, but its client knows it runs."""
        self.scored = 0 if request.prompt_logprobs is not None else len(prompt)
        """Prompt tokens whose rows' scores were said, where they were asked for."""
        self.awaits: Sequence | None = None
        """The running sequence whose prompt it waits for, and up to where."""
        self.goal = 0
        self.awaited = 0
        """How many wait for its prompt."""
        self._over = False

    def __repr__(self) -> str:
        return f"<Sequence {self.phase} id={self.id} {self.computed}/{len(self.tokens)}>"

    @property
    def phase(self) -> Phase:
        if self._over:
            return Phase.OVER
        if self.id is None:
            return Phase.QUEUED
        return Phase.DECODE if self.computed == len(self.tokens) - 1 else Phase.PREFILL

    @property
    def held(self) -> bool:
        """Whether it is not known yet which tokens must follow its last one, as of this step."""
        return self.guide is not None and not self.guide.seen

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute of it until more is known of its constraint."""
        left = len(self.tokens) - self.computed
        return left == 0 or (left == 1 and self.held)

    @property
    def seat(self) -> int:
        """Its id, of a sequence that runs."""
        if self.id is None:
            raise RuntimeError(f"{self} does not run")
        return self.id

    @property
    def made(self) -> int:
        """Completion tokens so far; the position of the next draw."""
        return len(self.tokens) - self.prompt

    @property
    def scores(self) -> bool:
        """Whether scores of its prompt are still to be said."""
        return self.scored < self.prompt - 1

    @property
    def takes(self) -> int:
        """Most of its tokens that it may take from the cache: its last one is its own decode row, and what is
        to be scored is computed anew."""
        return self.scored if self.scores else len(self.tokens) - 1

    @property
    def complete(self) -> bool:
        """Whether it asked for scores alone, and has them."""
        return self.request.max_tokens == 0 and not self.scores

    def computed_span(self, start: int, stop: int) -> None:
        """Notes that a call computed these of its tokens at once."""
        self.computed = stop
        if start >= self.prompt - 1:
            self.forced[start] = stop

    def end(self) -> None:
        """Says that it takes part no more."""
        self._over = True

    def take(self, token: int, ends: frozenset[int]) -> StopCause | None:
        """Appends a token that was forced: the place of the next draw moves on."""
        if self.drawing is not None:
            self.drawing.accept(token)
        return self.accept(token, ends)

    def accept(self, token: int, ends: frozenset[int]) -> StopCause | None:
        """Appends a drawn token; why the sequence ends with it, if it does."""
        self.tokens.append(token)
        if token in ends and not self.request.sampling.ignore_eos:
            return StopCause.END
        if token in self.stops:
            return StopCause.STOP_TOKEN
        return StopCause.LENGTH if len(self.tokens) >= self.limit else None


def common(one: "array[int]", other: "array[int]", start: int, stop: int) -> int:
    """Up to where two arrays of tokens are equal, at most `stop`; below `start` they are known to be."""
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
class Policy:
    """How the engine schedules."""

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
    keep: bool = True
    """Whether computed prefixes stay for later requests."""
    most_kept: int | None = None
    """Cells of a pool that may be kept: the rows of every step walk past each of them. None: all."""
    quantum: int = 4
    """Steps that the sequences of one adapter get at least before those of another have their turn."""
    turn: float = 0.0
    """Seconds that they get at least. The library builds its graphs anew when the adapter changes, which
    takes about as long as a step of a small model."""

    def part(self, coming: int, pace: float) -> int:
        """Prompt tokens of a step beside those that wait for their next token, while so many prompts come in.
        `pace`: seconds that one takes; 0 while unknown."""
        rate = max(LEAST_PACE, 1 / pace) if pace else LEAST_PACE
        patience = self.step_latency * max(1, min(MOST_PATIENCE, coming))
        return max(1, min(self.budget, int(patience * rate)))

    @property
    def streams(self) -> bool:
        """Whether each sequence has a stream of cells of its own."""
        return self.exact or self.layout is KVLayout.STREAMS
