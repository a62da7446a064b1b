"""Sizes and bounds that the scheduler keeps to, settled when the model is loaded."""

from dataclasses import dataclass

from antiphon.engines.base import KVLayout

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
        """Prompt tokens of a step beside those that wait for their next token, while so many prompts come
        in. `pace`: seconds that one takes; 0 while unknown."""
        rate = max(LEAST_PACE, 1 / pace) if pace else LEAST_PACE
        patience = self.step_latency * max(1, min(MOST_PATIENCE, coming))
        return max(1, min(self.budget, int(patience * rate)))

    @property
    def streams(self) -> bool:
        """Whether each sequence has a stream of cells of its own."""
        return self.exact or self.layout is KVLayout.STREAMS
