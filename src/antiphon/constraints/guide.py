"""Computes which tokens a constraint allows next, on threads beside the decode thread.

The decode thread begins the `Guide` of a sequence when the sequence gets a place in the batch. It gives each
drawn token to the guide, and reads the guide's result later.
First the result has the forced tokens, then the mask of the token after them. No function of this module
waits. A failure becomes the error of its guide. A guide without a result allows no token.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import (
    DEAD_END,
    NO_TOKEN_ALLOWED,
    CompilerVocabulary,
    Matcher,
    is_caused_by_constraint,
)
from antiphon.errors import AntiphonError, EngineBusy, EngineError, InvalidValue
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Returns seconds."""

TokenMask = NDArray[np.bool_]

MAX_CPU_SECONDS = 2.0
"""The most CPU seconds of a worker for one result. The mean is under a millisecond. The limit is in CPU time,
because a busy machine must not make a constraint fail."""

PATIENCE = 60.0
"""The most seconds of wall clock for one result, including the time in the queue. A result needs so long
only if no worker makes progress."""

TOO_LONG = "the constraint takes too long to follow here; make it simpler"
BUSY = "the machine is too busy to follow the constraint; try again"
STARVED = f"no worker had a result for a constraint within {PATIENCE:g} s"
RETRY_AFTER = 5.0
"""Retry delay in seconds for callers when the machine is too busy."""


def to_callers_error(error: AntiphonError, field: str | None) -> AntiphonError:
    """Converts a guide's error to InvalidValue if the constraint caused it. Returns other errors unchanged.
    `field`: the caller's name for the constraint."""
    if is_caused_by_constraint(error):
        return InvalidValue(error.message, param=field, cause=error.cause)
    return error


def read_zero() -> float:
    """Returns the CPU clock of a guide before a worker begins its result."""
    return 0.0


class GuideWorkers(Protocol):
    """The workers that compute the results of guides."""

    result_ready: threading.Event
    """Set whenever a result, or a part of one, is complete."""

    @property
    def size(self) -> int: ...
    def put(self, guide: "Guide") -> None: ...
    def abandon(self, guide: "Guide") -> None: ...


class Guide:
    """The position of one sequence in its grammar. The decode thread and a worker never use a guide at the
    same time.

    A result has two parts. When `is_settled` is set, the forced tokens are known. When `is_ready` is set,
    the mask of the token after them is known too. `begin` begins the first result. After the sequence has
    used both parts, `advance` begins the next one.
    """

    __slots__ = (
        "_allowed",
        "_clock",
        "_cpu_clock",
        "_ends_text",
        "_forced",
        "_grammar",
        "_matcher",
        "_requested_at_s",
        "_token",
        "error",
        "is_abandoned",
        "is_first",
        "is_ready",
        "is_settled",
        "was_settled",
        "workers",
    )

    def __init__(
        self, grammar: Grammar, workers: "GuideWorkers", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.workers = workers
        self._grammar = grammar
        self._clock = clock
        self._cpu_clock: Clock = read_zero
        self._matcher: Matcher | None = None
        self._ends_text = False
        """Whether the forced tokens end the text. Only a worker uses this attribute."""
        self._requested_at_s = clock()
        self.is_first = True
        """Whether the next result is the first one, for which the grammar is compiled."""
        self.was_settled = False
        self._token: int | None = None
        self._forced: tuple[int, ...] = ()
        self._allowed: TokenMask | None = None
        self.error: AntiphonError | None = None
        """The error that prevents further results."""
        self.is_abandoned = False
        """Whether the decode thread needs no more results of this guide."""
        self.is_settled = False
        """Whether the forced tokens are known."""
        self.is_ready = False
        """Whether the mask of the token after them is known too."""

    # --- the decode thread

    def begin(self) -> None:
        """Drops the last result, and queues the guide for the next one. The first result compiles the
        grammar, which takes time and memory. So a guide begins only when its sequence has a place in the
        batch: places are few, and the projects take turns."""
        self.is_settled = self.is_ready = self.was_settled = False
        self._forced, self._allowed, self._cpu_clock = (), None, read_zero
        self._requested_at_s = self._clock()
        self.workers.put(self)

    def advance(self, token: int) -> None:
        """Continues with the sequence's next token, which must be allowed. A forced token is only marked as
        used. After any other token, the next result begins."""
        if self._forced:
            self._forced = self._forced[1:]
            return
        self._token = token
        self.is_first = False
        self.begin()

    def get_forced(self) -> tuple[int, ...]:
        """Returns the forced next tokens, in order. The last one can be an end token. Call it only if
        `is_settled` is set. Raises EngineError."""
        self._require_available(self.is_settled)
        return self._forced

    def take_forced(self) -> tuple[int, ...]:
        """Returns the forced tokens, and marks them as used."""
        forced, self._forced = self.get_forced(), ()
        return forced

    def get_allowed(self) -> TokenMask:
        """Returns a flag for each id: whether the token is allowed next. Call it only if `is_ready` is set.
        Raises EngineError."""
        self._require_available(self.is_ready)
        if self._forced:
            single_token_mask = np.zeros(self.workers.size, dtype=np.bool_)
            single_token_mask[self._forced[0]] = True
            return single_token_mask
        if self._allowed is None:
            raise EngineError("the constraint allows no token here; nothing can follow")
        return self._allowed

    def get_mask(self) -> tuple[TokenMask, bool]:
        """Returns the mask, and whether it allows only one token. Call it only if `is_ready` is set. Raises
        EngineError."""
        return self.get_allowed(), bool(self._forced)

    def record_settled(self) -> None:
        """Sets `was_settled`, so that all code of one step sees the same state although workers continue.
        Without this, the last bits of later logits could differ, because forced tokens are decoded together
        or one by one."""
        self.was_settled = self.is_settled

    def get_age(self) -> float:
        """Returns the seconds since the result was requested."""
        return self._clock() - self._requested_at_s

    def find_failure(self, field: str | None, cpu_seconds: float = MAX_CPU_SECONDS) -> AntiphonError | None:
        """Returns the error of the guide, or an error if the result takes too long. Returns None if there is
        no error. `field`: the caller's name for the constraint. `cpu_seconds`: the most CPU seconds for the
        result."""
        if self.error is not None:
            return to_callers_error(self.error, field)
        if self.is_overdue(cpu_seconds):
            return InvalidValue(TOO_LONG, param=field)
        return EngineBusy(BUSY, retry_after=RETRY_AFTER, cause=STARVED) if self.is_starved() else None

    def is_overdue(self, cpu_seconds: float = MAX_CPU_SECONDS) -> bool:
        """Whether the result has used more CPU time than allowed."""
        return not self.is_ready and self._cpu_clock() > cpu_seconds

    def is_starved(self) -> bool:
        """Whether the result takes longer than PATIENCE, although it may have used little CPU."""
        return not self.is_ready and self.get_age() > PATIENCE

    def abandon(self) -> None:
        """Tells the workers to drop this guide, because its results are no longer needed."""
        self.workers.abandon(self)

    def _require_available(self, is_available: bool) -> None:
        """Raises the guide's error if it has one, or EngineError if the result is not available yet."""
        if self.error is not None:
            raise self.error
        if not is_available:
            raise EngineError("the constraint has no result yet")

    # --- a worker

    def work(self, vocabulary: CompilerVocabulary, cpu_clock: Clock = read_zero) -> None:
        """Computes the next result. It raises nothing: a failure becomes the guide's error. `cpu_clock`:
        returns the CPU seconds that this result has used; other threads call it too."""
        self._cpu_clock = cpu_clock
        try:
            self._compute_forced(vocabulary)
            self.is_settled = True
            self.workers.result_ready.set()
            self._compute_mask(vocabulary)
        except AntiphonError as error:
            self.error = error
        except BaseException as defect:  # noqa: BLE001 - a panic of native code is no Exception
            location = describe_exception(defect)
            log.error("a constraint could not be followed: %s", location)  # noqa: TRY400 - without the message
            self.error = EngineError(
                "the constraint could not be followed: its matcher failed", cause=location
            )
        finally:
            self.is_settled = self.is_ready = True
            self.workers.result_ready.set()

    def _compute_forced(self, vocabulary: CompilerVocabulary) -> None:
        """Appends the sequence's last token to the matcher, then finds and appends the forced tokens."""
        if self._matcher is None:
            # Copies of a matcher share its automaton, its limits and its errors, so each text has its own.
            self._matcher = Matcher(self._grammar, vocabulary)
        if self._token is not None:
            self._matcher.consume([self._token])
        forced = self._matcher.find_forced()
        ends = frozenset(vocabulary.tokens.ends)
        self._matcher.consume([token for token in forced if token not in ends])
        self._ends_text = bool(forced) and forced[-1] in ends
        self._forced = tuple(forced)

    def _compute_mask(self, vocabulary: CompilerVocabulary) -> None:
        """Computes the mask of the token after the forced tokens. Raises EngineError if it allows no
        token."""
        if self._matcher is None or self._ends_text:
            return
        bits = np.frombuffer(self._matcher.compute_mask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=vocabulary.size).astype(np.bool_)
        ends = list(vocabulary.tokens.ends)
        if allowed[ends].any() and not self._matcher.is_complete:
            self._matcher.require_within_limits()
            raise EngineError("the constraint would end where it is not complete")
        if not allowed.any():
            raise EngineError(NO_TOKEN_ALLOWED, cause=DEAD_END)
        self._allowed = allowed
