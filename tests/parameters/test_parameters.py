"""No parameter is dead: every supported field of every dialect makes the difference that its case says."""

import re

import pytest

from antiphon.domain.values import replace
from tests.parameters.registry import CASES, Answer, Asker, Case
from tests.parameters.runs import REPEATED, RUNS
from tests.parameters.spots import SPOTS, Spot, books

PARAMS = [
    pytest.param(
        *run,
        id=f"{at} {run[0].id} {run[1].field} {run[1].check.__name__}".replace("/", " "),
        marks=[pytest.mark.soak] if run in REPEATED else [],
    )
    for at, run in enumerate(RUNS)
]


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("spot", "each"), PARAMS)
def test_the_field_makes_its_difference(spot: Spot, each: Case, request: pytest.FixtureRequest) -> None:
    asker: Asker = request.getfixturevalue(each.server)
    answers = []
    for body in each.bodies(spot, asker):
        answers.append(asker.ask(spot.url, body))
        if each.after is not None:
            each.after(asker)
    each.check(*answers)
    for same in answers:
        # a server that ignores the field gives one answer to all
        with pytest.raises((AssertionError, LookupError, TypeError, ValueError)):
            each.check(*[same] * len(answers))


def test_every_endpoint_brings_the_field_to_the_engine(recorder: Asker) -> None:
    """Of what another endpoint proves with the real engine."""
    ignored = []
    for spot, each in REPEATED:
        first, *others = each.bodies(spot, recorder)
        known = describe(each, recorder.ask(spot.url, first))
        assert describe(each, recorder.ask(spot.url, first)) == known, (spot.id, each.field)
        if all(describe(each, recorder.ask(spot.url, body)) == known for body in others):
            ignored.append(f"{spot.id} {each.field} {each.check.__name__}")
    assert ignored == []


def describe(each: Case, answer: Answer) -> object:
    """What reached the engine, and the answer without its id and time. A seed counts where one is given."""
    asked = sorted(answer.asked, key=lambda one: one.choice)
    if each.field != "seed":
        asked = [replace(one, sampling=replace(one.sampling, seed=0)) for one in asked]
    text = re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", answer.body)
    return answer.status, [replace(one, group=None) for one in asked], text


def test_every_object_of_every_dialect_has_a_spot() -> None:
    wanted = {(dialect, place) for dialect, book in books().items() for place in book.tables}
    assert wanted == {(spot.dialect, spot.scope) for spot in SPOTS}


def test_every_supported_field_has_a_case() -> None:
    cased = {(spot.id, each.field) for spot, each in RUNS}
    missing = [
        f"{spot.id}: {name}"
        for spot in SPOTS
        for name in books()[spot.dialect].tables[spot.scope]
        if spot.supports(name) and (spot.id, name) not in cased
    ]
    assert missing == [], "give each a case in tests/parameters/cases_*.py"


def test_no_case_is_left_of_a_field_that_is_gone() -> None:
    assert [f"{each.field}: {each.check.__name__}" for each in CASES if not any(
        spot.supports(each.field) for spot in each.spots)] == []  # fmt: skip
