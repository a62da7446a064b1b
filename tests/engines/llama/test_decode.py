"""The decode loop over a context that computes nothing: aborts, failures, and who hears of them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import (
    DraftMode,
    KVLayout,
    PromptScores,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TokenRequest,
)
from antiphon.engines.llama.adapter_cache import AdapterCache, LoadedAdapter
from antiphon.engines.llama.decode import DecodeLoop
from antiphon.engines.llama.drafting import DraftPolicy
from antiphon.engines.llama.libllama.context import DecodeStatus
from antiphon.engines.llama.libllama.media import EncodedPart
from antiphon.engines.llama.mailboxes import Delivery, SequenceStream, StreamEnd
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import SchedulingPolicy, TokenSequence
from antiphon.engines.sampling import Sampler, SamplingState
from antiphon.errors import EngineBusy, EngineDied, EngineError, EngineUnavailable
from tests.support.waiting import wait_until

VOCABULARY = 10
PATIENCE = 20.0


class Adapter:
    """Stands for one in the library's memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        pass


class FakeContext:
    """Keeps the rows of each call and the cells of each slot; the likeliest next token is the position
    modulo 10.
    """

    def __init__(self) -> None:
        self.calls: list[list[tuple[int, int, int, bool]]] = []
        self.cells: dict[int, int] = {}
        self.flag = False
        self.rows: list[tuple[int, int, int, bool]] = []
        self.answer: Callable[[FakeContext], int] = lambda _: DecodeStatus.DONE
        self.adapters = AdapterCache(Adapter, self._turn_on, 0)
        self.on: LoadedAdapter | None = None
        """The adapter that is on."""
        self.cleared = 0
        self.switched: list[LoadedAdapter | None] = []
        self.refusing = self.broken_adapter = False
        """Whether adapters cannot be turned on, or give no numbers."""
        self.broken: set[int] = set()
        """Slots whose logits are not numbers."""

    def set_one_row_each(self, tokens: list[int], positions: list[int], sequences: list[int]) -> None:
        rows = zip(sequences, positions, tokens, strict=True)
        self.rows = [(sequence, position, token, True) for sequence, position, token in rows]

    def set_rows(
        self, at: int, tokens: Sequence[int], position: int, sequence: int, output: bool, every: bool
    ) -> None:
        last = len(tokens) - 1
        self.rows[at:] = [
            (sequence, position + i, token, every or (bool(output) and i == last))
            for i, token in enumerate(tokens)
        ]

    def set_medium(
        self, part: EncodedPart, start: int, stop: int, position: int, sequence: int, output: bool
    ) -> None:
        self.rows = [(sequence, position + index, -1, False) for index in range(start, stop)]

    def decode(self, rows: int) -> int:
        assert rows == len(self.rows)
        self.calls.append(self.rows)
        status = self.answer(self)
        if status != DecodeStatus.NO_ROOM:
            for slot, position, _, _ in self.rows:
                assert self.cells.get(slot, 0) == position, "positions follow each other"
                self.cells[slot] = position + 1
        self.outputs, self.rows = [row for row in self.rows if row[3]], []
        return status

    def read_logits(self, rows: int) -> np.ndarray:
        assert rows == len(self.outputs)
        table = np.zeros((rows, VOCABULARY), dtype=np.float32)
        for index, (slot, position, _, _) in enumerate(self.outputs):
            table[index, position % VOCABULARY] = 5
            if slot in self.broken or (self.broken_adapter and self.on is not None):
                table[index] = np.nan
        return table

    def remove(self, sequence: int, start: int = 0) -> None:
        self.cells[sequence] = min(self.cells.get(sequence, 0), start)

    def copy(self, source: int, target: int, length: int) -> None:
        assert self.cells.get(target, 0) == 0
        assert self.cells[source] >= length
        self.cells[target] = length

    def clear(self) -> None:
        self.cells.clear()
        self.cleared += 1

    def _turn_on(self, adapter: LoadedAdapter | None) -> None:
        if self.refusing and adapter is not None:
            raise EngineError("it is not taken")
        self.on = adapter
        self.switched.append(adapter)

    def abort(self) -> None:
        self.flag = True

    def resume(self) -> None:
        self.flag = False


def policy(exact: bool, **changes: Any) -> SchedulingPolicy:
    sizes: dict[str, Any] = {"chunk": 8, "budget": 16, "cells": 4000, "keeps_prefixes": False}
    return SchedulingPolicy(4, exact=exact, row_counts=(1, 2, 3, 4), **(sizes | changes))


class Bench:
    """A running loop, and what it says of each stream."""

    def __init__(self, exact: bool, context: FakeContext | None = None, **changes: Any) -> None:
        self.context = context or FakeContext()
        self.heard: dict[SequenceStream, list[object]] = {}
        self.news = threading.Condition()
        self.submitted = 0
        self.loop = DecodeLoop(
            self.context,
            Scheduler(policy(exact, **changes)),
            Sampler(VOCABULARY),
            frozenset({9}),
            self._post,
            lambda: 1.0,
        )
        self.thread = threading.Thread(target=self.loop.run, daemon=True)

    def _post(self, deliveries: list[Delivery]) -> None:
        with self.news:
            for stream, event in deliveries:
                self.heard.setdefault(stream, []).append(event)
            self.news.notify_all()

    def submit(
        self, length: int, max_tokens: int = 3, group: str | None = None, **more: Any
    ) -> SequenceStream:
        self.submitted += 1
        first = 0 if group else 1000 * self.submitted  # else prompts have nothing in common
        prompt = tuple(range(first, first + length))
        request = TokenRequest(PromptTokens(prompt), max_tokens, Sampling(0.0), group=group, **more)
        drawing = SamplingState(request.sampling, 0, None, prompt, (9,), (), VOCABULARY)
        stream = SequenceStream(TokenSequence(request, prompt, 1000, drawing), 0.0)
        self.loop.submit(stream)
        return stream

    @contextmanager
    def held(self) -> Iterator[None]:
        """The thread waits until the block is over. Then it hears at once of all that was submitted in it."""
        over = threading.Event()

        def hold() -> None:
            assert over.wait(PATIENCE)

        self.loop.inbox.put(hold)
        try:
            yield
        finally:
            over.set()

    def wait_for_free_cells(self) -> None:
        """The thread tells of a sequence's end, and frees its cells before it computes anything else."""
        wait_until(lambda: not any(tuple(self.context.cells.values())))

    def all_of(self, stream: SequenceStream) -> list[object]:
        """Everything said of the stream, once it has ended."""
        with self.news:
            said = self.news.wait_for(
                lambda: self.heard.get(stream) and isinstance(self.heard[stream][-1], StreamEnd), PATIENCE
            )
        assert said, "the stream has not ended"
        return self.heard[stream]

    def tokens(self, stream: SequenceStream) -> list[int]:
        return [token for event in self.all_of(stream) if isinstance(event, Steps) for token in event.tokens]

    def error(self, stream: SequenceStream) -> object:
        ended = self.all_of(stream)[-1]
        assert isinstance(ended, StreamEnd)
        return ended.error


@contextmanager
def bench(
    exact: bool = True, answer: Callable[[FakeContext], int] | None = None, **changes: Any
) -> Iterator[Bench]:
    made = Bench(exact, **changes)
    if answer:
        made.context.answer = answer
    made.thread.start()
    try:
        yield made
    finally:
        made.loop.stop()
        made.thread.join(PATIENCE)
        assert not made.thread.is_alive()


@pytest.mark.parametrize("exact", [True, False])
def test_a_sequence_is_told_from_start_to_end(exact):
    with bench(exact) as made:
        stream = made.submit(20, max_tokens=4)
        started, *steps, finished, ended = made.all_of(stream)
        assert isinstance(started, SequenceStarted) and started.prompt_tokens == 20
        assert made.tokens(stream) == [9]
        assert isinstance(finished, SequenceFinished) and finished.cause is StopCause.END
        assert (finished.counts.prompt_tokens, finished.counts.completion_tokens) == (20, 1)
        assert ended == StreamEnd() and len(steps) == 1
        load = made.loop.measure_load()
        assert (load.running, load.queued, load.free_sequences, load.cells_used) == (0, 0, 4, 0)
        assert (load.prefill_tokens, load.decoded_tokens) == (20, 1)
        made.wait_for_free_cells()


def test_closing_a_sequence_in_prefill_aborts_the_running_decode():
    entered = threading.Event()

    def hang(context: FakeContext) -> int:
        entered.set()
        wait_until(lambda: context.flag)
        return DecodeStatus.ABORTED

    with bench(answer=hang) as made:
        stream = made.submit(5)
        assert entered.wait(PATIENCE)
        made.context.answer = lambda _: DecodeStatus.DONE
        made.loop.close(stream)
        assert made.error(stream) is None
        assert made.tokens(stream) == []
        made.wait_for_free_cells()


def test_closing_one_of_several_that_only_decode_aborts_nothing():
    entered, release = threading.Event(), threading.Event()

    def slow(context: FakeContext) -> int:
        if len(context.rows) == 2 and all(output for *_, output in context.rows):
            entered.set()
            assert release.wait(PATIENCE)
        assert not context.flag
        return DecodeStatus.DONE

    with bench(answer=slow) as made:
        with made.held():
            leaver, other = made.submit(1, max_tokens=7), made.submit(1, max_tokens=7)
        assert entered.wait(PATIENCE)
        made.loop.close(leaver)
        assert not made.context.flag
        release.set()
        assert made.error(leaver) is None
        assert made.tokens(other) == [0, 1, 2, 3, 4, 5, 6]


def test_closing_the_only_sequence_aborts_whatever_runs():
    entered = threading.Event()

    def hang(context: FakeContext) -> int:
        if len(context.calls) < 3:
            return DecodeStatus.DONE
        entered.set()
        wait_until(lambda: context.flag)
        return DecodeStatus.ABORTED

    with bench(answer=hang) as made:
        stream = made.submit(1, max_tokens=100)
        assert entered.wait(PATIENCE)
        made.loop.close(stream)
        assert made.error(stream) is None


def test_an_aborted_batch_is_computed_again_for_the_others():
    """In a pool, prompts of several sequences and decode rows share a batch."""
    begun, submitted, entered = threading.Event(), threading.Event(), threading.Event()

    def once(context: FakeContext) -> int:
        if not begun.is_set():
            begun.set()
            assert submitted.wait(PATIENCE)
        elif not entered.is_set():
            assert {slot for slot, *_ in context.rows} == {0, 1, 2}
            entered.set()
            wait_until(lambda: context.flag)
            return DecodeStatus.ABORTED
        return DecodeStatus.DONE

    with bench(exact=False, answer=once) as made:
        first = made.submit(12, max_tokens=6)
        assert begun.wait(PATIENCE)
        leaver, other = made.submit(4), made.submit(3, max_tokens=4)
        submitted.set()
        assert entered.wait(PATIENCE)
        made.loop.close(leaver)
        assert made.tokens(first) == [1, 2, 3, 4, 5, 6]
        assert made.tokens(other) == [2, 3, 4, 5]
        assert made.tokens(leaver) == []


def test_a_decode_that_others_lost_once_is_not_aborted_again():
    """Else those who come and go could keep the others from ever computing their prompts."""
    entered = threading.Semaphore(0)
    proceed = threading.Semaphore(0)
    seen: list[bool] = []

    def pause(context: FakeContext) -> int:
        entered.release()
        assert proceed.acquire(timeout=PATIENCE)
        seen.append(context.flag)
        return DecodeStatus.ABORTED if context.flag else DecodeStatus.DONE

    with bench(exact=False, answer=pause) as made:
        first = made.submit(2, max_tokens=1)
        assert entered.acquire(timeout=PATIENCE)
        leavers, stayer = [made.submit(4), made.submit(4)], made.submit(4, max_tokens=1)
        proceed.release()
        for leaver in leavers:
            assert entered.acquire(timeout=PATIENCE)
            made.loop.close(leaver)
            proceed.release()
        for _ in range(9):
            proceed.release()
        assert made.tokens(stayer) == [3]
        assert made.tokens(first) == [1]
        assert seen[:3] == [False, True, False]


def test_an_abort_that_nobody_else_felt_allows_the_next():
    entered = threading.Semaphore(0)

    def hang(context: FakeContext) -> int:
        entered.release()
        wait_until(lambda: context.flag)
        return DecodeStatus.ABORTED

    with bench(exact=False, answer=hang) as made:
        for _ in range(3):
            leaver = made.submit(5)
            assert entered.acquire(timeout=PATIENCE)
            made.loop.close(leaver)
            assert made.error(leaver) is None


def test_a_failed_batch_ends_its_sequences_and_no_others():
    def fail(context: FakeContext) -> int:
        return -3 if len(context.rows) == 6 else DecodeStatus.DONE

    with bench(answer=fail) as made:
        bad, good = made.submit(7), made.submit(4, max_tokens=2)
        assert isinstance(made.error(bad), EngineError)
        assert made.tokens(good) == [3, 4]
        made.wait_for_free_cells()


def test_no_room_is_a_failure_that_is_told():
    with bench(exact=False, answer=lambda _: DecodeStatus.NO_ROOM) as made:
        assert isinstance(made.error(made.submit(4)), EngineError)


def test_logits_that_are_no_numbers_end_one_sequence_only():
    with bench() as made:
        made.context.broken = {1}
        with made.held():
            good, bad = made.submit(4, max_tokens=2), made.submit(4)
        assert isinstance(made.error(bad), EngineError)
        assert made.tokens(good) == [3, 4]


def test_a_defect_of_the_thread_ends_all_and_refuses_new_ones():
    def crash(context: FakeContext) -> int:
        raise RuntimeError("a defect")

    release = threading.Event()

    def later(context: FakeContext) -> int:
        assert release.wait(PATIENCE)
        return crash(context)

    with bench(answer=later) as made:
        with made.held():
            running = [made.submit(4) for _ in range(4)]
            waiting = made.submit(4)
        wait_until(lambda: made.loop.measure_load().queued == 1)
        release.set()
        assert all(isinstance(made.error(stream), EngineDied) for stream in running)
        assert isinstance(made.error(waiting), EngineUnavailable)
        made.thread.join(PATIENCE)
        with pytest.raises(EngineUnavailable):
            made.submit(4)
        with pytest.raises(EngineUnavailable):
            made.loop.measure_load()


def test_stopping_ends_every_sequence():
    entered = threading.Event()

    def hang(context: FakeContext) -> int:
        entered.set()
        wait_until(lambda: context.flag)
        return DecodeStatus.ABORTED

    with bench(answer=hang) as made:
        with made.held():
            streams = [made.submit(8) for _ in range(6)]
        assert entered.wait(PATIENCE)
        made.loop.stop()
        assert [type(made.error(stream)) for stream in streams] == [EngineDied] * 4 + [EngineUnavailable] * 2


@pytest.mark.parametrize(
    ("readers", "step_latency", "most"),
    [(1, 0.1, 128), (2, 0.1, 256), (3, 0.1, 384), (1, 0.05, 64), (1, 1.0, 500)],
)
def test_slow_prompts_get_smaller_parts_beside_decoding(readers, step_latency, most):
    """A clock that jumps with every call makes each prompt token look slow."""
    made = Bench(exact=False)
    times = iter(range(10**6))
    made.loop = DecodeLoop(
        made.context,
        Scheduler(policy(False, budget=500, step_latency=step_latency)),
        Sampler(VOCABULARY),
        frozenset(),
        made._post,
        lambda: next(times),
    )
    talks, come = threading.Event(), threading.Event()

    def hold(context: FakeContext) -> int:
        if len(context.calls) == 2:  # the talker's first token is out
            talks.set()
            assert come.wait(PATIENCE)
        return DecodeStatus.DONE

    made.context.answer = hold
    made.thread = threading.Thread(target=made.loop.run, daemon=True)
    made.thread.start()
    talker = made.submit(30, max_tokens=900)
    assert talks.wait(PATIENCE)
    coming = [made.submit(600, max_tokens=1) for _ in range(readers)]
    come.set()
    for reader in coming:
        made.all_of(reader)
    seat = made.context.calls[0][0][0]
    parts = [sum(slot != seat for slot, *_ in rows) for rows in made.context.calls]
    made.loop.close(talker)
    made.loop.stop()
    made.thread.join(PATIENCE)
    assert max(parts) == most
    assert all(seat in {slot for slot, *_ in rows} for rows in made.context.calls), "no step leaves it out"


def test_a_full_queue_refuses_and_keeps_nothing_of_the_request():
    release = threading.Event()

    def hold(context: FakeContext) -> int:
        assert release.wait(PATIENCE)
        return DecodeStatus.DONE

    with bench(answer=hold, queue=1) as made:
        first = made.submit(4, actor="a")
        wait_until(lambda: made.loop.measure_load().running == 1)
        streams = [made.submit(4, actor="a") for _ in range(6)]  # for three free places, and one to wait
        release.set()
        errors = [made.error(stream) for stream in (first, *streams)]
        assert [type(error) for error in errors] == [type(None)] * 5 + [EngineBusy] * 2
        load = made.loop.measure_load()
        assert (load.refused, load.admitted, load.queued) == (2, 5, 0)


def test_without_room_it_frees_kept_cells_and_decodes_again():
    full = threading.Event()

    def once(context: FakeContext) -> int:
        if len(context.calls) > 4 and not full.is_set():
            full.set()
            return DecodeStatus.NO_ROOM
        return DecodeStatus.DONE

    with bench(exact=False, answer=once, keeps_prefixes=True) as made:
        made.all_of(made.submit(12))
        assert made.loop.measure_load().cells_cached == 14
        assert made.tokens(made.submit(3)) == [2, 3, 4]
        assert full.is_set()
        assert made.loop.measure_load().cells_cached == 5, "of the second alone"


def test_without_room_for_two_they_run_one_after_the_other():
    def narrow(context: FakeContext) -> int:
        return DecodeStatus.NO_ROOM if len({slot for slot, *_ in context.rows}) > 1 else DecodeStatus.DONE

    with bench(exact=False, answer=narrow) as made:
        with made.held():
            streams = [made.submit(3, max_tokens=4) for _ in range(3)]
        assert [made.tokens(stream) for stream in streams] == [[2, 3, 4, 5]] * 3
        for stream in streams:
            assert sum(isinstance(event, SequenceStarted) for event in made.heard[stream]) == 1


def test_either_of_two_that_share_a_prompt_can_leave():
    entered, release = threading.Event(), threading.Event()

    def hold(context: FakeContext) -> int:
        entered.set()
        wait_until(lambda: release.is_set() or context.flag)
        return DecodeStatus.ABORTED if context.flag else DecodeStatus.DONE

    with bench(exact=False, answer=hold) as made:
        family = [made.submit(40, 2, group="g", choice=choice) for choice in range(3)]
        assert entered.wait(PATIENCE)
        made.loop.close(family[1])
        made.loop.close(family[0])
        assert made.error(family[0]) is None and made.error(family[1]) is None
        release.set()
        assert made.tokens(family[2]) == [9]
        made.wait_for_free_cells()


def test_scores_come_in_parts_and_then_the_first_token():
    with bench(exact=False, scored_rows=3) as made:
        _, *scores, steps, finished, _ = made.all_of(made.submit(9, 1, "g", prompt_logprobs=1))
        assert [event.start for event in scores if isinstance(event, PromptScores)] == [1, 4, 7]
        sizes = [len(event.logprobs) // 4 for event in scores if isinstance(event, PromptScores)]
        assert sizes == [3, 3, 2]
        assert isinstance(steps, Steps) and isinstance(finished, SequenceFinished)
        outputs = [sum(row[3] for row in rows) for rows in made.context.calls]
        assert outputs == [3, 3, 2, 1]


def test_times_are_counted():
    made = Bench(exact=False)
    times = iter(range(10**6))
    made.loop = DecodeLoop(
        made.context,
        Scheduler(policy(False)),
        Sampler(VOCABULARY),
        frozenset(),
        made._post,
        lambda: float(next(times)),
    )
    made.thread = threading.Thread(target=made.loop.run, daemon=True)
    made.thread.start()
    made.all_of(made.submit(5, max_tokens=4))
    load = made.loop.measure_load()
    assert sum(load.queue_seconds.counts) == sum(load.first_token_seconds.counts) == 1
    assert sum(load.inter_token_seconds.counts) == 3
    assert load.inter_token_seconds.total > 0
    assert sum(load.step_gap_seconds.counts) == load.steps - 1
    made.all_of(made.submit(5, max_tokens=1))
    later = made.loop.measure_load()
    assert (
        sum(later.step_gap_seconds.counts) - sum(load.step_gap_seconds.counts) == later.steps - load.steps - 1
    )
    made.loop.stop()
    made.thread.join(PATIENCE)


# --- adapters


@contextmanager
def adapted(exact: bool = False, **changes: Any) -> Iterator[Bench]:
    """A loop that knows the adapters a and b, whose files are this one."""
    with bench(exact, **changes) as made:
        for name in "ab":
            made.loop.inbox.run_on_thread(partial(made.loop.adapter_refs.add, name, Path(__file__))).result(
                PATIENCE
            )
        yield made


def test_the_library_is_told_of_an_adapter_only_when_it_changes():
    with adapted(quantum=2) as made:
        with made.held():
            streams = [made.submit(4, 5, adapter=adapter) for adapter in (None, "a", "b")]
        assert [len(made.tokens(stream)) for stream in streams] == [5, 5, 5]
        switched = made.context.switched
        assert 3 <= len(switched) < len(made.context.calls)
        assert all(one is not other for one, other in pairwise(switched))


def test_an_unusable_adapter_ends_its_own_sequences_only():
    with adapted() as made:
        made.context.refusing = True
        bad, queued, good = made.submit(4, adapter="a"), made.submit(4, adapter="a"), made.submit(4)
        assert isinstance(made.error(bad), EngineError) and isinstance(made.error(queued), EngineError)
        assert len(made.tokens(good)) == 3
        made.context.refusing = False
        assert len(made.tokens(made.submit(4, adapter="b"))) == 3


@pytest.mark.parametrize("exact", [True, False])
def test_after_an_unsound_adapter_all_is_computed_on_clean_cells(exact):
    with adapted(exact, quantum=1) as made:
        good = made.submit(20, 7)
        wait_until(lambda: bool(made.heard.get(good)))
        made.context.broken_adapter = True
        bad = made.submit(20, adapter="a")
        error = made.error(bad)
        assert isinstance(error, EngineError) and "no numbers" in error.message
        made.context.broken_adapter = False
        wait_until(lambda: made.context.cleared == 1)  # after the error was told, and before the next call
        again = made.submit(20, adapter="a")
        assert isinstance(made.error(again), EngineError), "it is not tried again"
        assert made.context.cleared == 1
        assert made.tokens(good) == made.tokens(made.submit(20, 7))


def test_a_first_call_with_an_adapter_is_never_aborted():
    """Until an adapter has given numbers, what it leaves in the cells is looked at before others get them."""
    entered, go = threading.Event(), threading.Event()

    def slow(context: FakeContext) -> int:
        entered.set()
        assert go.wait(PATIENCE)
        return DecodeStatus.DONE

    with adapted(answer=slow) as made:
        stream = made.submit(200, adapter="a")
        assert entered.wait(PATIENCE)
        made.loop.close(stream)
        assert not made.context.flag
        go.set()
        assert made.all_of(stream)[-1] == StreamEnd()


def test_what_is_asked_of_the_loop_after_it_has_ended_is_refused():
    with adapted() as made:
        made.loop.stop()
        made.thread.join(PATIENCE)
        with pytest.raises(EngineUnavailable):
            made.loop.inbox.run_on_thread(lambda: None)


# --- drafts

ALWAYS: dict[str, Any] = {"drafts": DraftPolicy(DraftMode.ALWAYS, (1.0,) * 16, 64)}
"""Seven drafts at any cost."""


def counts_of(made: Bench, stream: SequenceStream) -> tuple[int, int]:
    """The tokens of the prediction that came true, and those that did not."""
    steps = [event for event in made.all_of(stream) if isinstance(event, Steps)]
    return sum(step.predicted for step in steps), sum(step.mispredicted for step in steps)


@pytest.mark.parametrize("layout", list(KVLayout))
def test_an_end_token_among_the_drafts_ends_the_sequence_there(layout):
    with bench(False, layout=layout, **ALWAYS) as made:
        stream = made.submit(5, max_tokens=30, prediction=(4, 5, 6, 7, 8, 9, 0, 1, 2))
        assert made.tokens(stream) == [4, 5, 6, 7, 8, 9]
        assert counts_of(made, stream) == (5, 2), "the rows behind the end were computed in vain"
        assert len(made.context.calls) == 2
        finished = made.all_of(stream)[-2]
        assert isinstance(finished, SequenceFinished) and finished.cause is StopCause.END
        assert finished.counts.completion_tokens == 6
        load = made.loop.measure_load()
        assert (load.drafts, load.accepted_drafts, load.steps) == (7, 5, 2)
        made.wait_for_free_cells()


@pytest.mark.parametrize("layout", list(KVLayout))
def test_a_wrong_draft_is_followed_by_the_right_token_and_its_cells_are_freed(layout):
    """The context refuses positions that do not follow each other, so no cell of a wrong draft is left."""
    prediction = (4, 5, 1, 1, 8)
    with bench(False, layout=layout, **ALWAYS) as made:
        stream = made.submit(5, max_tokens=5, prediction=prediction)
        assert made.tokens(stream) == [4, 5, 6, 7, 8]
        assert counts_of(made, stream) == (1, 2)
        made.wait_for_free_cells()


def test_drafts_end_with_max_tokens():
    with bench(False, **ALWAYS) as made:
        stream = made.submit(5, max_tokens=3, prediction=(4, 5, 6, 7, 8))
        assert made.tokens(stream) == [4, 5, 6]
        assert [len(call) for call in made.context.calls] == [5, 2], "what cannot be drawn is not computed"


def test_a_sequence_with_drafts_delays_no_prompt():
    begun, submitted = threading.Event(), threading.Event()

    def wait_once(context: FakeContext) -> int:
        if not begun.is_set():
            begun.set()
            assert submitted.wait(PATIENCE)
        return DecodeStatus.DONE

    with bench(False, wait_once, **ALWAYS) as made:
        first = made.submit(1, max_tokens=9, prediction=tuple(range(9)))
        assert begun.wait(PATIENCE)
        second = made.submit(8, max_tokens=2)
        submitted.set()
        assert made.tokens(first) == list(range(9)) and made.tokens(second) == [7, 8]
        with_prompt = [call for call in made.context.calls if any(not output for *_, output in call)]
        assert [len(call) for call in with_prompt] == [9], "a row of the first beside the second's prompt"


def test_an_aborted_call_with_drafts_is_computed_again():
    entered = threading.Event()

    def once(context: FakeContext) -> int:
        if len(context.rows) == 8 and not entered.is_set():
            entered.set()
            return DecodeStatus.ABORTED
        return DecodeStatus.DONE

    with bench(False, once, **ALWAYS) as made:
        stream = made.submit(1, max_tokens=9, prediction=tuple(range(9)))
        assert made.tokens(stream) == list(range(9)) and entered.is_set()


class BreaksLate(FakeContext):
    """From the position 7 on, the first slot has no numbers until the cache is cleared."""

    def read_logits(self, rows: int) -> np.ndarray:
        table = super().read_logits(rows)
        for index, (slot, position, _, _) in enumerate(self.outputs):
            if slot == 0 and position >= 7 and not self.cleared:
                table[index] = np.nan
        return table


@pytest.mark.parametrize("has_drafts", [True, False])
def test_a_row_without_numbers_ends_its_sequence_after_the_tokens_before_it(has_drafts):
    """Beside it, a sequence with drafts is computed again. It has two rows in each step if the other has one,
    so that both are in the call without numbers."""
    policy_of_drafts = DraftPolicy(DraftMode.ALWAYS, (1.0,) * 16, 64 if has_drafts else 1)
    with bench(False, context=BreaksLate(), drafts=policy_of_drafts) as made:
        with made.held():
            broken = made.submit(5, max_tokens=20, prediction=(4, 5, 6, 7, 8) if has_drafts else ())
            whole = made.submit(2, max_tokens=20, prediction=(1, 2, 3, 4, 5, 0, 7, 8))
        assert isinstance(made.error(broken), EngineError)
        assert made.tokens(broken) == [4, 5, 6]
        assert made.tokens(whole) == list(range(1, 10))
        assert made.context.cleared == 1
