"""No parameter is dead: every supported field of every dialect makes the difference that its case says."""

import pytest

from tests.parameters.registry import CASES, Asker, Case
from tests.parameters.runs import RUNS
from tests.parameters.spots import SPOTS, Spot, books

IDS = [
    f"{at} {spot.id} {each.field} {each.check.__name__}".replace("/", " ")
    for at, (spot, each) in enumerate(RUNS)
]


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("spot", "each"), RUNS, ids=IDS)
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
