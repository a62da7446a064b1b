"""Figures of a measurement, from times that a test chose."""

import pytest

from antiphon.cli.bench import BINS, Spread, measure, plot, spread
from antiphon.cli.client import Usage
from antiphon.cli.load import PROBE_WORDS, Timed, words_for


def timed(began: float, *arrivals: float, usage: Usage | None = None, problem: str = "") -> Timed:
    return Timed(began, list(arrivals), arrivals[-1] if arrivals else began, usage, problem)


def test_rates_are_over_all_requests_and_latencies_over_the_good_ones():
    found = measure(
        [
            timed(10.0, 10.5, 10.6, 10.8, usage=Usage(7, 3)),
            timed(11.0, 11.1, 12.0, usage=Usage(9, 17)),
            timed(10.2, problem="overloaded"),
        ]
    )
    assert (found.answered, found.failed, found.problems) == (2, 1, {"overloaded": 1})
    assert found.tokens_per_second == pytest.approx(20 / 2.0)
    assert found.prompt_tokens == 8
    assert found.ttft and found.ttft.median == pytest.approx(0.3) and found.ttft.maximum == pytest.approx(0.5)
    assert found.inter_token and found.inter_token.median == pytest.approx(0.2)


def test_a_server_that_does_not_count_has_its_pieces_counted():
    found = measure([timed(0.0, 1.0, 2.0)])
    assert (found.tokens, found.counted, found.prompt_tokens) == (2, False, None)


def test_percentiles_lie_between_the_nearest_ranks():
    assert spread([float(value) for value in range(101)]) == Spread(50, 95, 99, 100)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.95, 1.99, 2.0)
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)
    assert spread([]) is None


def test_the_length_of_prompts_follows_what_the_server_counted():
    assert words_for(128, lambda words: 10 + 2 * words) == 59
    assert words_for(5, lambda words: 10 + 2 * words) == 1
    assert words_for(128, lambda _: None) == 128
    assert PROBE_WORDS > 1


def test_the_plot_holds_every_value():
    values = [0.001] * 6 + [0.002] * 3 + [9.0]
    for each in (values, [0.5]):
        counts = list(plot(each).columns[1].cells)
        assert len(counts) == BINS and sum(int(str(count)) for count in counts) == len(each)
