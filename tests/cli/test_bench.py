"""`antiphon bench`: what it sends, what it shows, and when it fails."""

import json
import re
from collections.abc import Iterator

import pytest

from antiphon.cli.client import TokenUsage
from antiphon.cli.commands.bench import (
    BINS,
    PROBE_WORDS,
    RequestTiming,
    Spread,
    compute_spread,
    estimate_word_count,
    measure,
    plot_histogram,
)
from tests.cli.conftest import Run
from tests.cli.standin import ENCODER, Standin, standin


@pytest.fixture
def server() -> Iterator[Standin]:
    with standin() as running:
        yield running


def test_it_sends_what_was_planned_and_reports_it(antiphon: Run, server: Standin):
    done = antiphon(
        "bench", "--url", server.url, "--requests", "6", "--concurrency", "3", "--max-tokens", "9",
        "--prompt-tokens", "50", "--json",
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    shown = json.loads(done.stdout)
    probes, sent = server.asked[:2], server.asked[2:]
    assert [body["max_tokens"] for body in probes] == [1, 1]
    assert [body["max_tokens"] for body in sent] == [9] * 6
    assert len({json.dumps(body["messages"]) for body in sent}) == 6, "no prompt is another's prefix"
    assert (shown["answered"], shown["failed"], shown["tokens"], shown["prompt_tokens"]) == (6, 0, 18, 50)
    assert shown["tokens_per_second"] == pytest.approx(18 / shown["wall"])
    for name in ("ttft", "inter_token"):
        spread = shown[name]
        assert 0 < spread["median"] <= spread["p95"] <= spread["p99"] <= spread["maximum"] < shown["wall"]
    assert shown["inter_token"]["maximum"] > 0.004, "the server waits 5 ms between words"


def test_the_first_model_that_generates_is_measured(antiphon: Run, server: Standin):
    server.models = (ENCODER, "good")
    done = antiphon("bench", "--url", server.url, "--requests", "1", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["model"] == "good"


def test_people_get_a_table_and_plots(antiphon: Run, server: Standin):
    done = antiphon("bench", "--url", server.url, "--requests", "3")
    assert done.returncode == 0
    for words in (
        "good at",
        "tokens/s",
        "requests/s",
        "p95",
        "p99",
        "time to first token",
        "between tokens",
        "█",
    ):
        assert words in done.stdout


def test_a_narrow_terminal_gets_whole_figures(antiphon: Run, server: Standin):
    done = antiphon("bench", "--url", server.url, "--requests", "3", env={"COLUMNS": "40"})
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 40
    assert "…" not in done.stdout and "tokens/s, all together: " in done.stdout
    rows = re.findall(r"^(?:median|p95|p99|maximum) +[0-9.]+ +[0-9.]+ *$", done.stdout, re.MULTILINE)
    assert len(rows) == 4


def test_pieces_are_counted_where_the_server_counts_nothing(antiphon: Run, server: Standin):
    done = antiphon("bench", "--url", server.url, "--model", "uncounted", "--requests", "2")
    assert "does not count tokens" in done.stdout and "of unknown length" in " ".join(done.stdout.split())


def test_failed_requests_are_counted_and_fail_the_command(antiphon: Run, server: Standin):
    done = antiphon("bench", "--url", server.url, "--model", "flaky", "--requests", "2")
    assert done.returncode == 1 and "2 failed: the engine died" in done.stdout


def test_a_server_that_is_not_there_is_one_line(antiphon: Run):
    done = antiphon("bench", "--url", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("antiphon: nothing answers at http://127.0.0.1:1 (")


def timed(
    began: float, *arrivals: float, usage: TokenUsage | None = None, problem: str = ""
) -> RequestTiming:
    return RequestTiming(began, list(arrivals), arrivals[-1] if arrivals else began, usage, problem)


def test_rates_count_all_requests_and_latencies_the_good_ones():
    found = measure(
        [
            timed(10.0, 10.5, 10.6, 10.8, usage=TokenUsage(7, 3)),
            timed(11.0, 11.1, 12.0, usage=TokenUsage(9, 17)),
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
    assert compute_spread([float(value) for value in range(101)]) == Spread(50, 95, 99, 100)
    assert compute_spread([1.0, 2.0]) == Spread(1.5, 1.95, 1.99, 2.0)
    assert compute_spread([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)
    assert compute_spread([]) is None


def test_the_length_of_prompts_follows_what_the_server_counted():
    assert estimate_word_count(128, lambda words: 10 + 2 * words) == 59
    assert estimate_word_count(5, lambda words: 10 + 2 * words) == 1
    assert estimate_word_count(128, lambda _: None) == 128
    assert PROBE_WORDS > 1


def test_the_plot_holds_every_value():
    values = [0.001] * 6 + [0.002] * 3 + [9.0]
    for each in (values, [0.5]):
        counts = list(plot_histogram(each).columns[1].cells)
        assert len(counts) == BINS and sum(int(str(count)) for count in counts) == len(each)
