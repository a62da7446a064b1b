"""The scheduler: who is admitted, what is shared, and which rows one call computes."""

import random
from collections import Counter

import pytest

from antiphon.engines.base import PromptTokens, StopCause, TokenRequest
from antiphon.engines.llama.batch import StepPlan
from antiphon.engines.llama.kv.layout import CopyCells, TrimCells
from antiphon.engines.llama.scheduler import Scheduler
from antiphon.engines.llama.sequence import SequencePhase, TokenSequence
from antiphon.errors import EngineBusy, Overloaded
from tests.engines.llama.simulation import BUDGET, Simulation, policy, sequence, spans

LAYOUTS = ["pool", "streams", "exact"]


def other(start: int, length: int, max_tokens: int = 100, **more) -> TokenSequence:
    """A sequence whose prompt begins unlike that of any with another start."""
    return sequence(tuple(range(start, start + length)), max_tokens, **more)


# --- admission


def test_places_go_to_those_who_wait_longest():
    made = Simulation(policy())
    waiting = [other(100 * index, 5) for index in range(1, 7)]
    made.add(*waiting)
    assert made.step().admitted == waiting[:4]
    assert made.scheduler.running == 4 and len(made.scheduler.waiting) == 2
    made.scheduler.drop(waiting[2])
    assert made.step().admitted == [waiting[4]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_to_do_is_an_empty_plan(layout):
    assert Scheduler(policy(layout)).plan(BUDGET) == StepPlan()


def test_actors_take_turns():
    made = Simulation(policy(sequences=1))
    crowd = [other(100 * index, 3, 1, actor="crowd") for index in range(1, 6)]
    lone = [other(100 * index, 3, 1, actor="lone") for index in range(6, 8)]
    made.add(*crowd, *lone)
    order = []
    while made.scheduler.waiting:
        order += made.step().admitted
    assert [one.actor for one in order] == ["crowd", "lone", "crowd", "lone", "crowd", "crowd", "crowd"]
    assert [one for one in order if one.actor == "crowd"] == crowd


def test_a_full_queue_refuses_all_but_siblings():
    scheduler = Scheduler(policy(queue=3, queue_per_actor=2, sequences=1))
    runs = sequence(actor="r")
    assert scheduler.add(runs) is None
    scheduler.plan(BUDGET)
    assert scheduler.add(sequence(actor="a", group="g")) is None
    assert scheduler.add(sequence(actor="a")) is None
    refusal = scheduler.add(sequence(actor="a"))
    assert isinstance(refusal, Overloaded) and refusal.retry_after == 1.0
    assert scheduler.add(sequence(actor="a", group="g", choice=1)) is None
    busy = scheduler.add(sequence(actor="b"))
    assert isinstance(busy, EngineBusy) and busy.retry_after == 1.0
    assert scheduler.add(sequence(actor="c", group="g", choice=2)) is None
    assert scheduler.waiting.refusal_count == 2
    for one in (runs, *scheduler.waiting.list_waiting()[1:]):
        scheduler.drop(one)
    scheduler.plan(BUDGET)
    assert scheduler.add(sequence(actor="a")) is None


@pytest.mark.parametrize(
    ("queue", "own", "words"),
    [(256, 999, "than 256 requests may"), (999, 256, "than 256 requests of yours may")],
)
def test_a_refusal_says_the_bound_however_many_siblings_wait(queue, own, words):
    scheduler = Scheduler(policy(queue=queue, queue_per_actor=own, sequences=2))
    for choice in range(300):
        assert scheduler.add(sequence(group="g", choice=choice)) is None
    refusal = scheduler.add(sequence())
    assert refusal is not None and words in refusal.message


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_free_place_is_taken_without_waiting(layout):
    scheduler = Scheduler(policy(layout, queue=0, queue_per_actor=0, sequences=2))
    assert scheduler.add(sequence()) is None
    scheduler.plan(BUDGET)
    assert scheduler.add(sequence()) is None
    assert isinstance(scheduler.add(sequence()), EngineBusy)


def test_a_refusal_names_the_time_that_the_queue_takes():
    scheduler = Scheduler(policy(queue=4, queue_per_actor=9, sequences=1))
    for now in range(10):
        one = sequence(2, 1)
        scheduler.add(one)
        scheduler.plan(BUDGET)
        scheduler.drop(one, now * 3.0)
    scheduler.add(sequence())
    scheduler.plan(BUDGET)
    for _ in range(4):
        scheduler.add(sequence())
    refusal = scheduler.add(sequence(), 27.0)
    assert isinstance(refusal, EngineBusy) and refusal.retry_after == 12.0


def test_a_sequence_is_admitted_when_prompt_and_headroom_fit():
    made = Simulation(policy(cells=200))
    first, second = other(100, 100, context=200), other(300, 70, context=200)
    made.add(first, second)
    assert made.step().admitted == [first]
    made.scheduler.drop(first)
    made.add(other(500, 30, 20, context=200))
    assert len(made.step().admitted) == 2, "what the first left behind makes room"


# --- prompts


def test_exact_chunks_are_on_a_grid_and_leave_the_last_token():
    made = Simulation(policy("exact"))
    made.add(sequence(40))
    plan = made.step()
    assert [spans(call) for call in plan.calls] == [[(0, 0, 16)], [(0, 16, 32)], [(0, 32, 39)]]
    assert not any(span.gives_logits for call in plan.calls for span in call.spans)
    (call,) = made.step().calls
    assert (call.ids, call.positions, call.spans) == ([0], [39], [])


@pytest.mark.parametrize("budget", [1, 5, 16, 20, 64])
def test_exact_chunks_of_a_prompt_do_not_depend_on_the_budget(budget):
    made, one = Simulation(policy("exact")), sequence(70)
    made.add(one)
    seen = []
    while one.phase is not SequencePhase.DECODE:
        seen += [spans(call)[0][1:] for call in made.step(budget).calls]
    assert seen == [(0, 16), (16, 32), (32, 48), (48, 64), (64, 69)]


@pytest.mark.parametrize(("layout", "expected"), [("exact", [16, 16, 9]), ("pool", [20, 20, 10])])
def test_a_budget_is_kept_but_for_the_first_chunk(layout, expected):
    made, one = Simulation(policy(layout)), sequence(42 if layout == "exact" else 50)
    made.add(one)
    seen = []
    while one.completion_tokens == 0 and one.phase is not SequencePhase.DECODE:
        calls = made.step(20).calls
        seen.append(sum(stop - start for call in calls for _, start, stop in spans(call)))
    assert seen == expected


def test_a_pool_computes_decode_rows_and_chunks_in_one_call():
    made = Simulation(policy())
    first, second, third = other(100, 3), other(200, 10), other(300, 4)
    made.add(first)
    made.step()
    made.add(second, third)
    (call,) = made.step().calls
    assert (call.rows, call.positions) == ([first], [3])
    assert sorted(spans(call)) == [(1, 0, 10), (2, 0, 4)]
    assert second.completion_tokens == third.completion_tokens == 1
    assert call.list_abortable() == {second, third}


def test_short_prompts_do_not_wait_for_long_ones():
    for layout in LAYOUTS:
        made = Simulation(policy(layout, cells=10_000))
        long = other(1000, 900)
        made.add(long)
        made.step(16)
        short = other(100, 10)
        made.add(short)
        for _ in range(4):
            made.step(16)
        assert short.completion_tokens > 0
        before = long.computed
        for index in range(8):
            made.add(other(2000 + 100 * index, 15, 1))
            made.step(16)
        assert long.computed >= before + 3 * 16


# --- sharing


@pytest.mark.parametrize("layout", LAYOUTS)
def test_users_who_come_at_once_compute_what_they_share_once(layout):
    made = Simulation(policy(layout, sequences=16, cells=100_000, chunk=50, ids=64))
    shared = tuple(range(1000))
    users = [
        sequence((*shared, *range(2000 + 100 * user, 2032 + 100 * user)), 5, context=2000)
        for user in range(16)
    ]
    made.add(*users)
    made.run()
    assert made.computed == 1000 + 16 * 32 + 16 * 4
    assert made.scheduler.totals.prefix_hits == 15
    assert [one.shared_tokens for one in users] == [0, *([1000] * 15)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_siblings_share_even_when_the_first_makes_one_token_only(layout):
    made = Simulation(policy(layout, keeps_prefixes=False))
    made.add(*(sequence(10, 1, group="g", choice=choice) for choice in range(3)))
    made.run()
    assert made.computed == 10 + 1 + 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_those_who_wait_go_on_when_the_one_that_computes_leaves(layout):
    made = Simulation(policy(layout))
    family = [sequence(100, 3) for _ in range(3)]
    made.add(*family)
    assert made.step().admitted == [family[0]]
    assert family[1].waits_for is family[0]
    made.scheduler.drop(family[0])
    assert made.step().admitted == [family[1]]
    assert family[1].shared_tokens >= 48, "what the first has computed is kept"
    made.run()
    assert made.computed <= 100 + 2 + 1 + 2


def test_one_who_waits_may_leave():
    made = Simulation(policy())
    family = [sequence(100, 3) for _ in range(3)]
    made.add(*family)
    made.step()
    made.scheduler.drop(family[1])
    assert family[0].followers == 1
    made.run()


def test_a_little_in_common_is_not_waited_for():
    made = Simulation(policy())
    first, second = sequence(100), sequence((*range(1, 31), *range(500, 600)))
    made.add(first, second)
    assert made.step().admitted == [first, second]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_conversation_goes_on_where_it_ended(layout):
    made = Simulation(policy(layout))
    first = sequence(50, 10)
    made.add(first)
    made.run()
    before = made.computed
    second = sequence((*first.tokens, *range(300, 310)), 1)
    made.add(second)
    plan = made.step()
    made.run()
    assert not any(isinstance(change, CopyCells) for change in plan.changes)
    # exact: whole chunks of the prompt only
    assert second.shared_tokens == (48 if layout == "exact" else 59)
    assert made.computed - before == 70 - second.shared_tokens


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("change", [{"adapter": "a"}, {"cache_salt": "s"}, {"prompt_logprobs": 0}])
def test_another_adapter_another_salt_and_scores_share_nothing(layout, change):
    made = Simulation(policy(layout))
    made.add(sequence(50, 2))
    made.run()
    stranger = sequence(50, 2, **change)
    made.add(stranger, sequence(50, 2, **change))
    made.run()
    assert stranger.shared_tokens == 0


def test_a_pool_shares_cells_and_forks_them():
    made = Simulation(policy())
    first = sequence(60, 5)
    made.add(first)
    made.run()
    plan_of = []
    for tail in (300, 400):
        made.add(sequence((*range(1, 41), *range(tail, tail + 10)), 50))
        plan_of.append(made.step())
    assert [plan.changes for plan in plan_of] == [[CopyCells(0, 1, 40)], [CopyCells(0, 2, 40)]]
    assert made.scheduler.layout.used_cells == 40 + 10 + 10 + 1
    assert made.scheduler.layout.cached_cells == 20 + 4


def test_kept_cells_are_freed_least_recent_first_from_the_end():
    made = Simulation(policy(cells=700, ids=8))
    for index in (1, 2, 3, 1):
        made.add(other(1000 * index, 200, 1, context=700))
        made.run()
    assert made.scheduler.layout.cached_cells == 600
    made.add(other(5000, 150, 1, context=700))
    made.run()
    lengths = [made.scheduler.layout.match(other(1000 * index, 201)).length for index in (1, 2, 3)]
    assert lengths == [200, 136, 200]


def test_a_pool_keeps_no_more_than_it_may():
    made = Simulation(policy(max_kept_cells=50))
    for index in range(1, 5):
        made.add(other(100 * index, 30, 1))
        made.run()
        assert made.scheduler.layout.cached_cells <= 50
    assert made.scheduler.layout.match(other(400, 31)).length == 30


def test_ids_are_taken_back_when_they_run_out():
    made = Simulation(policy(sequences=2, ids=3))
    for index in range(1, 9):
        made.add(other(100 * index, 20, 1))
        made.run()
    assert made.scheduler.layout.cached_cells == 60
    made.add(sequence((*range(700, 715), 1, 2, 3), 1))
    made.run()


def test_nothing_stays_when_nothing_is_to_be_kept():
    for layout in LAYOUTS:
        made = Simulation(policy(layout, keeps_prefixes=False))
        made.add(sequence(50, 2))
        made.run()
        assert made.scheduler.layout.cached_cells == 0
        assert not any(made.cache.values())


# --- cells run out


def test_the_youngest_yields_when_cells_run_out_and_comes_back():
    made = Simulation(policy(cells=150, sequences=4))
    crowd = [other(1000 * index, 20, 60, context=150) for index in range(1, 5)]
    made.add(*crowd)
    admitted: Counter[TokenSequence] = Counter()
    while made.scheduler.running or made.scheduler.waiting:
        admitted.update(made.step().admitted)
        if crowd[0].phase is not SequencePhase.OVER:
            assert crowd[0].id is not None, "the oldest is never put back"
    assert set(admitted.values()) == {1}
    assert made.scheduler.totals.preemptions > 0
    assert [one.completion_tokens for one in crowd] == [60] * 4


def test_without_room_kept_cells_go_before_the_youngest():
    made = Simulation(policy())
    made.add(other(500, 30, 1))
    made.run()
    first, second = other(100, 5), other(200, 5)
    made.add(first, second)
    made.step()
    assert made.scheduler.make_room(5) and made.scheduler.layout.cached_cells == 0
    assert made.scheduler.make_room(5) and second.phase is SequencePhase.QUEUED
    assert made.step().admitted == [] and second.phase is SequencePhase.QUEUED
    assert made.scheduler.make_room(5), "what the youngest had computed is kept, and given up"
    assert not made.scheduler.make_room(5)
    made.scheduler.drop(first)
    made.step()
    assert second.id is not None


# --- adapters


def test_adapters_take_turns_of_some_steps():
    made = Simulation(policy(quantum=3))
    made.add(*(other(100 * index, 4, 30, adapter="ab"[index % 2]) for index in range(1, 5)))
    served = [made.step().calls[0].adapter for _ in range(12)]
    assert served == ["b"] * 3 + ["a"] * 3 + ["b"] * 3 + ["a"] * 3
    made.run()


def test_a_turn_lasts_some_steps_and_some_time():
    made = Simulation(policy(quantum=3, min_turn=1.0))
    made.add(*(other(100 * index, 4, 60, adapter="ab"[index]) for index in range(2)))
    served = []
    for now in (0.0, 0.1, 0.2, 0.3, 0.9, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0):
        plan = made.scheduler.plan(BUDGET, now)
        made.carry_out(plan)
        served.append(plan.calls[0].adapter)
    assert served == [*"aaaaa", *"bbb", *"aaa"]


class Unsettled:
    """A guide that does not know yet what must come."""

    was_settled = False


def test_an_adapter_has_no_turn_while_all_wait_for_constraints():
    made = Simulation(policy(quantum=3, min_turn=100.0))
    held, free = (other(100 * index, 4, 60, adapter="ab"[index]) for index in range(2))
    made.add(held, free)
    made.step()
    assert made.step().calls[0].adapter == "a"
    held.guide = Unsettled()  # type: ignore[assignment]
    assert [made.step().calls[0].adapter for _ in range(5)] == ["b"] * 5


@pytest.mark.parametrize("layout", ["streams", "exact"])
def test_lanes_of_an_adapter_lie_together(layout):
    """Rows of lanes between them would be computed and thrown away."""
    made = Simulation(policy(layout, sequences=8, quantum=2))
    made.add(*(other(100 * index, 4, 60, adapter="abcd"[index % 4]) for index in range(1, 9)))
    rows = [len(made.step().calls[0].rows) for _ in range(80)]
    assert set(rows[40:]) == {2}


@pytest.mark.parametrize("layout", ["streams", "exact"])
def test_streams_of_an_adapter_close_a_gap_between_them(layout):
    made = Simulation(policy(layout, sequences=6, quantum=2))
    ends, middle = [other(100 * index, 4, 60, adapter="a") for index in (1, 2)], other(300, 4, 6, adapter="a")
    beside = [other(100 * index, 4, 60, adapter="b") for index in (4, 5)]
    made.add(ends[0], middle, ends[1], *beside)
    made.step()
    assert [one.id for one in (ends[0], middle, ends[1])] == [0, 1, 2]
    while middle in made.scheduler.list_running():
        made.step()
    assert {len(made.step().calls[0].rows) for _ in range(20)} == {2}


def test_the_base_model_is_an_adapter_like_any_other():
    made = Simulation(policy(quantum=2))
    made.add(other(100, 4, 30), other(200, 4, 30, adapter="a"))
    assert [made.step().calls[0].adapter for _ in range(6)] == [None, None, "a", "a", None, None]


# --- scores


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_of_a_scored_prompt_gives_logits(layout):
    made = Simulation(policy(layout, scored_rows=16))
    one = sequence(40, 2, prompt_logprobs=0)
    made.add(one)
    seen = []
    while one.needs_scores:
        seen += [(span.start, span.stop, span.is_scored) for call in made.step().calls for span in call.spans]
    assert seen == [(0, 16, True), (16, 32, True), (32, 39, True)]
    assert one.phase is SequencePhase.DECODE
    made.run()


def test_scores_alone_ask_for_no_decode_row():
    made = Simulation(policy())
    one = sequence(10, 0, prompt_logprobs=0)
    made.add(one)
    made.step()
    assert one.is_complete and made.step().calls == []
    made.scheduler.drop(one)
    lone = sequence(1, 0, prompt_logprobs=0)
    made.add(lone)
    assert made.step().calls == [] and lone.is_complete


# --- lanes


def test_gaps_between_decode_rows_are_padded():
    made = Simulation(policy("exact"))
    one, two, three = other(100, 2), other(200, 60), other(300, 2)
    made.add(one)
    made.step()
    made.add(two, three)
    made.step(1)
    made.step(1)
    (call, *_) = made.step(1).calls
    assert call.rows == [one, None, three]
    assert call.ids == [0, 1, 2]
    assert call.positions[1] == two.computed - 16


def test_decode_rows_are_padded_to_a_proved_number():
    made = Simulation(policy("exact", row_counts=(2, 4)))
    crowd = [other(100 * index, 1) for index in range(1, 4)]
    seen = []
    for one in crowd:
        made.add(one)
        seen.append(len(made.step().calls[0].rows))
    assert seen == [2, 2, 4]


def test_padding_stays_within_the_lanes():
    made = Simulation(policy("exact", row_counts=(3, 4)))
    crowd = [other(100 * index, 1) for index in range(1, 5)]
    made.add(*crowd)
    made.step()
    for one in crowd[:3]:
        made.scheduler.drop(one)
    made.add(*(other(1000 * index, 30) for index in range(1, 4)))
    assert made.step(1).calls[0].ids == [1, 2, 3]


def test_running_lanes_are_kept_together_when_nobody_waits():
    made = Simulation(policy("exact", keeps_prefixes=False))
    crowd = [other(100 * index, 3) for index in range(1, 5)]
    made.add(*crowd)
    made.step()
    made.step()
    made.scheduler.drop(crowd[1])
    plan = made.step()
    assert plan.changes[-2:] == [CopyCells(3, 1, 3), TrimCells(3)]
    assert crowd[3].id == 1 and plan.calls[0].ids == [0, 1, 2]


def test_what_is_kept_makes_way_for_a_running_lane_and_stays():
    made = Simulation(policy("streams"))
    crowd = [other(100 * index, 20) for index in range(1, 4)]
    made.add(*crowd)
    made.step()
    made.scheduler.drop(crowd[1])
    made.step()
    assert crowd[2].id == 1
    assert made.scheduler.layout.match(other(200, 21)).length == 20


def test_a_stream_is_copied_when_much_of_what_it_holds_is_left():
    made = Simulation(policy("streams"))
    made.add(sequence(100, 1))
    made.run()
    made.add(sequence((*range(1, 31), *range(300, 310)), 1))
    assert made.step().changes == [CopyCells(0, 1, 30)]
    made.run()
    made.add(sequence((*range(1, 71), *range(300, 310)), 1))
    assert made.step().changes == [TrimCells(0, 70)]


# --- sequences


def test_dropping_twice_frees_once():
    scheduler = Scheduler(policy())
    one, two = sequence(), sequence()
    scheduler.add(one)
    scheduler.drop(one)
    scheduler.add(two)
    scheduler.plan(BUDGET)
    scheduler.drop(two)
    scheduler.drop(two)
    assert two.phase is SequencePhase.OVER
    assert scheduler.running == 0 and not scheduler.waiting


def test_a_sequence_ends_for_the_first_reason_that_holds():
    one = TokenSequence(TokenRequest(PromptTokens((1, 2)), 3, stop_token_ids=(5, 9)), (1, 2), context=100)
    assert one.accept(4, frozenset({9})) is None
    assert one.accept(9, frozenset({9})) is StopCause.END
    assert one.accept(5, frozenset({9})) is StopCause.STOP_TOKEN
    short = TokenSequence(TokenRequest(PromptTokens((1, 2)), 99), (1, 2), context=4)
    assert short.accept(3, frozenset()) is None
    assert short.accept(3, frozenset()) is StopCause.LENGTH


def test_the_state_of_a_sequence_is_shown():
    one = sequence(5)
    assert repr(one) == "<Sequence queued id=None 0/5>"
    made = Simulation(policy())
    made.add(one)
    made.step()
    assert repr(one) == "<Sequence decode id=0 5/6>"


# --- all together


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_everybody_ends_however_they_come_and_go(layout, seed):
    """Many arrivals, siblings, shared beginnings, adapters, departures and too few cells. The simulation
    checks at each step that everybody goes on from their own tokens, and that the accounts are true."""
    dice = random.Random(seed)
    rules = policy(
        layout,
        sequences=5,
        ids=dice.choice([5, 7, 16]),
        row_counts=(2, 3, 5),
        cells=dice.choice([130, 300]),
        quantum=dice.choice([1, 4]),
        scored_rows=dice.choice([8, 32]),
        keeps_prefixes=dice.random() < 0.8,
    )
    made = Simulation(rules, lambda one: dice.randrange(3), tick=0.1)
    starts = [tuple(dice.randrange(2) for _ in range(60)) for _ in range(4)]
    left = []
    for index in range(150):
        start = dice.choice(starts)[: dice.randint(1, 60)]
        prompt = (*start, *(dice.randrange(3) for _ in range(dice.randint(0, 30))))
        scored = dice.choice([None, None, None, 1])
        more = {
            "group": dice.choice([None, "a", "b"]),
            "actor": dice.choice("xyz"),
            "adapter": dice.choice([None, None, "l"]),
            "prompt_logprobs": scored,
        }
        left.append(sequence(prompt, dice.randint(0 if scored else 1, 25), context=128, choice=index, **more))
    alive: set[TokenSequence] = set()
    for _ in range(6000):
        if left and dice.random() < 0.4:
            alive.add(left[-1])
            made.add(left.pop())
        if alive and dice.random() < 0.05:
            made.scheduler.drop(dice.choice(sorted(alive, key=lambda one: one.arrival)))
        plan = made.step(dice.choice([1, 16, BUDGET]))
        for one in alive:
            if one.is_complete and one.has_started:
                made.scheduler.drop(one)
        alive = {one for one in alive if one.phase is not SequencePhase.OVER}
        assert plan.calls or not alive or plan.admitted
        if not left and not alive:
            break
    assert not left and not alive
    made.scheduler.layout.forget_all()
    made.check()
    assert made.scheduler.running == 0 and not made.scheduler.waiting
    assert not any(made.cache.values()), "no cell leaks"


def test_a_low_priority_comes_first_within_its_actor_only():
    made = Simulation(policy(sequences=1))
    asked = [("a", 5), ("a", 0), ("b", 9), ("a", -2), ("b", 9), ("a", 0)]
    waiting = [
        other(100 * at, 3, 1, actor=actor, priority=number) for at, (actor, number) in enumerate(asked, 1)
    ]
    made.add(*waiting)
    order = []
    while made.scheduler.waiting or made.scheduler.running:
        order += made.step().admitted
    assert [waiting.index(one) for one in order] == [3, 2, 1, 4, 5, 0]
