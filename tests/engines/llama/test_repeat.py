"""A repeated call is the call that a new plan would have: two schedulers meet the same events, and only one
of them repeats calls."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.engines.base import DraftMode
from antiphon.engines.llama.batch import StepPlan
from antiphon.engines.llama.drafting import DraftPolicy
from antiphon.engines.llama.sequence import TokenSequence
from tests.engines.llama.simulation import BUDGET, Simulation, policy, sequence

FLAT = (1.0, 1.1, 1.2, 1.3)
"""The seconds of a decode of so many rows."""

LAYOUTS = ["pool", "streams", "exact"]

Event = tuple[str, int, int]

events = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "drop", "no room", "clear", "forget", "lost", "settle"]),
        st.integers(0, 2**16),
        st.integers(1, 6),
    ),
    min_size=25,
    max_size=60,
)
"""What happens, a number that decides the details, and how many steps follow."""


class Twins:
    """Two simulations with equal sequences. The first repeats calls, and the second plans every step."""

    def __init__(self, rules: Any) -> None:
        self.both = [Simulation(rules, draw, tick=0.1, repeats=repeats) for repeats in (True, False)]
        self.sequences: list[list[TokenSequence]] = []
        """The two objects of each sequence."""

    def happen(self, event: str, number: int) -> None:
        """Makes something happen to both. `number` decides the details."""
        dice = random.Random(number)
        alive = [pair for pair in self.sequences if pair[0].phase != "over"]
        if event == "add":
            prompt = tuple(dice.randrange(2) for _ in range(dice.choice([1, 2, 9, 40])))
            adapter, actor = dice.choice([None, None, "l"]), dice.choice("xy")
            max_tokens, is_guided = dice.choice([1, 3, 20, 60]), dice.random() < 0.2
            prediction = tuple(dice.randrange(2) for _ in range(dice.choice([0, 0, 4, 30])))
            more = {"adapter": adapter, "actor": actor, "prediction": prediction}
            pair = [
                sequence(prompt, max_tokens, context=64, choice=len(self.sequences), **more)
                for _ in self.both
            ]
            for made, one in zip(self.both, pair, strict=True):
                if is_guided:
                    one.guide = SimpleNamespace(was_settled=True)  # type: ignore[assignment]
                made.add(one)
            self.sequences.append(pair)
        elif event == "drop" and alive:
            for made, one in zip(self.both, dice.choice(alive), strict=True):
                made.scheduler.drop(one, made.now, keep_prefix=number % 3 > 0)
        elif event == "settle":
            for one in (one for pair in alive for one in pair if one.guide is not None):
                one.guide.was_settled = number % 2 > 0  # type: ignore[union-attr]
        elif event == "forget":
            for made in self.both:
                made.scheduler.layout.forget("l")
        elif event == "clear":
            for made in self.both:
                made.scheduler.requeue_all()
                made.cache.clear()
        else:
            self.step(event, number)

    def step(self, event: str, number: int) -> None:
        """Plans a step of both and compares the plans. The step is computed, lost, or finds no room."""
        plans = [made.plan(number % BUDGET + 1) for made in self.both]
        assert describe(plans[0]) == describe(plans[1])
        for made, plan in zip(self.both, plans, strict=True):
            if event == "step":
                made.carry_out(plan)
            else:
                made.change(plan.changes)
            made.now += 0.1
        if event == "no room" and plans[0].calls:
            assert len({made.scheduler.make_room(number % 50 + 1) for made in self.both}) == 1


def draw(one: TokenSequence) -> int:
    return one.completion_tokens % 2


def describe(plan: StepPlan) -> dict[str, Any]:
    return {
        "changes": plan.changes,
        "admitted": [one.request.choice for one in plan.admitted],
        "calls": [
            (
                [None if one is None else one.request.choice for one in call.rows],
                (call.ids, call.positions, call.tokens, call.adapter),
                [
                    (span.sequence.request.choice, span.start, span.stop, span.is_scored)
                    for span in call.spans
                ],
                [(span.sequence.request.choice, span.start, span.drafts) for span in call.draft_spans],
                {one.request.choice for one in call.list_abortable()},
            )
            for call in plan.calls
        ],
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    happened=events,
    cells=st.sampled_from([70, 130, 600]),
    keeps=st.booleans(),
    mode=st.sampled_from([None, *DraftMode]),
)
def test_a_repeated_call_is_the_one_that_a_plan_has(
    layout: str, happened: list[Event], cells: int, keeps: bool, mode: DraftMode | None
):
    """`mode`: None has no drafts."""
    rules = policy(
        layout,
        sequences=4,
        ids=6 if layout == "pool" else 4,
        row_counts=(2, 4),
        cells=cells if layout == "pool" else 130,
        quantum=2,
        keeps_prefixes=keeps,
        drafts=DraftPolicy() if mode is None or layout == "exact" else DraftPolicy(mode, FLAT, 32),
    )
    twins = Twins(rules)
    for event, number, steps in happened:
        twins.happen(event, number)
        for _ in range(steps):
            twins.step("step", number)
    assert not twins.both[1].repeated


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nearly_all_steps_of_an_answer_repeat_the_last(layout: str):
    """Otherwise the test above compares plans with plans."""
    twins = Twins(policy(layout))
    for made in twins.both:
        made.add(sequence(7, 200), sequence(7, 300, choice=1))
    for _ in range(310):
        twins.step("step", BUDGET - 1)
    assert twins.both[0].scheduler.running == 0
    assert twins.both[0].repeated > 290


def test_kept_cells_make_way_while_calls_repeat():
    twins = Twins(policy("pool", cells=70))
    for prompt, max_tokens in ((range(100, 130), 1), (range(5), 60)):
        for made in twins.both:
            made.add(sequence(tuple(prompt), max_tokens))
        for _ in range(61):
            twins.step("step", BUDGET - 1)
    assert twins.both[0].repeated > 50


@pytest.mark.parametrize(
    ("layout", "count", "most"), [("pool", 3, 10), ("pool", 1, 10), ("streams", 1, 10), ("streams", 2, 62)]
)
def test_right_drafts_save_steps(layout: str, count: int, most: int):
    """In streams a sequence has drafts only while it is alone."""
    twins = Twins(policy(layout, cells=200, drafts=DraftPolicy(DraftMode.ALWAYS, FLAT, 32)))
    for made in twins.both:
        made.add(*(sequence(7, 60, choice=choice, prediction=(0, 1) * 30) for choice in range(count)))
    steps = 0
    while twins.both[0].scheduler.running or not steps:
        twins.step("step", BUDGET - 1)
        steps += 1
    assert most // 2 < steps <= most
