"""Figures over time as a line of text."""

import pytest

from antiphon.cli import sparks

DAY = 24 * 3600
MIDNIGHT = 1_795_305_600
"""A Sunday's, in November."""


def test_a_bar_is_as_high_as_its_figure():
    assert sparks.spark([0, 1, 4, 8]) == " ▁▄█"
    assert sparks.spark(range(1, 9)) == sparks.HEIGHTS
    assert sparks.spark([1, 10**9]) == "▁█"
    assert sparks.spark([]) == ""
    assert sparks.spark([0, 0]) == "  "


@pytest.mark.parametrize("count", [0, 1, 5, 24, 25, 60, 1000])
@pytest.mark.parametrize("width", [1, 24])
def test_folding_loses_nothing(count, width):
    folded = sparks.folded(list(range(count)), width)
    assert sum(folded) == sum(range(count))
    assert len(folded) <= width
    if count <= width:
        assert folded == list(range(count))


def test_the_stretch_suits_the_time():
    assert [sparks.stretch(0, days * DAY) for days in (1, 2, 7, 92, 365, 800)] == [
        "hour",
        "hour",
        "day",
        "day",
        "week",
        "month",
    ]


def test_stretches_begin_where_the_servers_do():
    assert sparks.beginnings("hour", MIDNIGHT + 5, MIDNIGHT + 3601) == [MIDNIGHT, MIDNIGHT + 3600]
    assert sparks.beginnings("day", MIDNIGHT, MIDNIGHT + 1) == [MIDNIGHT]
    monday = MIDNIGHT - 6 * DAY
    assert sparks.beginnings("week", MIDNIGHT, MIDNIGHT + 2 * DAY) == [monday, monday + 7 * DAY]
    november, december, january = 1_793_491_200, 1_796_083_200, 1_798_761_600
    assert sparks.beginnings("month", MIDNIGHT, january + 1) == [november, december, january]
    assert sparks.series({december: 3}, [november, december, january]) == [0, 3, 0]
