"""The page that Prometheus reads: its own parser reads it, and every number of an engine is on it."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.domain.models import LATENCY_BOUNDS, AdapterLoad, DeviceMemory, Histogram, Load, Timer
from antiphon.domain.values import fields, replace
from antiphon.telemetry import exposition, metrics
from antiphon.telemetry.exposition import Family, MetricKind, Series, render_page
from antiphon.telemetry.metrics import Generation, Metrics

NASTY = 'a"b\\c\nd{}é'


def read(text: str) -> dict[tuple[str, ...], float]:
    """Every sample under its name and its labels' values."""
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_labels_may_hold_anything():
    text = render_page(
        [(Family("antiphon_x", MetricKind.GAUGE, "Says \\ and\nmore.", ("model",)), {(NASTY,): 2})]
    )
    assert text.count("\n") == 3
    assert read(text) == {("antiphon_x", NASTY): 2}


def test_buckets_are_cumulative_and_hold_their_bounds():
    times = Timer()
    for seconds in (0.001, 0.0011, 0.3, 1000.0):
        times.add(seconds)
    found = read(
        render_page([(Family("antiphon_s", MetricKind.HISTOGRAM, "Seconds."), {(): times.build_histogram()})])
    )
    bounds = {key[1]: value for key, value in found.items() if key[0] == "antiphon_s_bucket"}
    assert list(map(float, bounds)) == [*LATENCY_BOUNDS, float("inf")]
    assert (bounds["0.001"], bounds["0.0025"], bounds["0.25"], bounds["0.5"]) == (1, 2, 2, 3)
    assert (bounds["300.0"], bounds["+Inf"], found["antiphon_s_count",]) == (3, 4, 4)
    assert found["antiphon_s_sum",] == pytest.approx(1000.3021)


def test_a_generation_is_counted_once_under_its_model():
    counted = Metrics()
    counted.begin_generation("m")
    counted.begin_generation("m")
    counted.end_generation(Generation("m", "ok", 10, 4, 6, 2.0, 0.2))
    found = read(render_page(counted.list_series()))
    assert found["antiphon_generations_running", "m"] == 1
    assert found["antiphon_generations_total", "m", "ok"] == 1
    assert (found["antiphon_tokens_total", "m", "input"], found["antiphon_tokens_total", "m", "output"]) == (
        10,
        4,
    )
    assert found["antiphon_cached_tokens_total", "m"] == 6
    assert found["antiphon_generation_seconds_sum", "m"] == 2.0
    assert found["antiphon_generation_first_token_seconds_sum", "m"] == 0.2


def test_every_number_of_an_engine_is_told():
    """Each field of Load gets a value that no other has, and each value is found."""
    values: dict[str, Any] = {each.name: index for index, each in enumerate(fields(Load), start=100)}
    histograms = {
        name: replace(getattr(Load(), name), total=float(value))
        for name, value in values.items()
        if name.endswith("_seconds")
    }
    adapter = AdapterLoad("0" * 64, running=1, queued=2, decoded_tokens=3)
    values["adapters"] = (adapter,)
    values["devices"] = (DeviceMemory("A", 4, 50, 60), DeviceMemory("B", 5, 70, None))
    load = Load(**(values | histograms))
    found = read(render_page(exposition.list_series({"m": load, "n": None}, {"m": True, "n": False})))
    del values["adapters"], values["devices"]
    assert set(values.values()) <= set(found.values())
    assert (found["antiphon_engine_up", "m"], found["antiphon_engine_up", "n"]) == (1, 0)
    assert [key for key in found if "n" in key[1:]] == [("antiphon_engine_up", "n")]
    assert found["antiphon_engine_adapter_decoded_tokens_total", "0" * 64, "m"] == 3
    device = "antiphon_engine_device"
    assert (found[f"{device}_layers", "A", "m"], found[f"{device}_layers", "B", "m"]) == (4, 5)
    assert (found[f"{device}_memory_bytes", "A", "m"], found[f"{device}_memory_bytes", "B", "m"]) == (50, 70)
    assert found[f"{device}_memory_used_bytes", "A", "m"] == 60
    assert (f"{device}_memory_used_bytes", "B", "m") not in found, "its driver does not tell"


def test_names_are_legal_and_none_stands_twice():
    families = (*metrics.FAMILIES, *exposition.FAMILIES)
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert family.name.startswith("antiphon_") and family.description.endswith(".")
        assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER), family.name
        assert "le" not in family.labels


def test_names_labels_help_and_types_stay():
    """Dashboards and alerts name them. A change here is one for the changelog."""
    page = Path(__file__).with_name("families.txt").read_text().splitlines()
    series: list[Series] = []
    for family in (*metrics.FAMILIES, *exposition.FAMILIES):
        value = Histogram((0,) * (len(family.bounds) + 1)) if family.kind is MetricKind.HISTOGRAM else 0
        series.append((family, {family.labels: value}))
    found = []
    for each in text_string_to_metric_families(render_page(series)):
        sample = each.samples[0]
        name = sample.name if each.type == "counter" else each.name
        labels = [label for label in sample.labels.values() if label in sample.labels]
        found.append((name, each.type, sorted(labels), each.documentation))
    expected = [line.split(" ", 3) for line in page]
    assert found == [
        (name, kind, sorted(labels.split(",")) if labels != "-" else [], says)
        for name, kind, labels, says in expected
    ]


def test_every_family_of_the_process_is_listed():
    counted = Metrics()
    counted.begin_generation("m")
    counted.end_generation(Generation("m", "ok", 1, 1, 0, 1.0, 1.0))
    counted.count_response("/health", "200", 0.1)
    elsewhere = {
        metrics.BUILD,
        metrics.START,
        metrics.PROCESSES,
        metrics.DEATHS,
        metrics.DISK_BYTES,
        metrics.DISK_FREE,
        metrics.BACKUP_TIME,
        metrics.BODY_BYTES,
        metrics.LIMITS,
        metrics.STORE,
        metrics.STORE_FAILURES,
        metrics.RESPONSES_REFUSED,
        metrics.LEDGER,
        metrics.ROUTE_UNAVAILABLE,
    }  # tests/http/test_metrics.py
    listed = {family.name for family, _ in counted.list_series()}
    assert listed | {family.name for family in elsewhere} == {family.name for family in metrics.FAMILIES}


def test_a_webhook_that_never_failed_is_on_the_page():
    found = read(render_page(Metrics().list_series()))
    assert found["antiphon_webhooks_total", "failed"] == found["antiphon_webhooks_total", "dropped"] == 0


def test_projects_beyond_the_limit_share_a_label():
    counted = Metrics()
    for number in range(metrics.MAX_PROJECTS + 5):
        counted.count_project(f"p{number}", 2, 1)
        counted.add_cost("m", f"p{number}", "USD", 3)
    found = read(render_page(counted.list_series()))
    assert found["antiphon_project_requests_total", "p0"] == 1
    assert found["antiphon_project_requests_total", metrics.OTHER_PROJECTS] == 5
    assert found["antiphon_project_tokens_total", metrics.OTHER_PROJECTS, "input"] == 10
    assert found["antiphon_project_cost_total", "USD", metrics.OTHER_PROJECTS] == 15
    assert len(counted.project_requests) == metrics.MAX_PROJECTS + 1


def test_a_removed_model_is_shown_until_its_last_generation_ends():
    counted = Metrics()
    counted.begin_generation("ada")
    counted.end_generation(Generation("ada", "ok", 1, 2, 0, 0.1, 0.1))
    counted.count_embedding("ada", "unsupported_parameter", 0, 0.1)
    counted.begin_generation("ada")
    counted.begin_generation("base")
    counted.forget("ada")
    assert "ada" in render_page(counted.list_series()), "one still runs"
    counted.end_generation(Generation("ada", "cancelled", 1, 2, 0, 0.1))
    page = render_page(counted.list_series())
    assert "ada" not in page and 'antiphon_generations_running{model="base"} 1' in page


def test_counters_of_a_removed_model_stay():
    counted = Metrics()
    for _ in range(2):
        counted.begin_generation("gone")
    counted.end_generation(Generation("gone", "ok", 1, 2, 0, 0.1, 0.1))
    counted.keep_removed(("gone",), ())
    counted.end_generation(Generation("gone", "ok", 1, 2, 0, 0.1, 0.1))
    counted.add_cost("gone", "default", "USD", 5)
    found = read(render_page(counted.list_series()))
    assert found["antiphon_generations_total", "gone", "ok"] == 2
    assert found["antiphon_tokens_total", "gone", "output"] == 4
    assert found["antiphon_cost_total", "USD", "gone"] == 5
    counted.keep_removed((), ("gone",))
    assert "gone" not in render_page(counted.list_series())
