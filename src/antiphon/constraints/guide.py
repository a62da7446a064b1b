"""Computes which tokens a constraint allows next, on threads beside the decode thread.

The decode thread gives each drawn token to the `Guide` of its sequence, and reads the guide's result later.
First the result has the forced tokens, then the mask of the token after them. No function of a guide waits. A
failure becomes the error of its guide. A guide without a result allows no token.

`ModelConstraints` has the threads of one model, its checker and its recently compiled grammars. They start
with the first constraint, so a model without constraints costs nothing.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import sha256
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.constraints.checker import Checker
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import (
    DEAD_END,
    CompilerVocabulary,
    Matcher,
    TokenTable,
    is_caused_by_constraint,
)
from antiphon.constraints.segmented_lru import SegmentedLRU
from antiphon.domain.request import Constraint
from antiphon.engines.base import TokenKind
from antiphon.engines.base import Vocabulary as VocabularyTable
from antiphon.errors import AntiphonError, EngineBusy, EngineError, InvalidValue, UnsupportedParameter
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Returns seconds."""

MatcherFactory = Callable[[Grammar, CompilerVocabulary], Matcher]
"""Makes a matcher for a new text of a grammar."""

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
    the mask of the token after them is known too. After the sequence has used both parts, `advance` begins
    the next result.
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
        self.is_settled = self.is_ready = self.was_settled = False
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
        self._begin()

    # --- the decode thread

    def advance(self, token: int) -> None:
        """Continues with the sequence's next token, which must be allowed. A forced token is only marked as
        used. After any other token, the next result begins."""
        if self._forced:
            self._forced = self._forced[1:]
            return
        self._token = token
        self._begin()

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

    def _begin(self) -> None:
        """Drops the last result, and queues the guide for the next one."""
        self.is_settled = self.is_ready = self.was_settled = False
        self._forced, self._allowed, self._cpu_clock = (), None, read_zero
        self._requested_at_s = self._clock()
        self.workers.put(self)

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

    def work(
        self,
        vocabulary: CompilerVocabulary,
        cpu_clock: Clock = read_zero,
        create_matcher: MatcherFactory = Matcher,
    ) -> None:
        """Computes the next result. It raises nothing: a failure becomes the guide's error. `cpu_clock`:
        returns the CPU seconds that this result has used; other threads call it too."""
        self._cpu_clock = cpu_clock
        try:
            self._compute_forced(vocabulary, create_matcher)
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

    def _compute_forced(self, vocabulary: CompilerVocabulary, create_matcher: MatcherFactory) -> None:
        """Appends the sequence's last token to the matcher, then finds and appends the forced tokens."""
        if self._matcher is None:
            self._matcher = create_matcher(self._grammar, vocabulary)
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
            raise EngineError("the constraint would end where it is not complete")
        if not allowed.any():
            raise EngineError("no token of this model can satisfy the constraint here", cause=DEAD_END)
        self._allowed = allowed


MAX_CACHED_BYTES = 64 * 1024 * 1024
"""The most estimated bytes of cached matchers. The estimate is usually several times too high."""

MAX_MATCHERS = 1024

PER_SECOND, PER_CHARACTER, MIN_BYTES = 400e6, 100, 32 * 1024
"""Estimates the bytes of a compiled grammar, because the compiler does not report them. The estimate is the
largest of three: bytes per CPU second of compiling, bytes per character of the text, and MIN_BYTES.
Measured grammars, hostile and usual ones, had 18 to 300 MB for each second."""


class MatcherCache:
    """Caches compiled grammars of one vocabulary. A request with a cached grammar gets a copy, which costs
    microseconds. Any thread may use it."""

    def __init__(
        self, capacity: int = MAX_CACHED_BYTES, clock: Callable[[], float] = time.thread_time
    ) -> None:
        """`clock`: returns the calling thread's CPU seconds."""
        self._clock = clock
        self._matchers: SegmentedLRU[bytes, Matcher] = SegmentedLRU(capacity, MAX_MATCHERS)
        """Unused matchers, from which copies are made. A copy needs the lock, because it reads the
        matcher."""
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """The estimated bytes of all cached matchers."""
        return self._matchers.held_size

    def get_matcher(self, grammar: Grammar, vocabulary: CompilerVocabulary) -> Matcher:
        """Returns a matcher for a checked grammar. Raises EngineError if it does not compile."""
        key = sha256(repr(grammar).encode()).digest()
        with self._lock:
            matcher = self._matchers.get(key)
            if matcher is not None:
                return matcher.copy()
        start_s = self._clock()
        new_matcher = Matcher(grammar, vocabulary)
        size = max(PER_SECOND * (self._clock() - start_s), PER_CHARACTER * len(grammar.text), MIN_BYTES)
        with self._lock:
            self._matchers.put(key, new_matcher.copy(), int(size))
        return new_matcher


WORKERS = 2
"""How many threads compute masks. A thread whose work does not end is replaced."""

TEXT = frozenset({TokenKind.NORMAL, TokenKind.BYTE})
"""The kinds of tokens that can be part of constrained text."""


def build_token_table(table: VocabularyTable) -> TokenTable:
    """Returns the vocabulary in the form that constraints need. Raises UnsupportedParameter for a model
    without end tokens."""
    if not table.end_ids:
        problem = "this model has no end token, so no constrained text could end; leave the constraint out"
        raise UnsupportedParameter(problem)
    ends = frozenset(table.end_ids)
    pieces = tuple(
        piece if kind in TEXT and token not in ends else b""
        for token, (piece, kind) in enumerate(zip(table.pieces, table.kinds, strict=True))
    )
    return TokenTable(pieces, table.end_ids)


def create_cpu_clock() -> Clock:
    """Returns a clock of this thread's CPU time that any thread can read. If the system has no such clock,
    returns a wall clock."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock_id = time.pthread_getcpuclockid(threading.get_ident())

    def clock() -> float:
        try:
            return time.clock_gettime(clock_id)
        except OSError:  # the thread has ended
            return 0.0

    return clock


def measure_since(start_s: float, clock: Clock) -> float:
    """Returns the seconds of a clock since `start_s`."""
    return clock() - start_s


class MaskWorkers:
    """The threads of one engine that compute masks."""

    def __init__(self, tokens: TokenTable, tokenize: Callable[[bytes], list[int]] | None = None) -> None:
        """`tokenize`: splits a text as the model does. The constructor takes half a second for 131,072
        ids."""
        self._vocabulary = CompilerVocabulary(tokens, tokenize)
        self._compiled = MatcherCache()
        self._jobs: SimpleQueue[Guide | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stuck: set[Guide] = set()
        """Guides that were abandoned while a worker computed for them. Such a worker ends after its work."""
        self._in_progress: Counter[Guide] = Counter()
        """The number of workers that compute for each guide. A guide can be queued again, and be taken by
        another worker, a moment before the first one is done with it."""
        self._is_closed = False
        self.result_ready = threading.Event()
        for _ in range(WORKERS):
            self._start()

    @property
    def size(self) -> int:
        """The number of ids in the vocabulary."""
        return self._vocabulary.size

    def create_guide(self, grammar: Grammar, clock: Callable[[], float] = time.monotonic) -> Guide:
        """Makes a guide for a checked grammar, and queues its first result."""
        return Guide(grammar, self, clock)

    def put(self, guide: Guide) -> None:
        """Queues the guide's next result."""
        self._jobs.put(guide)

    def abandon(self, guide: Guide) -> None:
        """Drops a guide. If a worker computes for it and does not end, starts another worker."""
        guide.is_abandoned = True
        with self._lock:
            if guide in self._in_progress and guide not in self._stuck and guide.is_overdue():
                self._stuck.add(guide)
                self._start()

    def close(self) -> None:
        """Ends the workers after their current work."""
        self._is_closed = True
        for _ in range(WORKERS):
            self._jobs.put(None)

    def _start(self) -> None:
        """Starts one worker thread."""
        threading.Thread(target=self._run_worker, name="antiphon-masks", daemon=True).start()

    def _run_worker(self) -> None:
        """Computes the results of queued guides, until the workers are closed or this worker is replaced."""
        cpu = create_cpu_clock()
        while (guide := self._jobs.get()) is not None:
            if guide.is_abandoned:
                continue
            with self._lock:
                self._in_progress[guide] += 1
            try:
                guide.work(self._vocabulary, partial(measure_since, cpu(), cpu), self._compiled.get_matcher)
            finally:
                is_replaced = self._finish_guide(guide)
            if is_replaced:
                return

    def _finish_guide(self, guide: Guide) -> bool:
        """Removes a guide from the guides in progress. Returns whether another worker has replaced this
        one."""
        with self._lock:
            self._in_progress[guide] -= 1
            if not self._in_progress[guide]:
                del self._in_progress[guide]
            is_replaced = guide in self._stuck
            self._stuck.discard(guide)
        return is_replaced


LINE_BREAK = b"\n"


def split_after_line_break(
    tokenize: Callable[[bytes], list[int]], table: VocabularyTable
) -> Callable[[bytes], list[int]]:
    """Returns a function that splits the middle of a text, for a tokenizer that adds a space before every
    text.

    The function tokenizes a line break and the text, and removes the line break's tokens. If they cannot be
    separated from the text, it returns no tokens. In that case the compiler takes the longest pieces.
    """
    break_tokens = tokenize(LINE_BREAK)

    def split(text: bytes) -> list[int]:
        tokens = tokenize(LINE_BREAK + text)
        text_tokens = tokens[len(break_tokens) :]
        has_break = tokens[: len(break_tokens)] == break_tokens
        is_separable = has_break and b"".join(table.pieces[token] for token in text_tokens) == text
        return text_tokens if is_separable else []

    return split


class RevocableTokenizer:
    """The model's tokenizer, which can be disabled. Mask threads can run longer than the model. They must not
    call the tokenizer after the model has ended."""

    def __init__(self, tokenize: Callable[[bytes], list[int]]) -> None:
        self._tokenize: Callable[[bytes], list[int]] | None = tokenize
        self._lock = threading.Lock()

    def __call__(self, text: bytes) -> list[int]:
        """Returns the tokens of a text; an empty list after `revoke`."""
        with self._lock:
            return self._tokenize(text) if self._tokenize is not None else []

    def revoke(self) -> None:
        """Disables the tokenizer. Waits until no thread uses it."""
        with self._lock:
            self._tokenize = None


class ModelConstraints:
    """Checks the constraints of one model and makes guides for its sequences. Belongs to one event loop."""

    def __init__(
        self, vocabulary: Callable[[], Awaitable[VocabularyTable]], tokenize: Callable[[bytes], list[int]]
    ) -> None:
        """`tokenize`: splits a text as the model does; is called in other threads than the event loop's."""
        self._vocabulary = vocabulary
        self._tokenize = RevocableTokenizer(tokenize)
        self._checker: Checker | None = None
        self._workers: MaskWorkers | None = None
        self._start_lock = asyncio.Lock()

    async def check(self, constraint: Constraint) -> Grammar:
        """Returns the grammar of a constraint that can be followed. Raises the error that refuses the
        constraint."""
        checker, _ = await self._ensure_checker()
        return await checker.check(constraint)

    async def create_guide(self, constraint: Constraint) -> Guide:
        """Makes a guide for a constraint. Raises the error that refuses the constraint."""
        grammar = await self.check(constraint)
        _, masks = await self._ensure_checker()
        return masks.create_guide(grammar)

    async def aclose(self) -> None:
        """Ends the process and the threads. The tokenizer is not called afterwards."""
        await asyncio.to_thread(self._tokenize.revoke)
        if self._checker is not None:
            await self._checker.aclose()
        if self._workers is not None:
            self._workers.close()

    async def _ensure_checker(self) -> tuple[Checker, MaskWorkers]:
        """Returns the checker and the workers. The first call makes both."""
        async with self._start_lock:
            if self._checker is None or self._workers is None:
                table = await self._vocabulary()
                tokens = build_token_table(table)
                tokenize = (
                    split_after_line_break(self._tokenize, table) if table.space_prefix else self._tokenize
                )
                self._workers = await asyncio.to_thread(MaskWorkers, tokens, tokenize)
                self._checker = Checker(tokens)
            return self._checker, self._workers
