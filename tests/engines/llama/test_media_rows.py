"""Where media are among the rows of sequences: their numbers, their positions, and the calls that compute
them beside running answers."""

from array import array

import numpy as np
import pytest

from antiphon.domain.request import Sampling
from antiphon.engines.base import PromptTokens, TokenRequest
from antiphon.engines.llama.batch import DecodeCall, free_cells
from antiphon.engines.llama.libllama.media import EncodedPart
from antiphon.engines.llama.media import MOST_NUMBERED, MediaNumbers, MediaRun
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import TokenSequence
from tests.engines.llama.simulation import policy, sequence

CELLS = 40


def encoded(cells: int = CELLS, positions: int | None = None, is_causal: bool = True) -> EncodedPart:
    """A part of a medium; with `positions`, one with coordinates."""
    offsets = None if positions is None else np.zeros((3, cells), np.int32)
    return EncodedPart(np.zeros((cells, 4), np.float32), offsets, positions or cells, is_causal)


def seeing(part: EncodedPart, before: int = 5, after: int = 5, number: int = -1) -> TokenSequence:
    """A sequence whose prompt has one medium."""
    tokens = (*range(1, before + 1), *[number] * part.cells, *range(1, after + 1))
    run = MediaRun(before, before + part.cells, before, part)
    return TokenSequence(TokenRequest(PromptTokens(()), 50, Sampling(0.0)), tokens, 1000, None, (run,))


def test_a_prefix_ends_before_a_medium_that_is_not_whole():
    numbers, tall, wide = MediaNumbers(), encoded(4, 2), encoded(3, 3)
    first, second = numbers.number("a", 0, tall), numbers.number("b", 0, wide)
    assert (first, second, numbers.number("a", 0, tall), numbers.number("a", 1, wide)) == (-1, -2, -1, -3)
    tokens = array("i", [7, *[first] * 8, *[second] * 3, 8])
    whole = [numbers.round_down(tokens, length) for length in range(len(tokens) + 1)]
    assert whole == [0, 1, 1, 1, 1, 5, 5, 5, 5, 9, 9, 9, 12, 13]
    positions = [numbers.count_positions(tokens, length) for length in (0, 1, 5, 9, 12, 13)]
    assert positions == [0, 1, 3, 5, 8, 9]


def test_a_number_is_never_used_again():
    numbers, part = MediaNumbers(), encoded(1)
    found = {numbers.number(str(index), 0, part) for index in range(MOST_NUMBERED + 2)}
    assert numbers.number("0", 0, part) not in found and len(found) == MOST_NUMBERED + 2
    assert numbers.round_down(array("i", [-1]), 1) == 1, "an old number still has its size"


def test_positions_after_a_medium_with_coordinates_follow_its_longest_side():
    one = seeing(encoded(40, 8), before=5, after=5)
    assert [one.get_position(index) for index in (0, 4, 5, 6, 44, 45, 49)] == [0, 4, 5, 13, 13, 13, 17]
    assert one.lost_positions == 32
    plain = seeing(encoded(40))
    assert [plain.get_position(index) for index in (5, 6, 45)] == [5, 6, 45]


def test_an_aborted_part_of_a_medium_with_coordinates_is_computed_again_from_its_start():
    one = seeing(encoded(40, 8))
    one.id, one.computed = 3, 21
    removed: list[tuple[int, int]] = []

    class Context:
        def remove(self, sequence: int, start: int = 0) -> None:
            removed.append((sequence, start))

    plan = Scheduler(policy())._build_spans([one], 16)
    free_cells(Context(), DecodeCall(spans=list(plan)))  # type: ignore[arg-type]
    assert removed == [(3, 5)] and one.computed == 5


def advance(
    scheduler: Scheduler, budget: int, only: TokenSequence | None = None
) -> list[list[tuple[int, int, bool]]]:
    """Plans a step and notes it as computed. Returns the spans of each call, and whether each is a medium.
    `only`: the sequence whose spans are returned."""
    calls = []
    for call in scheduler.plan(budget).calls:
        spans = [span for span in call.spans if only in (None, span.sequence)]
        calls.append([(span.start, span.stop, span.medium is not None) for span in spans])
        drawing = [row for row in call.rows if row is not None]
        for row in drawing:
            row.computed += 1
        for span in call.spans:
            drawing += [span.sequence] if span.gives_logits else []
            span.sequence.note_span(span.start, span.stop)
        for each in drawing:
            if each.computed == len(each.tokens):
                each.tokens.append(9)
    return calls


@pytest.mark.parametrize("layout", ["pool", "streams"])
def test_a_medium_obeys_the_bound_of_running_answers(layout):
    scheduler = Scheduler(policy(layout))
    scheduler.add(sequence((91, 92)))
    advance(scheduler, 64)
    scheduler.add(seeing(encoded()))
    steps = [advance(scheduler, 16) for _ in range(5)]
    spans = [span for calls in steps for call in calls for span in call]
    assert spans == [(0, 5, False), (5, 21, True), (21, 37, True), (37, 45, True), (45, 50, False)]
    assert all(len(calls) == 2 for calls in steps[1:4]), "the answer goes on in a call of its own"


@pytest.mark.parametrize("layout", ["pool", "streams", "exact"])
def test_cells_that_see_each_other_are_in_one_call_alone(layout):
    scheduler = Scheduler(policy(layout))
    scheduler.add(sequence(tuple(range(100, 140))))
    scheduler.add(seeing(encoded(is_causal=False)))
    calls = [call for _ in range(5) for call in advance(scheduler, 16)]
    assert [(5, 45, True)] in calls
    assert not any(len(call) > 1 for call in calls if any(is_medium for _, _, is_medium in call))


def test_exact_chunks_of_a_medium_do_not_depend_on_others():
    def chunks(*others: TokenSequence) -> list[tuple[int, int, bool]]:
        scheduler, one = Scheduler(policy("exact")), seeing(encoded())
        for each in (*others, one):
            scheduler.add(each)
        return [span for _ in range(20) for call in advance(scheduler, 16, one) for span in call]

    alone = chunks()
    assert alone == [
        (0, 5, False),
        (5, 16, True),
        (16, 32, True),
        (32, 45, True),
        (45, 48, False),
        (48, 49, False),
    ]
    assert (
        chunks(sequence(tuple(range(100, 133))), seeing(encoded(is_causal=False), before=9, number=-2))
        == alone
    )
