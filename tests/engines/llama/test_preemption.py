"""Shares of callers: who holds more places than its share gives one to another that waits with less."""

import itertools
import random
from collections import Counter

import pytest

from antiphon.engines.llama.queue import MIN_RUN_SECONDS, YIELD_DELAY
from antiphon.engines.llama.sequence import SequencePhase, TokenSequence
from tests.engines.llama.simulation import Simulation, policy, sequence

LAYOUTS = ["pool", "streams", "exact"]
TICK = 0.05


def fresh(place: int, length: int = 5, max_tokens: int = 900, **more) -> TokenSequence:
    """A sequence whose prompt begins unlike that of any with another place."""
    return sequence((10_000 + place, *range(length - 1)), max_tokens, **more)


def flooded(
    layout: str, count: int = 10, places: int = 4, max_tokens: int = 300
) -> tuple[Simulation, list[TokenSequence]]:
    """One caller's long sequences have run for two seconds in every place, and more of them wait."""
    made = Simulation(policy(layout, sequences=places), tick=TICK)
    flood = [fresh(place, max_tokens=max_tokens, actor="a") for place in range(count)]
    made.add(*flood)
    while made.now < 2.0:
        made.step()
    return made, flood


def waited(made: Simulation, one: TokenSequence) -> float:
    """Seconds until it is admitted."""
    began = made.now
    made.add(one)
    while not one.has_started:
        made.step()
        assert made.now - began < 60, "it starves"
    return made.now - began


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_caller_that_fills_every_place_gives_way_to_another(layout):
    made, flood = flooded(layout, max_tokens=100)
    late = fresh(100, max_tokens=4, actor="b")
    assert YIELD_DELAY <= waited(made, late) <= YIELD_DELAY + 2 * TICK
    assert [one.phase for one in flood[:4]] == [SequencePhase.DECODE] * 3 + [SequencePhase.QUEUED], (
        "its newest one"
    )
    while late.phase is not SequencePhase.OVER:
        made.step()
    made.step()
    assert flood[3].phase is not SequencePhase.QUEUED, "it comes before all others of its caller"
    made.run()
    assert [one.completion_tokens for one in flood] == [100] * 10


@pytest.mark.parametrize("layout", LAYOUTS)
def test_callers_come_to_equal_parts_and_stay_there(layout):
    made, _ = flooded(layout, places=7)
    made.add(*(fresh(place, actor="b") for place in range(100, 110)))
    while made.now < 5.0:
        made.step()
    held = Counter(one.actor for one in made.scheduler.list_running())
    assert held == {"a": 4, "b": 3}
    before = made.scheduler.totals.preemptions
    while made.now < 10.0:
        made.step()
    assert made.scheduler.totals.preemptions == before == 3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_caller_alone_keeps_every_place(layout):
    made, _ = flooded(layout)
    while made.now < 10.0:
        made.step()
    assert made.scheduler.totals.preemptions == 0


def test_nobody_gives_way_as_long_as_the_machine_has_places():
    made, _ = flooded("pool", count=3)
    assert waited(made, fresh(100, actor="b")) == pytest.approx(TICK)
    assert made.scheduler.totals.preemptions == 0


def test_a_free_place_goes_to_the_caller_with_the_fewest():
    made = Simulation(policy(sequences=3))
    long = [fresh(place, actor="a") for place in range(4)]
    made.add(*long[:2])
    made.step()
    short = [fresh(place, max_tokens=1, actor="b") for place in range(100, 103)]
    made.add(*long[2:], *short)
    assert [made.step().admitted for _ in short] == [[one] for one in short]
    assert made.step().admitted == [long[2]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_that_gives_way_gets_on_before_it_does_again(layout):
    """Another caller's short ones come without end: each long one ends all the same."""
    made = Simulation(policy(layout, sequences=2), tick=TICK)
    long = [fresh(place, 200, 60, actor="a") for place in range(2)]
    made.add(*long)
    given = dict.fromkeys(long, 0.0)
    ran = dict.fromkeys(long, False)
    for step in itertools.count(30):
        if all(one.phase is SequencePhase.OVER for one in long):
            break
        if step % 15 == 0:
            made.add(fresh(step, max_tokens=3, actor="b"))
        made.step(16)
        for one in long:
            if ran[one] and one.phase is SequencePhase.QUEUED:
                assert made.now - given[one] > MIN_RUN_SECONDS, "it had its place for a moment only"
                given[one] = made.now
            ran[one] = one.id is not None
        assert made.now < 120
    assert made.scheduler.totals.preemptions > 1


def test_where_cells_run_out_shares_are_of_cells():
    """Two places are free, but long ones of one caller fill the pool."""
    made = Simulation(policy(sequences=5, cells=1000), tick=TICK)
    made.add(*(fresh(place, 250, 300, actor="a", context=600) for place in range(3)))
    while made.now < 2.0:
        made.step()
    assert made.scheduler.running == 3
    assert waited(made, fresh(100, 250, 5, actor="b")) <= YIELD_DELAY + 2 * TICK
    assert made.scheduler.totals.preemptions == 1
    made.run()


def test_one_larger_than_a_share_is_not_sent_back_and_forth():
    made = Simulation(policy(sequences=4, cells=1000), tick=TICK)
    made.add(fresh(0, 600, 100, actor="a"))
    made.step()
    made.add(fresh(1, 600, 100, actor="b"))
    made.run()
    assert made.scheduler.totals.preemptions == 0


def test_in_exact_mode_a_prompt_that_is_scored_keeps_its_place():
    """Its parts are shorter than those of others, so it would be computed otherwise."""
    made = Simulation(policy("exact", sequences=2, scored_rows=8), tick=TICK)
    scored = [fresh(place, 30, 60, actor="a", prompt_logprobs=0) for place in range(2)]
    made.add(*scored)
    while made.now < 2.0:
        made.step()
    waited(made, fresh(100, actor="b"))
    assert SequencePhase.OVER in {one.phase for one in scored} and made.scheduler.totals.preemptions == 0


def test_exact_mode_recomputes_forced_tokens_as_they_were():
    """The simulation compares in which calls cells were computed."""
    made, flood = flooded("exact", count=4)
    for one in flood:
        for token in range(40):
            one.accept_forced(token, frozenset())
    while made.now < 4.0:
        made.step()
    forced = [one.forced_spans for one in flood]
    assert all(forced)
    waited(made, fresh(100, max_tokens=4, actor="b"))
    back = next(one for one in flood if one.phase is SequencePhase.QUEUED)
    assert back.max_computed > 60
    made.run()
    assert back.completion_tokens == 300 and back.forced_spans in forced


def test_a_more_urgent_one_comes_before_one_that_gave_way():
    made, flood = flooded("pool", count=4)
    waited(made, fresh(100, actor="b"))
    urgent, equal = fresh(200, actor="a", priority=-1), fresh(201, actor="a")
    made.add(equal, urgent)
    for admitted in (urgent, flood[3], equal):
        made.scheduler.drop(next(one for one in made.scheduler.list_running() if one.actor == "a"))
        made.step()
        assert admitted.id is not None


def test_one_that_gave_way_may_leave():
    made, flood = flooded("pool", count=4)
    waited(made, fresh(100, actor="b"))
    made.scheduler.drop(flood[3], made.now)
    assert not made.scheduler.waiting
    made.run()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.soak) for each in range(1, 4))])
def test_no_caller_waits_long_while_another_exceeds_its_share(layout, seed):
    dice = random.Random(seed)
    places = dice.choice([2, 4, 7])
    made = Simulation(policy(layout, sequences=places, queue=10_000, queue_per_actor=5000), tick=TICK)
    unfair: dict[str, float] = {}
    ran: dict[TokenSequence, float] = {}
    for step in range(400):
        if len(made.scheduler.waiting) < 40 and dice.random() < 0.1:
            actor = dice.choice("aaabcd")
            count, length = dice.choice([(1, 5), (1, 400), (12, 30)]), dice.choice([3, 30, 300])
            group = f"g{step}" if count[0] > 1 else None
            made.add(
                *(
                    fresh(step, count[1], length, actor=actor, group=group, choice=choice)
                    for choice in range(count[0] if actor == "a" else 1)
                )
            )
        made.step(64)
        running, waiting = made.scheduler.list_running(), made.scheduler.waiting.list_waiting()
        for one in waiting:
            if one in ran:
                assert made.now - ran.pop(one) > MIN_RUN_SECONDS, "it had its place for a moment only"
        ran = {one: ran.get(one, made.now) for one in running}
        held = Counter(one.actor for one in running)
        callers = {*held, *(one.actor for one in waiting)}
        share = -(-places // len(callers)) if callers else places
        over = any(count > share for count in held.values())
        less = {one.actor for one in waiting if one.waits_for is None and held[one.actor] < share}
        unfair = {actor: unfair.get(actor, made.now) for actor in less if over}
        assert all(made.now - since <= YIELD_DELAY + MIN_RUN_SECONDS + 1.0 for since in unfair.values())
    assert made.scheduler.totals.preemptions > 0
