"""Computes the tokens that a constraint allows a running sequence, on threads beside the decode thread.

The decode thread tells a `Guide` which token was drawn, continues with the next step of all sequences, and
reads the guide's answer later. The answer has first the forced tokens, then the mask of the token after them.
No function of this module waits. Any failure becomes an error of the guide in which it occurs. A guide
without an answer allows no token.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import DEAD_END, CompilerVocabulary, Matcher, is_callers_fault
from antiphon.errors import AntiphonError, EngineBusy, EngineError, InvalidValue
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Returns seconds."""

MatcherFactory = Callable[[Grammar, CompilerVocabulary], Matcher]
"""Makes a matcher for one text of a grammar."""

TokenMask = NDArray[np.bool_]

MAX_CPU_SECONDS = 2.0
"""The most seconds of a worker's CPU for one answer. The mean is under a millisecond. The limit is CPU time,
because a busy machine delays an answer without making the constraint harder."""

PATIENCE = 60.0
"""The most seconds of wall clock for one answer, with the time in the queue. An answer takes so long only if
no worker makes progress."""

TOO_LONG = "the constraint takes too long to follow here; make it simpler"
BUSY = "the machine is too busy to follow the constraint; try again"
STARVED = f"no worker had an answer for a constraint within {PATIENCE:g} s"
RETRY_AFTER = 5.0
"""Retry delay in seconds for callers when the machine is too busy."""


def to_callers_error(error: AntiphonError, field: str | None) -> AntiphonError:
    """Converts a guide's error to the caller's error if the constraint caused it; returns other errors
    unchanged. `field`: the caller's name for the constraint."""
    if is_callers_fault(error):
        return InvalidValue(error.message, param=field, cause=error.cause)
    return error


def read_zero() -> float:
    """The clock of a guide whose answer no worker has begun to compute."""
    return 0.0


class GuideWorkers(Protocol):
    """The workers that compute the answers of guides."""

    answer_ready: threading.Event
    """Set whenever an answer, or a part of one, is complete."""

    @property
    def size(self) -> int: ...
    def put(self, guide: "Guide") -> None: ...
    def abandon(self, guide: "Guide") -> None: ...


class Guide:
    """The path of one sequence through its grammar. The decode thread and a worker never use a guide at the
    same time.

    An answer has two parts. When `is_settled` is set, the forced tokens are known. When `is_ready` is set,
    the mask of the token after them is known too. After the sequence has used both parts, `advance` begins
    the next answer.
    """

    __slots__ = (
        "_allowed",
        "_began",
        "_clock",
        "_forced",
        "_grammar",
        "_matcher",
        "_over",
        "_spent",
        "_token",
        "error",
        "is_abandoned",
        "is_ready",
        "is_settled",
        "was_settled",
        "workers",
    )

    def __init__(
        self, grammar: Grammar, desk: "GuideWorkers", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.workers = desk
        self._grammar = grammar
        self._clock = clock
        self._spent: Clock = read_zero
        self._matcher: Matcher | None = None
        self._over = False
        """Whether the forced tokens end the text. Only a worker uses this attribute."""
        self.is_settled = self.is_ready = self.was_settled = False
        self._token: int | None = None
        self._forced: tuple[int, ...] = ()
        self._allowed: TokenMask | None = None
        self.error: AntiphonError | None = None
        """The error that prevents further answers."""
        self.is_abandoned = False
        """Whether the decode thread has given up the guide."""
        self.is_settled = False
        """Whether the forced tokens are known."""
        self.is_ready = False
        """Whether the mask of the token after them is known too."""
        self._begin()

    # --- the decode thread

    def advance(self, token: int) -> None:
        """Notes the sequence's next token, which must be an allowed one. A forced token is only marked as
        used; after any other token the next answer begins."""
        if self._forced:
            self._forced = self._forced[1:]
            return
        self._token = token
        self._begin()

    def get_forced(self) -> tuple[int, ...]:
        """The forced next tokens, in order; the last may be an end token. Call it once `is_settled` is set.
        Raises EngineError."""
        self._require(self.is_settled)
        return self._forced

    def take_forced(self) -> tuple[int, ...]:
        """Returns the forced tokens, and marks them as used."""
        forced, self._forced = self.get_forced(), ()
        return forced

    def get_allowed(self) -> TokenMask:
        """One flag for each id that is allowed next. Call it once `is_ready` is set. Raises EngineError."""
        self._require(self.is_ready)
        if self._forced:
            only = np.zeros(self.workers.size, dtype=np.bool_)
            only[self._forced[0]] = True
            return only
        if self._allowed is None:
            raise EngineError("the constraint allows no token here; nothing can follow")
        return self._allowed

    def get_mask(self) -> tuple[TokenMask, bool]:
        """The mask, and whether the mask allows one token only. Call it once `is_ready` is set. Raises
        EngineError."""
        return self.get_allowed(), bool(self._forced)

    def note_settled(self) -> None:
        """Records whether the forced tokens are known now, so that all parts of one step use the same state
        while workers continue. This matters because computing tokens together or one by one changes the last
        bits of later results."""
        self.was_settled = self.is_settled

    def get_age(self) -> float:
        """Seconds since the answer was requested."""
        return self._clock() - self._began

    def find_failure(self, field: str | None, cpu_seconds: float = MAX_CPU_SECONDS) -> AntiphonError | None:
        """The error if there is no answer, or if the answer takes too long; None otherwise. `field`: the
        caller's name for the constraint. `cpu_seconds`: the most seconds of CPU for the answer."""
        if self.error is not None:
            return to_callers_error(self.error, field)
        if self.is_overdue(cpu_seconds):
            return InvalidValue(TOO_LONG, param=field)
        return EngineBusy(BUSY, retry_after=RETRY_AFTER, cause=STARVED) if self.is_starved() else None

    def is_overdue(self, cpu_seconds: float = MAX_CPU_SECONDS) -> bool:
        """Whether the answer takes more CPU than allowed."""
        return not self.is_ready and self._spent() > cpu_seconds

    def is_starved(self) -> bool:
        """Whether the answer takes longer than PATIENCE, although it may have used little CPU."""
        return not self.is_ready and self.get_age() > PATIENCE

    def _begin(self) -> None:
        """Forgets the last answer and queues the next one for the workers."""
        self.is_settled = self.is_ready = self.was_settled = False
        self._forced, self._allowed, self._spent = (), None, read_zero
        self._began = self._clock()
        self.workers.put(self)

    def abandon(self) -> None:
        """Tells the workers that the guide's answers are no longer needed."""
        self.workers.abandon(self)

    def _require(self, known: bool) -> None:
        """Raises the guide's error if it has one, or EngineError unless `known` is true."""
        if self.error is not None:
            raise self.error
        if not known:
            raise EngineError("the constraint has no answer yet")

    # --- a worker

    def work(
        self, vocabulary: CompilerVocabulary, spent: Clock = read_zero, make: MatcherFactory = Matcher
    ) -> None:
        """Computes the next answer. It raises nothing: after a failure the guide has an error. `spent`: the
        CPU seconds used so far, readable from other threads. `make` makes a matcher."""
        self._spent = spent
        try:
            self._settle(vocabulary, make)
            self.is_settled = True
            self.workers.answer_ready.set()
            self._mask(vocabulary)
        except AntiphonError as error:
            self.error = error
        except BaseException as defect:  # noqa: BLE001 - native code panics with what is no Exception
            location = describe_exception(defect)
            log.error("a constraint could not be followed: %s", location)  # noqa: TRY400 - without the message
            self.error = EngineError(
                "the constraint could not be followed: its matcher failed", cause=location
            )
        finally:
            self.is_settled = self.is_ready = True
            self.workers.answer_ready.set()

    def _settle(self, vocabulary: CompilerVocabulary, make: MatcherFactory) -> None:
        """Appends the sequence's last token to the matcher, then finds and appends the forced tokens. The
        first call makes the matcher."""
        if self._matcher is None:
            self._matcher = make(self._grammar, vocabulary)
        if self._token is not None:
            self._matcher.consume([self._token])
        forced = self._matcher.find_forced()
        ends = frozenset(vocabulary.tokens.ends)
        self._matcher.consume([token for token in forced if token not in ends])
        self._over = bool(forced) and forced[-1] in ends
        self._forced = tuple(forced)

    def _mask(self, vocabulary: CompilerVocabulary) -> None:
        """Computes the mask of the token after the forced ones. Raises EngineError if the mask allows no
        token."""
        if self._matcher is None or self._over:
            return
        bits = np.frombuffer(self._matcher.compute_mask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=vocabulary.size).astype(np.bool_)
        ends = list(vocabulary.tokens.ends)
        if allowed[ends].any() and not self._matcher.is_complete:
            raise EngineError("the constraint would end where it is not complete")
        if not allowed.any():
            raise EngineError("no token of this model can satisfy the constraint here", cause=DEAD_END)
        self._allowed = allowed
