"""Which tokens a constraint allows a running sequence, worked out by threads of its own beside the decode.

The decode thread tells a `Guide` which token was drawn, goes on with everybody's next step, and asks later:
first for the tokens that must follow anyway, then for the mask of the one after them. Nothing here waits, and
whatever goes wrong is an error of that guide: a guide without an answer allows nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.grammar import Grammar
from antiphon.constraints.matching import DEAD_END, Matcher, Vocabulary
from antiphon.errors import AntiphonError, EngineError
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds."""

Make = Callable[[Grammar, Vocabulary], Matcher]
"""Makes one text's way through a grammar."""

Allowed = NDArray[np.bool_]

CAP = 2.0
"""Seconds of a worker's CPU for one answer; the mean is under a millisecond. A machine that is busy makes an
answer late and does not make a constraint hard."""

PATIENCE = 60.0
"""Seconds of wall clock for one answer, its turn included: so long only where nobody gets any work done."""


def nothing() -> float:
    """The clock of a worker that has not begun."""
    return 0.0


class Desk(Protocol):
    """Where guides are worked on."""

    news: threading.Event
    """Set whenever an answer, or a part of one, has come."""

    @property
    def size(self) -> int: ...
    def put(self, guide: "Guide") -> None: ...
    def abandon(self, guide: "Guide") -> None: ...


class Guide:
    """One sequence's way through its grammar. The decode thread asks; a worker answers; never both at once.

    An answer is of two parts, which come one after the other: `settled`, forced tokens are known; `ready`,
    the mask of what follows them is. When both are used up, `advance` begins the next answer.
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
        "abandoned",
        "desk",
        "error",
        "ready",
        "seen",
        "settled",
    )

    def __init__(self, grammar: Grammar, desk: "Desk", clock: Callable[[], float] = time.monotonic) -> None:
        self.desk = desk
        self._grammar = grammar
        self._clock = clock
        self._spent: Clock = nothing
        self._matcher: Matcher | None = None
        self._over = False
        """Whether the forced tokens end the text; the worker's."""
        self.settled = self.ready = self.seen = False
        self._token: int | None = None
        self._forced: tuple[int, ...] = ()
        self._allowed: Allowed | None = None
        self.error: AntiphonError | None = None
        """Why it cannot go on."""
        self.abandoned = False
        """Whether nobody will ask any more."""
        self.settled = False
        """Whether the forced tokens are known."""
        self.ready = False
        """Whether the mask of what follows them is known too."""
        self._begin()

    # --- the decode thread

    def advance(self, token: int) -> None:
        """The sequence's next token was drawn, and was allowed."""
        if self._forced:
            self._forced = self._forced[1:]
            return
        self._token = token
        self._begin()

    def get_forced(self) -> tuple[int, ...]:
        """Tokens that must come next, in order; the last may be an end token. Once `settled`. Raises
        EngineError."""
        self._require(self.settled)
        return self._forced

    def take_forced(self) -> tuple[int, ...]:
        """The same, and they are taken as come."""
        forced, self._forced = self.get_forced(), ()
        return forced

    def allowed(self) -> Allowed:
        """One flag for each id: what may come next. Once `ready`. Raises EngineError."""
        self._require(self.ready)
        if self._forced:
            only = np.zeros(self.desk.size, dtype=np.bool_)
            only[self._forced[0]] = True
            return only
        if self._allowed is None:
            raise EngineError("the constraint allows no token here; nothing can follow")
        return self._allowed

    def next(self) -> tuple[Allowed, bool]:
        """What is allowed, and whether that is one token. Once `ready`. Raises EngineError."""
        return self.allowed(), bool(self._forced)

    def look(self) -> None:
        """Notes whether forced tokens are known, so that all of one step go by the same: workers go on
        meanwhile. Whether they are computed together or one by one changes the last bits of what follows."""
        self.seen = self.settled

    def age(self) -> float:
        """Seconds since the answer was asked for."""
        return self._clock() - self._began

    def overdue(self) -> bool:
        """Whether the answer takes more work than any may."""
        return not self.ready and self._spent() > CAP

    def is_starved(self) -> bool:
        """Whether the answer takes longer than anybody waits, though it may take no work."""
        return not self.ready and self.age() > PATIENCE

    def _begin(self) -> None:
        self.settled = self.ready = self.seen = False
        self._forced, self._allowed, self._spent = (), None, nothing
        self._began = self._clock()
        self.desk.put(self)

    def leave(self) -> None:
        """Nobody will ask any more."""
        self.desk.abandon(self)

    def _require(self, known: bool) -> None:
        if self.error is not None:
            raise self.error
        if not known:
            raise EngineError("the constraint has no answer yet")

    # --- a worker

    def work(self, vocabulary: Vocabulary, spent: Clock = nothing, make: Make = Matcher) -> None:
        """Works the next answer out. Whatever is raised on the way, the guide is left with an answer or an
        error. `spent`: seconds of CPU that this takes, as far as it is; asked from other threads. `make`:
        what makes a matcher."""
        self._spent = spent
        try:
            self._settle(vocabulary, make)
            self.settled = True
            self.desk.news.set()
            self._mask(vocabulary)
        except AntiphonError as error:
            self.error = error
        except BaseException as defect:  # noqa: BLE001 - native code panics with what is no Exception
            place = describe_exception(defect)
            log.error("a constraint could not be followed: %s", place)  # noqa: TRY400 - without the message
            self.error = EngineError("the constraint could not be followed: its matcher failed", cause=place)
        finally:
            self.settled = self.ready = True
            self.desk.news.set()

    def _settle(self, vocabulary: Vocabulary, make: Make) -> None:
        if self._matcher is None:
            self._matcher = make(self._grammar, vocabulary)
        if self._token is not None:
            self._matcher.consume([self._token])
        forced = self._matcher.forced()
        ends = frozenset(vocabulary.tokens.ends)
        self._matcher.consume([token for token in forced if token not in ends])
        self._over = bool(forced) and forced[-1] in ends
        self._forced = tuple(forced)

    def _mask(self, vocabulary: Vocabulary) -> None:
        if self._matcher is None or self._over:
            return
        bits = np.frombuffer(self._matcher.mask(), np.uint8)
        allowed = np.unpackbits(bits, bitorder="little", count=vocabulary.size).astype(np.bool_)
        ends = list(vocabulary.tokens.ends)
        if allowed[ends].any() and not self._matcher.complete:
            raise EngineError("the constraint would end where it is not complete")
        if not allowed.any():
            raise EngineError("no token of this model can satisfy the constraint here", cause=DEAD_END)
        self._allowed = allowed
