"""Whose texts are computed next, and what a step that goes wrong costs: the loop over a context that is no
library's."""

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.domain.request import EmbedRequest, Vectors
from antiphon.engines.base import SequenceStarted
from antiphon.engines.llama.embedding import EmbeddingLoop, EmbeddingStream
from antiphon.engines.llama.libllama.context import DecodeStatus
from antiphon.engines.llama.mailboxes import StreamEnd
from antiphon.engines.llama.sequence import SchedulingPolicy
from antiphon.errors import AntiphonError, EngineBusy, EngineError, InternalError, Overloaded

ROWS = 20
POLICY = SchedulingPolicy(sequences=4, chunk=ROWS, budget=ROWS, cells=ROWS, queue=5, queue_per_actor=3)


class Context:
    """Gives each text the vector (1, its first token); what `meanwhile` does happens in the running step."""

    def __init__(self, meanwhile: dict[int, Callable[[], Any]] | None = None) -> None:
        self.steps: list[list[int]] = []
        """The first token of each text of each step."""
        self.aborted = False
        self.meanwhile = meanwhile or {}
        self.statuses: dict[int, int] = {}
        self.broken: set[int] = set()
        """First tokens of texts whose vectors are no numbers."""
        self.faulty: set[int] = set()
        """First tokens of texts that cannot be computed for a defect of ours."""

    def compute(self, texts: list["array[int]"]) -> tuple[int, NDArray[np.float32]]:
        number = len(self.steps)
        self.steps.append([text[0] for text in texts])
        self.meanwhile.get(number, lambda: None)()
        if any(text[0] in self.faulty for text in texts):
            raise ValueError("a defect")
        status = DecodeStatus.ABORTED if self.aborted else self.statuses.get(number, DecodeStatus.DONE)
        rows = np.array([[1, text[0]] for text in texts], np.float32)
        rows[[text[0] in self.broken for text in texts]] = np.nan
        return status, rows

    def abort(self) -> None:
        self.aborted = True

    def resume(self) -> None:
        self.aborted = False


class Bench:
    """A loop, the context under it, and what was said to each request."""

    def __init__(self, policy: SchedulingPolicy = POLICY) -> None:
        self.context = Context()
        self.said: list[tuple[Any, Any]] = []
        self.loop = EmbeddingLoop(self.context, policy, self.said.extend, lambda: 0.0)

    def ask(self, *lengths: tuple[int, int], actor: str = "") -> EmbeddingStream:
        """A request whose texts begin with these numbers and have these lengths."""
        answer = EmbeddingStream(
            EmbedRequest(tuple((first,) * length for first, length in lengths), actor), 0.0
        )
        self.loop.submit(answer)
        return answer

    def run(self, steps: int) -> list[list[int]]:
        """So many steps, in this thread."""
        after = self.context.meanwhile.get(steps - 1, lambda: None)

        def last() -> None:
            after()
            self.loop.stop()
            self.context.aborted = False

        self.context.meanwhile[steps - 1] = last
        self.loop.run()
        return self.context.steps

    def of(self, answer: EmbeddingStream) -> list[Any]:
        return [event for one, event in self.said if one is answer]

    def error(self, answer: EmbeddingStream) -> AntiphonError | None:
        (end,) = [event for event in self.of(answer) if isinstance(event, StreamEnd)]
        return end.error


def test_actors_and_requests_take_turns_text_by_text() -> None:
    bench = Bench()
    bench.ask(*((number, 5) for number in (1, 2, 3, 4, 5, 6)), actor="a")
    bench.ask((11, 5), (12, 5), actor="a")
    bench.ask((21, 5), (22, 5), actor="b")
    assert bench.run(3) == [[1, 21, 11, 22], [2, 12, 3, 4], [5, 6]]


def test_a_step_holds_so_many_tokens_and_texts() -> None:
    bench = Bench()
    bench.ask((1, 12), (2, 8), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1))
    assert bench.run(3) == [[1, 2], [3, 4, 5, 6], [7]]


def test_a_long_text_goes_alone_and_is_not_passed_over_for_ever() -> None:
    bench = Bench()
    bench.ask((1, 5), (2, 5), (3, 5), actor="a")
    bench.ask((9, 3 * ROWS), actor="b")
    assert bench.run(3) == [[1], [9], [2, 3]]


def test_in_exact_mode_a_text_is_computed_alone() -> None:
    bench = Bench(SchedulingPolicy(sequences=4, chunk=ROWS, budget=ROWS, cells=ROWS, exact=True))
    bench.ask((1, 2), (2, 2))
    assert bench.run(2) == [[1], [2]]


def test_vectors_are_said_in_order_and_have_unit_length() -> None:
    bench = Bench()
    answer = bench.ask(*((number, 9) for number in (3, 4, 5)))
    bench.run(2)
    started, first, second, end = bench.of(answer)
    assert started == SequenceStarted(27, 0, 0.0) and end == StreamEnd()
    assert isinstance(first, Vectors) and isinstance(second, Vectors)
    assert (first.start, second.start) == (0, 2)
    found = np.frombuffer(first.values + second.values, "<f4").reshape(3, 2)
    assert found == pytest.approx(np.array([[1, n] / np.hypot(1, n) for n in (3, 4, 5)]), abs=1e-6)


def test_a_step_that_fails_ends_those_in_it_and_nobody_else() -> None:
    bench = Bench()
    one, other = bench.ask((1, 15), actor="a"), bench.ask((2, 15), actor="b")
    bench.context.statuses[0] = -3
    bench.run(2)
    assert isinstance(bench.error(one), EngineError) and bench.error(other) is None


def test_a_defect_in_one_text_ends_its_request_and_nobody_else() -> None:
    bench = Bench()
    bench.context.faulty = {2}
    one = bench.ask((1, 2), (2, 2), (4, 2), actor="a")
    other, alone = bench.ask((3, 2), actor="b"), bench.ask((2, 15), actor="c")
    bench.run(6)
    assert isinstance(bench.error(one), InternalError) and isinstance(bench.error(alone), InternalError)
    assert bench.error(other) is None and isinstance(bench.of(other)[1], Vectors)


def test_a_text_without_a_vector_ends_its_own_request_only() -> None:
    bench = Bench()
    one, other = bench.ask((1, 2), (2, 2), actor="a"), bench.ask((3, 2), actor="b")
    bench.context.broken = {2}
    bench.run(1)
    assert isinstance(bench.error(one), EngineError) and bench.error(other) is None
    assert not [event for event in bench.of(one) if isinstance(event, Vectors)]


@pytest.mark.parametrize("company", [False, True])
def test_leaving_aborts_a_step_that_is_for_nobody_else(company: bool) -> None:
    bench = Bench()
    leaving = bench.ask((1, 5), (2, 5), actor="a")
    other = bench.ask((7, 5), actor="b") if company else None
    seen: list[bool] = []

    def leave() -> None:
        bench.loop.close(leaving)
        seen.append(bench.context.aborted)

    bench.context.meanwhile[0] = leave
    bench.run(1)
    assert seen == [not company]
    assert other is None or bench.error(other) is None


def test_what_an_abort_ended_is_let_go_and_the_next_is_computed() -> None:
    bench = Bench()
    leaving = bench.ask((1, ROWS), (2, ROWS))
    coming: list[EmbeddingStream] = []

    def leave() -> None:
        bench.loop.close(leaving)
        coming.append(bench.ask((9, 5)))

    bench.context.meanwhile[0] = leave
    assert bench.run(2) == [[1], [9]]
    assert bench.of(leaving) == [SequenceStarted(2 * ROWS, 0, 0.0), StreamEnd()]
    assert bench.error(coming[0]) is None


def test_bounds_of_the_queue_count_requests() -> None:
    bench = Bench()
    mine = [bench.ask(*(((1, 20),) * 9), actor="a") for _ in range(4)]
    others = [bench.ask(*(((2, 20),) * 9), actor=f"b{number}") for number in range(4)]
    bench.run(1)
    refused = [answer for answer in mine if isinstance(bench.error(answer), Overloaded)]
    assert refused == mine[3:]
    assert [isinstance(bench.error(answer), EngineBusy) for answer in others] == [False, False, True, True]
