"""`antiphon top`: what it makes of two readings of a server, what it draws, and how it ends."""

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console, Group

from antiphon.cli.commands.top import (
    DeviceUse,
    Latency,
    ModelRates,
    build_route_note,
    build_route_table,
    build_tables,
    compute_model_rates,
    compute_route_rates,
    estimate_quantile,
    list_models_without_route,
    parse_page,
)
from antiphon.domain.models import LATENCY_BOUNDS, AdapterLoad, DeviceMemory, Histogram, Load, Timer
from antiphon.telemetry.exposition import Series, list_series, render_page
from antiphon.telemetry.metrics import BUILD, Metrics
from tests.cli.conftest import Run
from tests.cli.standin import Standin, standin
from tests.support.pty_screen import CTRL_C, open_screen

NASTY = 'a"b\\\n\x1b[2J'


def times(*seconds: float) -> Histogram:
    made = Timer()
    for each in seconds:
        made.add(each)
    return made.build_histogram()


def page(loads: dict[str, Load | None]) -> str:
    build: Series = (BUILD, {("9.9",): 1})
    return render_page([build, *list_series(loads, {name: load is not None for name, load in loads.items()})])


BEFORE = Load(
    prefill_tokens=100,
    cached_tokens=10,
    decoded_tokens=50,
    admitted=4,
    prefix_hits=1,
    first_token_seconds=times(30.0),
    adapters=(AdapterLoad("ab" * 32, decoded_tokens=5),),
)
AFTER = Load(
    running=3,
    queued=2,
    cells=1000,
    cells_used=500,
    cells_cached=250,
    prefill_tokens=300,
    cached_tokens=110,
    decoded_tokens=2050,
    admitted=8,
    prefix_hits=4,
    preemptions=2,
    first_token_seconds=times(30.0, *[0.002] * 9, 0.3),
    adapters=(AdapterLoad("ab" * 32, running=1, decoded_tokens=25),),
)


def between(before: Load | None, after: Load | None) -> ModelRates:
    (found,) = compute_model_rates(
        parse_page(page({NASTY: before}), 10.0), parse_page(page({NASTY: after}), 12.0)
    )
    assert found.model == NASTY
    return found


# --- figures ---


def test_rates_and_percentiles_come_from_two_readings():
    found = between(BEFORE, AFTER)
    assert (found.computed, found.cached, found.made) == (100.0, 50.0, 1000.0)
    assert (found.running, found.queued, found.cells_used, found.preempted) == (3, 2, 500, 2)
    assert found.prefix_hits == 0.75
    assert found.first_token is not None and found.inter_token is None
    assert 0.001 < found.first_token.p50 <= 0.0025 and 0.25 < found.first_token.p95 <= 0.5
    (adapter,) = found.adapters
    assert (adapter.adapter, adapter.running, adapter.made) == ("ab" * 32, 1, 10.0)


def test_what_cannot_be_known_is_not_made_up():
    assert between(AFTER, None) == ModelRates(NASTY, up=False)
    again = between(AFTER, BEFORE)
    assert (again.made, again.computed, again.first_token, again.prefix_hits) == (None,) * 4, "it began anew"
    came = between(None, AFTER)
    assert (came.made, came.running) == (None, 3)


def test_quantiles_lie_within_their_bucket():
    histogram = dict(zip(LATENCY_BOUNDS, itertools.repeat(10.0), strict=False))
    assert estimate_quantile(histogram | {float("inf"): 10.0}, 0.5) == pytest.approx(0.0005)
    assert estimate_quantile({1.0: 0.0, 2.0: 4.0, float("inf"): 4.0}, 0.5) == 1.5
    assert estimate_quantile({1.0: 1.0, 2.0: 1.0, float("inf"): 4.0}, 0.95) == 2.0, "above the last bound"


def test_devices_are_as_full_as_the_driver_tells():
    full = DeviceMemory("CUDA0", 20, 8_000_000_000, 6_000_000_000)
    silent = DeviceMemory("Vulkan0", 3, 2_000_000_000, None)
    load = Load(cells=10, devices=(full, silent))
    found = between(load, load)
    assert found.devices == (
        DeviceUse("CUDA0", 20, 8_000_000_000, 6_000_000_000),
        DeviceUse("Vulkan0", 3, 2_000_000_000, None),
    )
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(Group(*build_tables([found])))
    (table,) = re.findall(r"device.*?\Z", drawn.getvalue(), re.DOTALL)
    assert re.search(r"20 +8\.0 +75% +CUDA0 +█", table) and re.search(r"3 +2\.0 +- +Vulkan0", table)
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(Group(*build_tables([between(BEFORE, AFTER)])))
    assert "layers" not in drawn.getvalue(), "nothing more where the processor computes all"


# --- the page ---


def test_it_fits_eighty_columns_and_commands_no_terminal():
    many = 123456.7
    slow, slower = Latency(299.0, 300.0), Latency(0.123, 9.999)
    full = (10**7, 10**6, 10**6, 1.0, 123, 456)
    big = ModelRates("a" * 200, True, 9999, 9999, many, many, many, slow, slower, *full)
    down = ModelRates(NASTY, up=False)
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(Group(*build_tables([big, between(BEFORE, AFTER), down])))
    text = drawn.getvalue().splitlines()
    assert max(map(len, text)) <= 80
    assert all(line.isprintable() for line in text)
    assert all(figure in drawn.getvalue() for figure in ("123,457", "299s/300s", "123/9999", "down", "█"))


# --- the command ---


def growing() -> Callable[[], str]:
    """A page on which every look finds more."""
    looks = itertools.count()

    def made() -> str:
        look = next(looks)
        return page({"m": Load(running=3, cells=100, decoded_tokens=look * 1000, admitted=look), "n": None})

    return made


@pytest.fixture
def server() -> Iterator[Standin]:
    with standin(key="secret") as running:
        running.page = growing()
        yield running


KEY = {"ANTIPHON_API_KEY": "secret"}


def test_once_prints_one_page_and_json_one_object(antiphon: Run, server: Standin):
    done = antiphon("top", "--url", server.url, "--once", "--interval", "0.2", env=KEY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "9.9" in done.stdout and "\x1b" not in done.stdout
    loads = done.stdout.partition("cells")[0].splitlines()
    rows = {line.split()[0]: line.split() for line in loads if line.startswith(("m ", "n "))}
    assert rows["m"][1:3] == ["0", "3"] and float(rows["m"][5].replace(",", "")) > 100
    assert rows["n"][1:] == ["down"]
    done = antiphon("top", "--url", server.url, "--json", "--interval", "0.2", env=KEY)
    shown = json.loads(done.stdout)
    assert [model["up"] for model in shown["models"]] == [True, False]
    assert 100 < shown["models"][0]["made"] <= 5000, "a thousand more at each look, 0.2 s apart at least"


def test_what_keeps_it_from_showing_anything_is_one_line(antiphon: Run, server: Standin):
    for arguments, env, said in (
        (["--url", "http://127.0.0.1:1", "--once"], {}, "nothing answers at http://127.0.0.1:1 ("),
        (["--url", server.url, "--once"], {}, "no such key. Set ANTIPHON_API_KEY"),
        (["--url", server.url], KEY, "standard output is no terminal; use --once"),
    ):
        done = antiphon("top", *arguments, env=env)
        assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith(f"antiphon: {said}")
    for wrong, said in (
        ("", "the server has no /metrics page"),
        ("other_metric 1\n", "does not answer like"),
    ):
        server.page = partial(str, wrong)
        done = antiphon("top", "--url", server.url, "--once", env=KEY)
        assert done.returncode == 1 and said in done.stderr


def test_top_waits_for_an_absent_server_and_ends_with_ctrl_c(tmp_path: Path):
    with standin() as server:
        server.page = growing()
        arguments = ("top", "--url", server.url, "--interval", "0.2")
        with open_screen(*arguments, cwd=tmp_path) as drawn:
            for _ in range(3):
                drawn.expect("prefix hits")
            server.page = str
            drawn.expect("the server has no /metrics page")
            assert drawn.end() == 1
        server.page = growing()
        with open_screen(*arguments, cwd=tmp_path, size=(6, 80)) as drawn:
            drawn.expect("first token")
            drawn.type(CTRL_C)
            assert drawn.end() == 0
            assert "Traceback" not in drawn.text
    with open_screen("top", "--url", server.url, cwd=tmp_path) as drawn:
        drawn.expect("nothing answers at")
        assert drawn.end() == 1


def test_a_server_that_goes_away_is_waited_for(tmp_path: Path):
    with standin() as server:
        server.page = growing()
        with open_screen("top", "--url", server.url, "--interval", "0.2", cwd=tmp_path) as drawn:
            drawn.expect("prefix hits")
            port = server.url.rpartition(":")[2]
            server.page = lambda: None
            drawn.expect(f"the connection to http://127.0.0.1:{port} broke")
            drawn.expect("the last figures")
            server.page = growing()
            drawn.expect("9.9")
            drawn.expect(f"{' ' * 80}\r\nmodel")  # the line that said so is empty again
            drawn.type(CTRL_C)
            assert drawn.end() == 0


def routes_page(*failures: str) -> str:
    metrics = Metrics()
    for code in ("ok", *failures):
        counts = metrics.find_route("any", "one/a")
        counts.outcomes[code] += 1
    metrics.find_route("plain", "plain").outcomes["ok"] += 1
    metrics.find_route("any", "one/a").first_events.add(0.004)
    return render_page([(BUILD, {("9.9",): 1}), *metrics.list_series()])


def test_routes_show_what_failed_since_the_first_reading():
    before, after = routes_page(), routes_page("provider_failed", "provider_timeout")
    (route,) = compute_route_rates(parse_page(before, 10.0), parse_page(after, 12.0))
    assert (route.model, route.route, route.failed, route.answered) == ("any", "one/a", 1.0, 0.0)
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(Group(*build_route_table((route,))))
    assert "one/a" in drawn.getvalue() and build_route_table(()) == []


@pytest.mark.parametrize(("counts", "shown"), [((2, 2), ["any"]), ((2, 1), []), ((0, 0), [])])
def test_a_model_whose_routes_rest_in_each_process_has_none_left(
    counts: tuple[int, int], shown: list[str]
) -> None:
    lines = [f"antiphon_http_processes 2\n{routes_page()}"]
    for route, count in zip(("one/a", "two/b"), counts, strict=True):
        lines.append(f'antiphon_route_unavailable{{model="any",route="{route}"}} {count}\n')
    reading = parse_page("".join(lines), 10.0)
    assert list_models_without_route(reading) == shown
    drawn = io.StringIO()
    Console(file=drawn, width=80).print(
        Group(*build_route_table(compute_route_rates(reading, reading)), *build_route_note(shown))
    )
    assert ("no route left: any" in drawn.getvalue()) == bool(shown)
    assert (" now" in drawn.getvalue()) == (counts[0] > 0)
