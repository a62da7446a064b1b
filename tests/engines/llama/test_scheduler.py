"""The scheduler: who is admitted, what is shared, and which rows one call computes."""

import random

import pytest

from antiphon.engines.base import StopCause, TokenRequest, TokenSegment
from antiphon.engines.llama.scheduler import Call, Copy, Padding, Plan, Policy, Scheduler, Span
from antiphon.engines.llama.sequence import Phase, Sequence

BUDGET = 64


def scheduler(exact: bool = True, sequences: int = 4, row_counts: tuple[int, ...] | None = None) -> Scheduler:
    counts = row_counts or tuple(range(1, sequences + 1))
    return Scheduler(Policy(sequences, chunk=16, budget=BUDGET, exact=exact, row_counts=counts))


def sequence(length: int = 5, max_tokens: int = 100, group: str | None = None, choice: int = 0) -> Sequence:
    prompt = tuple(range(1, length + 1))
    request = TokenRequest((TokenSegment(prompt),), max_tokens, group=group, choice=choice)
    return Sequence(request, prompt, context=1000)


def spans(call: Call) -> list[tuple[int | None, int, int]]:
    return [(row.sequence.slot, row.start, row.stop) for row in call.rows if isinstance(row, Span)]


def carry_out(scheduler: Scheduler, plan: Plan) -> list[Sequence]:
    """Does what a decode loop does with a plan; every drawn token is 0. Returns those that got a token."""
    given = []
    for call in plan.calls:
        for row in call.rows:
            if isinstance(row, Padding):
                continue
            assert row.start == row.sequence.computed
            row.sequence.computed = row.stop
            if row.stop == len(row.sequence.tokens):
                given.append(row.sequence)
        for sequence in [one for one in given if one.computed == len(one.tokens)]:
            if sequence.accept(0, frozenset()):
                scheduler.drop(sequence)
    return given


def step(scheduler: Scheduler, budget: int = BUDGET) -> Plan:
    plan = scheduler.plan(budget)
    carry_out(scheduler, plan)
    return plan


def test_slots_go_to_those_who_wait_longest_the_lowest_first():
    queue = scheduler()
    waiting = [sequence() for _ in range(6)]
    for one in waiting:
        queue.add(one)
    plan = queue.plan(BUDGET)
    assert plan.admitted == waiting[:4]
    assert [one.slot for one in waiting] == [0, 1, 2, 3, None, None]
    assert queue.drop(waiting[2]) == 2
    assert queue.plan(BUDGET).admitted == [waiting[4]]
    assert waiting[4].slot == 2
    assert queue.running == 4
    assert len(queue.queue) == 1


def test_nothing_to_do_is_an_empty_plan():
    for exact in (True, False):
        assert scheduler(exact).plan(BUDGET) == Plan()


def test_exact_chunks_lie_on_a_grid_in_calls_of_their_own_and_leave_the_last_token():
    queue = scheduler()
    queue.add(sequence(40))
    plan = queue.plan(BUDGET)
    assert [spans(call) for call in plan.calls] == [[(0, 0, 16)], [(0, 16, 32)], [(0, 32, 39)]]
    assert not any(row.logits for call in plan.calls for row in call.rows if isinstance(row, Span))
    carry_out(queue, plan)
    assert [spans(call) for call in queue.plan(BUDGET).calls] == [[(0, 39, 40)]]


@pytest.mark.parametrize("budget", [1, 5, 16, 20, 64])
def test_exact_chunks_of_a_prompt_do_not_depend_on_the_budget(budget):
    queue = scheduler()
    one = sequence(70)
    queue.add(one)
    seen = []
    while one.phase is not Phase.DECODE:
        seen += [spans(call)[0][1:] for call in step(queue, budget).calls]
    assert seen == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 69)]


def test_a_budget_is_kept_but_for_the_first_chunk():
    for exact, expected in ((True, [16, 16, 9]), (False, [20, 20, 10])):
        queue = scheduler(exact)
        one = sequence(50 - 8 * exact)
        queue.add(one)
        seen = []
        while one.phase is not Phase.DECODE and one.made == 0:
            plan = step(queue, budget=20)
            seen.append(sum(stop - start for call in plan.calls for _, start, stop in spans(call)))
        assert seen == expected


def test_a_pool_computes_decode_rows_and_chunks_in_one_call():
    queue = scheduler(exact=False)
    queue.add(sequence(3))
    step(queue)
    queue.add(sequence(10))
    queue.add(sequence(4))
    plan = queue.plan(BUDGET)
    assert [spans(call) for call in plan.calls] == [[(0, 3, 4), (1, 0, 10), (2, 0, 4)]]
    assert [row.logits for row in plan.calls[0].rows if isinstance(row, Span)] == [True] * 3
    assert plan.calls[0].abortable() == {queue.slots[1], queue.slots[2]}


def test_prompts_are_computed_in_the_order_of_admission():
    queue = scheduler()
    first, second = sequence(100), sequence(100)
    queue.add(first)
    queue.add(second)
    plan = queue.plan(BUDGET)
    assert {row.sequence for call in plan.calls for row in call.rows if isinstance(row, Span)} == {first}


def test_siblings_wait_for_the_first_ones_prompt_and_share_it():
    for exact in (True, False):
        queue = scheduler(exact)
        family = [sequence(100, group="g", choice=choice) for choice in range(3)]
        other = sequence(5)
        for one in (*family, other):
            queue.add(one)
        plan = queue.plan(BUDGET)
        assert plan.admitted == [family[0], other]  # who does not wait for the prompt goes on
        carry_out(queue, plan)
        while family[0].phase is Phase.PREFILL:
            assert queue.plan(BUDGET).admitted == []
            step(queue)
        plan = queue.plan(BUDGET)
        assert plan.admitted == family[1:]
        assert plan.copies == [Copy(0, 2, 99), Copy(0, 3, 99)]
        assert [one.shared for one in family] == [0, 99, 99]
        assert (2, 99, 100) in spans(plan.calls[0]) and (3, 99, 100) in spans(plan.calls[0])


def test_siblings_share_even_when_the_first_makes_one_token_only():
    for exact in (True, False):
        queue = scheduler(exact)
        family = [sequence(10, max_tokens=1, group="g", choice=choice) for choice in range(3)]
        for one in family:
            queue.add(one)
        computed = 0
        while any(one.phase is not Phase.OVER for one in family):
            plan = step(queue)
            computed += sum(stop - start for call in plan.calls for _, start, stop in spans(call))
        assert computed == 10 + 1 + 1


def test_when_the_first_sibling_leaves_the_next_one_computes_the_prompt():
    queue = scheduler()
    family = [sequence(100, group="g", choice=choice) for choice in range(3)]
    for one in family:
        queue.add(one)
    step(queue)
    queue.drop(family[0])
    assert queue.plan(BUDGET).admitted == [family[1]]
    assert family[1].shared == 0


def test_any_sibling_that_has_the_prompt_lends_it():
    queue = scheduler(sequences=2)
    family = [sequence(10, group="g", choice=choice) for choice in range(3)]
    for one in family:
        queue.add(one)
    step(queue)
    step(queue)
    queue.drop(family[0])
    plan = queue.plan(BUDGET)
    assert plan.admitted == [family[2]]
    assert plan.copies == [Copy(1, 0, 9)]


def test_equal_groups_with_other_prompts_share_nothing():
    queue = scheduler()
    queue.add(sequence(10, group="g"))
    queue.add(sequence(11, group="g"))
    assert len(queue.plan(BUDGET).admitted) == 2


def test_a_prompt_of_one_token_is_shared_by_computing_it():
    queue = scheduler()
    queue.add(sequence(1, group="g"))
    queue.add(sequence(1, group="g", choice=1))
    plan = queue.plan(BUDGET)
    assert len(plan.admitted) == 2 and plan.copies == []
    assert spans(plan.calls[0]) == [(0, 0, 1), (1, 0, 1)]


def test_gaps_between_decode_rows_are_padded_at_the_next_position_of_their_slot():
    queue = scheduler()
    one, two, three = sequence(2), sequence(30), sequence(2)
    queue.add(one)
    step(queue)
    queue.add(two)
    queue.add(three)
    step(queue, budget=1)  # the first chunk of the second
    step(queue, budget=1)  # its rest, and the third is not begun
    queue.add(sequence(30))
    step(queue, budget=1)
    plan = queue.plan(1)
    assert [row.slot if isinstance(row, Padding) else row.sequence.slot for row in plan.calls[0].rows] == [
        0,
        1,
        2,
    ]
    queue.drop(two)
    queue.add(sequence(40))
    plan = queue.plan(1)
    assert plan.calls[0].rows[1] == Padding(1, 0)


def test_decode_rows_are_padded_to_a_proved_number():
    queue = scheduler(row_counts=(2, 4))
    first, second, third = (sequence(1) for _ in range(3))
    queue.add(first)
    assert queue.plan(BUDGET).calls[0].rows[1:] == (Padding(1, 0),)
    queue.add(second)
    assert len(queue.plan(BUDGET).calls[0].rows) == 2
    queue.add(third)
    assert queue.plan(BUDGET).calls[0].rows[3:] == (Padding(3, 0),)


def test_padding_stays_within_the_slots():
    queue = scheduler(row_counts=(3, 4))
    for _ in range(4):
        queue.add(sequence(1))
    queue.plan(BUDGET)
    for slot in (0, 1, 2):
        gone = queue.slots[slot]
        assert gone is not None
        queue.drop(gone)
    for _ in range(3):
        queue.add(sequence(30))
    (decode, *_) = queue.plan(1).calls
    slots = [row.slot if isinstance(row, Padding) else row.sequence.slot for row in decode.rows]
    assert slots == [1, 2, 3]


def test_occupied_slots_are_kept_dense_when_nobody_waits():
    queue = scheduler()
    running = [sequence(3) for _ in range(4)]
    for one in running:
        queue.add(one)
    for _ in range(2):
        step(queue)
    queue.drop(running[1])
    plan = queue.plan(BUDGET)
    assert plan.copies == [Copy(3, 1, running[3].computed, moves=True)]
    assert running[3].slot == 1
    assert [slot for slot, *_ in spans(plan.calls[0])] == [0, 1, 2]
    queue.drop(running[0])
    queue.add(sequence(3))
    assert not any(copy.moves for copy in queue.plan(BUDGET).copies)


def test_a_pool_moves_nothing():
    queue = scheduler(exact=False)
    running = [sequence(3) for _ in range(4)]
    for one in running:
        queue.add(one)
    step(queue)
    queue.drop(running[0])
    assert step(queue).copies == []


def test_dropping_twice_frees_once():
    queue = scheduler()
    one, two = sequence(), sequence()
    queue.add(one)
    assert queue.drop(one) is None
    queue.add(two)
    queue.plan(BUDGET)
    assert queue.drop(two) == 0
    assert queue.drop(two) is None
    assert two.phase is Phase.OVER
    assert queue.slots == [None] * 4


def test_a_sequence_ends_for_the_first_reason_that_holds():
    one = Sequence(TokenRequest((TokenSegment((1, 2)),), 3, stop_token_ids=(5, 9)), (1, 2), context=100)
    assert one.accept(4, frozenset({9})) is None
    assert one.accept(9, frozenset({9})) is StopCause.END
    assert one.accept(5, frozenset({9})) is StopCause.STOP_TOKEN
    short = Sequence(TokenRequest((TokenSegment((1, 2)),), 99), (1, 2), context=4)
    assert short.accept(3, frozenset()) is None
    assert short.accept(3, frozenset()) is StopCause.LENGTH


def test_the_state_of_a_sequence_is_shown():
    one = sequence(5)
    assert repr(one) == "<Sequence queued slot=None 0/5>"
    queue = scheduler()
    queue.add(one)
    step(queue)
    assert repr(one) == "<Sequence decode slot=0 4/5>"


@pytest.mark.parametrize("exact", [True, False])
def test_every_sequence_ends_however_they_come_and_go(exact):
    """Many arrivals, siblings and departures: nobody starves, and no slot is given twice."""
    dice = random.Random(5)
    queue = scheduler(exact, sequences=5, row_counts=(2, 3, 5))
    left = [
        sequence(dice.randint(1, 90), dice.randint(1, 12), dice.choice([None, "a", "b"]), index)
        for index in range(120)
    ]
    alive: set[Sequence] = set()
    for _ in range(4000):
        if left and dice.random() < 0.5:
            alive.add(left[-1])
            queue.add(left.pop())
        if alive and dice.random() < 0.05:
            gone = dice.choice(sorted(alive, key=id))
            queue.drop(gone)
        plan = queue.plan(dice.choice([1, 16, BUDGET]))
        alive = {one for one in alive if one.phase is not Phase.OVER}
        assert bool(plan.calls) == bool(alive)
        slots = [one.slot for one in alive if one.slot is not None]
        assert len(slots) == len(set(slots)) == queue.running
        assert all(queue.slots[slot] is not None for slot in slots)
        for call in plan.calls:
            rows = [row.slot if isinstance(row, Padding) else row.sequence.slot for row in call.rows]
            decoding = not call.prefills()
            if exact and decoding:
                assert rows == list(range(rows[0] or 0, (rows[0] or 0) + len(rows)))
                assert len(rows) in queue.policy.row_counts
        carry_out(queue, plan)
    assert not left and not any(one.phase is not Phase.OVER for one in alive)
