"""The threads that compute masks for one model.

A separate process checks a model's constraints, and guides then follow them. The process and the threads
start with the first constraint, so a model without constraints costs nothing.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from queue import SimpleQueue

from antiphon.constraints.checker import Checker
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.guide import Clock, Guide
from antiphon.constraints.matching import CompilerVocabulary, TokenTable
from antiphon.domain.request import Constraint
from antiphon.engines.base import TokenKind
from antiphon.engines.base import Vocabulary as VocabularyTable
from antiphon.errors import UnsupportedParameter

WORKERS = 2
"""How many threads follow texts. Another thread compiles the grammars of new texts, so that a slow grammar
delays no text that has begun. A thread whose work does not end is replaced."""

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


Job = tuple[Guide, bool]
"""A guide that needs a result, and whether it is the guide's first one."""


class MaskWorkers:
    """The threads of one engine that compute masks."""

    def __init__(self, tokens: TokenTable, tokenize: Callable[[bytes], list[int]] | None = None) -> None:
        """`tokenize`: splits a text as the model does. The constructor takes half a second for 131,072
        ids."""
        self._vocabulary = CompilerVocabulary(tokens, tokenize)
        self._first_jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._stuck: set[Job] = set()
        """Jobs whose guides were abandoned while a worker computed for them. Such a worker ends after its
        work."""
        self._in_progress: Counter[Job] = Counter()
        """The number of workers for each job. A guide can be queued again, and be taken by another worker, a
        moment before the earlier worker is done with it."""
        self._is_closed = False
        self.result_ready = threading.Event()
        self._start(is_first=True)
        for _ in range(WORKERS):
            self._start(is_first=False)

    @property
    def size(self) -> int:
        """The number of ids in the vocabulary."""
        return self._vocabulary.size

    def create_guide(self, grammar: Grammar, clock: Callable[[], float] = time.monotonic) -> Guide:
        """Makes a guide for a checked grammar, and queues its first result."""
        guide = Guide(grammar, self, clock)
        guide.begin()
        return guide

    def put(self, guide: Guide) -> None:
        """Queues the guide's next result."""
        (self._first_jobs if guide.is_first else self._jobs).put((guide, guide.is_first))

    def abandon(self, guide: Guide) -> None:
        """Drops a guide. If a worker computes for it and does not end, starts another worker."""
        guide.is_abandoned = True
        job = (guide, guide.is_first)
        with self._lock:
            if job in self._in_progress and job not in self._stuck and guide.is_overdue():
                self._stuck.add(job)
                self._start(guide.is_first)

    def close(self) -> None:
        """Ends the workers after their current work."""
        self._is_closed = True
        self._first_jobs.put(None)
        for _ in range(WORKERS):
            self._jobs.put(None)

    def _start(self, is_first: bool) -> None:
        """Starts one worker thread. `is_first`: whether it computes the first results of guides."""
        jobs = self._first_jobs if is_first else self._jobs
        threading.Thread(target=self._run_worker, args=(jobs,), name="antiphon-masks", daemon=True).start()

    def _run_worker(self, jobs: "SimpleQueue[Job | None]") -> None:
        """Computes the results of queued guides, until the workers are closed or this worker is replaced."""
        cpu = create_cpu_clock()
        while (job := jobs.get()) is not None:
            guide, _ = job
            if guide.is_abandoned:
                continue
            with self._lock:
                self._in_progress[job] += 1
            try:
                guide.work(self._vocabulary, partial(measure_since, cpu(), cpu))
            finally:
                is_replaced = self._finish_job(job)
            if is_replaced:
                return

    def _finish_job(self, job: Job) -> bool:
        """Removes a job from those in progress. Returns whether another worker has replaced this one."""
        with self._lock:
            self._in_progress[job] -= 1
            if not self._in_progress[job]:
                del self._in_progress[job]
            is_replaced = job in self._stuck
            self._stuck.discard(job)
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
        """Makes a guide for a constraint. Call `begin` when its sequence has a place in the batch. Raises the
        error that refuses the constraint."""
        grammar = await self.check(constraint)
        _, masks = await self._ensure_checker()
        return Guide(grammar, masks)

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
