"""`antiphon top`: shows the load of a running server, once or continuously, from its /metrics page.

It computes rates, percentiles and shares of models and routes from two readings of the page, a few seconds
apart.
"""

import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from antiphon.cli.admin_client import find_server
from antiphon.cli.client import Client
from antiphon.cli.output import (
    FORBIDDEN,
    PIPE_WIDTH,
    UNAUTHORIZED,
    CallFailed,
    escape_unprintable,
    print_json,
    report_errors,
)
from antiphon.domain.values import Struct, asdict

NAME_WIDTH = 14
"""The most columns of a model's name, so that a table fits into 80 columns."""

SECONDS_FROM = 10.0
"""Latencies of at least this many seconds are displayed in seconds, and shorter ones in milliseconds."""

Labels = frozenset[tuple[str, str]]


ROUTE_PREFIX = "antiphon_route_"
SUCCEEDED = "ok"
CANCELLED = "cancelled"

WINDOW = 5.0
"""The least seconds between the two readings. Figures of a shorter time are unsteady."""

READ_TIMEOUT = 5.0
"""Seconds to wait for a page. A server needs at most two."""

NOT_FOUND = 404

PERMANENT_FAILURES = frozenset({UNAUTHORIZED, FORBIDDEN, NOT_FOUND})
"""HTTP statuses after which the command stops, because another request would fail too."""

DIGEST_CHARACTERS = 16
"""Displayed characters of an adapter's digest."""

GIGABYTE = 1e9

BAR_WIDTH = 20
"""Columns of a bar."""

ENGINE_PREFIX = "antiphon_engine_"


class Reading(Struct, frozen=True):
    """The values of a metrics page at one time."""

    read_at: float
    """The time of the reading in monotonic seconds."""
    samples: Mapping[tuple[str, Labels], float]

    def get_value(self, name: str, **labels: str) -> float | None:
        """Returns a value; None if the page lacks it."""
        return self.samples.get((name, frozenset(labels.items())))

    def list_label_values(self, name: str, label: str, **other_labels: str) -> list[str]:
        """Returns the values of one label of a metric, in the page's order.

        `other_labels`: the required values of other labels.
        """
        required = frozenset(other_labels.items())
        label_sets = (
            dict(labels) for sample_name, labels in self.samples if sample_name == name and required <= labels
        )
        return list(dict.fromkeys(labels[label] for labels in label_sets if label in labels))

    def read_buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Returns a histogram's cumulative counts, by upper bound. `labels`: all its other labels."""
        bounds = self.list_label_values(f"{name}_bucket", "le", **labels)
        counts = {bound: self.get_value(f"{name}_bucket", le=bound, **labels) for bound in bounds}
        return {float(bound): count for bound, count in counts.items() if count is not None}


class Latency(Struct, frozen=True):
    """Percentiles in seconds between two readings, with the accuracy of the histogram's buckets."""

    p50: float
    p95: float


def parse_page(page: str, read_at: float) -> Reading:
    """Parses a metrics page. Raises ValueError for any other text. `read_at`: monotonic seconds."""
    families = text_string_to_metric_families(page)
    samples = (sample for family in families for sample in family.samples)
    return Reading(
        read_at, {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    )


def estimate_latency(earlier: Reading, later: Reading, name: str, **labels: str) -> Latency | None:
    """Estimates the percentiles of what a histogram measured between two readings. Returns None if it
    measured nothing."""
    earlier_counts, later_counts = earlier.read_buckets(name, **labels), later.read_buckets(name, **labels)
    increases = {bound: count - earlier_counts.get(bound, 0.0) for bound, count in later_counts.items()}
    if not increases or min(increases.values()) < 0 or max(increases.values()) == 0:
        return None
    return Latency(estimate_quantile(increases, 0.5), estimate_quantile(increases, 0.95))


def estimate_quantile(cumulative_counts: Mapping[float, float], share: float) -> float:
    """Estimates the value that a share of all values does not exceed.

    Interpolates within a bucket. Values above the last bound count as that bound. `cumulative_counts`: counts
    by upper bound, at least one.
    """
    target = share * max(cumulative_counts.values())
    previous_bound = 0.0
    for (lower_bound, lower_count), (upper_bound, upper_count) in pairwise(
        [(0.0, 0.0), *sorted(cumulative_counts.items())]
    ):
        previous_bound = lower_bound
        if upper_bound == float("inf"):
            break
        if upper_count >= target:
            return lower_bound + (upper_bound - lower_bound) * (target - lower_count) / (
                upper_count - lower_count
            )
    return previous_bound


def build_table(name_heading: str, *headings: str) -> Table:
    """Builds an empty table: a left column of names and right columns of figures."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(name_heading, no_wrap=True, max_width=NAME_WIDTH)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def format_rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def format_latency(value: Latency | None) -> str:
    return "-" if value is None else f"{_format_milliseconds(value.p50)}/{_format_milliseconds(value.p95)}"


def _format_milliseconds(seconds: float) -> str:
    if seconds >= SECONDS_FROM:
        return f"{seconds:.0f}s"
    return f"{seconds * 1000:.0f}" if seconds >= 0.01 else f"{seconds * 1000:.1f}"


class RouteRates(Struct, frozen=True):
    """The figures of one route of a model."""

    model: str
    route: str
    running: int
    answered: float
    """Successful attempts per second."""
    failed: float
    """Failed attempts per second."""
    rests: int
    """Pauses after failures since the server's start."""
    unavailable: int
    """HTTP processes that do not use the route now."""
    first_event: Latency | None
    """Seconds from the start of an attempt to its first event."""


def compute_route_rates(earlier: Reading, later: Reading) -> tuple[RouteRates, ...]:
    """Computes the figures of every route, except a local model under its own name."""
    metric = f"{ROUTE_PREFIX}in_flight"
    return tuple(
        _compute_route(earlier, later, model, route)
        for model in later.list_label_values(metric, "model")
        for route in later.list_label_values(metric, "route", model=model)
        if model != route
    )


def _compute_route(earlier: Reading, later: Reading, model: str, route: str) -> RouteRates:
    """Computes the figures of one route."""
    labels = {"model": model, "route": route}
    outcomes = later.list_label_values(f"{ROUTE_PREFIX}attempts_total", "outcome", **labels)
    seconds = later.read_at - earlier.read_at
    increases = {
        outcome: max(
            0.0,
            (later.get_value(f"{ROUTE_PREFIX}attempts_total", outcome=outcome, **labels) or 0)
            - (earlier.get_value(f"{ROUTE_PREFIX}attempts_total", outcome=outcome, **labels) or 0),
        )
        for outcome in outcomes
    }
    failed_count = sum(count for outcome, count in increases.items() if outcome not in (SUCCEEDED, CANCELLED))
    return RouteRates(
        model,
        route,
        running=int(later.get_value(f"{ROUTE_PREFIX}in_flight", **labels) or 0),
        answered=increases.get(SUCCEEDED, 0.0) / seconds if seconds > 0 else 0.0,
        failed=failed_count / seconds if seconds > 0 else 0.0,
        rests=int(later.get_value(f"{ROUTE_PREFIX}rests_total", **labels) or 0),
        unavailable=int(later.get_value(f"{ROUTE_PREFIX}unavailable", **labels) or 0),
        first_event=estimate_latency(earlier, later, f"{ROUTE_PREFIX}first_event_seconds", **labels),
    )


def list_models_without_route(reading: Reading) -> list[str]:
    """Lists the models of which no HTTP process has a route that is available now."""
    metric = f"{ROUTE_PREFIX}unavailable"
    processes = reading.get_value("antiphon_http_processes") or 1

    def count_processes(model: str) -> float:
        """Returns how many processes at least are without the route that most of them have."""
        routes = reading.list_label_values(metric, "route", model=model)
        return min(reading.get_value(metric, model=model, route=route) or 0 for route in routes)

    models = reading.list_label_values(metric, "model")
    return [model for model in models if count_processes(model) >= processes]


def build_route_note(models: Iterable[str]) -> list[RenderableType]:
    """Builds the line that names the models without a route; an empty list if there are none."""
    names = ", ".join(escape_unprintable(model) for model in models)
    return [Text(), Text(f"no route left: {names}", style="bold red")] if names else []


def build_route_table(routes: tuple[RouteRates, ...]) -> list[RenderableType]:
    """Builds the table of routes; an empty list without routes."""
    if not routes:
        return []
    table = build_table("model", "run", "ok/s", "failed/s", "rests", "first event\np50/p95 ms")
    table.add_column("route")
    for rates in routes:
        table.add_row(
            Text(escape_unprintable(rates.model)),
            str(rates.running),
            format_rate(rates.answered),
            format_rate(rates.failed),
            f"{rates.rests:,}" + (" now" if rates.unavailable else ""),
            format_latency(rates.first_event),
            Text(escape_unprintable(rates.route)),
        )
    return [Text(), table]


class AdapterRates(Struct, frozen=True):
    """The figures of one adapter of a model."""

    adapter: str
    """The digest of the adapter's content."""
    queued: int
    running: int
    made: float | None
    """Completion tokens per second."""


class DeviceUse(Struct, frozen=True):
    """A graphics device that runs layers of a model."""

    device: str
    layers: int
    memory: int
    """Bytes."""
    used: int | None
    """Bytes that all programs use; None if the driver does not report them."""


class ModelRates(Struct, frozen=True):
    """The figures of one model. Unknown figures are None, such as rates after an engine's restart."""

    model: str
    up: bool
    queued: int = 0
    running: int = 0
    computed: float | None = None
    """Computed prompt tokens per second."""
    cached: float | None = None
    """Prompt tokens per second from the prefix cache."""
    made: float | None = None
    """Completion tokens per second."""
    first_token: Latency | None = None
    inter_token: Latency | None = None
    cells: int = 0
    cells_used: int = 0
    cells_cached: int = 0
    prefix_hits: float | None = None
    """The share of admitted sequences that reused a prefix."""
    preempted: int = 0
    """Preempted sequences since the engine's start."""
    refused: int = 0
    """Rejected sequences since the engine's start."""
    adapters: tuple[AdapterRates, ...] = ()
    devices: tuple[DeviceUse, ...] = ()


def run(url: str | None, interval: float, once: bool, as_json: bool) -> None:
    """Shows the figures until Ctrl-C, or once."""
    with report_errors(), suppress(KeyboardInterrupt):
        monitor = MetricsMonitor(Client(*find_server(url), read_timeout=READ_TIMEOUT), interval)
        monitor.read_page()
        if as_json or once:
            time.sleep(interval)
            monitor.read_page()
            if as_json:
                print_json(monitor.build_object())
            else:
                width = None if sys.stdout.isatty() else PIPE_WIDTH
                Console(highlight=False, width=width).print(monitor.build_display())
        elif not sys.stdout.isatty():
            raise CallFailed("standard output is no terminal; use --once for a table or --json for programs")
        else:
            monitor.display_continuously()


class MetricsMonitor:
    """Reads and displays the metrics of one server."""

    def __init__(self, client: Client, interval: float) -> None:
        self._client = client
        self._interval = interval
        self._readings: deque[Reading] = deque()
        self._problem = ""

    def read_page(self) -> None:
        """Reads the metrics page. Raises CallFailed."""
        try:
            reading = parse_page(self._client.get_text("/metrics"), time.monotonic())
        except CallFailed as problem:
            if problem.status != NOT_FOUND:
                raise
            reason = "the server has no /metrics page: it is another product or an older version"
            raise CallFailed(reason, status=NOT_FOUND) from None
        except ValueError:
            raise self._build_failure() from None
        if not reading.list_label_values("antiphon_build_info", "version"):
            raise self._build_failure()
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].read_at <= reading.read_at - WINDOW:
            self._readings.popleft()

    def _build_failure(self) -> CallFailed:
        return CallFailed(f"{self._client.url} does not answer like Antiphon")

    def display_continuously(self) -> None:
        """Updates the display until Ctrl-C, also while the server does not answer."""
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while True:
                live.update(self.build_display(), refresh=True)
                time.sleep(self._interval)
                try:
                    self.read_page()
                    self._problem = ""
                except CallFailed as problem:
                    if problem.status in PERMANENT_FAILURES:
                        raise
                    self._problem = problem.message

    def compute_model_rates(self) -> tuple[ModelRates, ...]:
        return compute_model_rates(self._readings[0], self._readings[-1])

    def build_display(self) -> RenderableType:
        """Builds the title, the last problem and the tables."""
        title = Text(
            f"antiphon top  {escape_unprintable(self._client.url)}  {escape_unprintable(self._get_release())}"
        )
        problem_note = (
            f"{escape_unprintable(self._problem)}\nwaiting for the server; the last figures:"
            if self._problem
            else ""
        )
        routes = compute_route_rates(self._readings[0], self._readings[-1])
        return Group(
            title,
            Text(problem_note),
            *build_tables(self.compute_model_rates()),
            *build_route_table(routes),
            *build_route_note(list_models_without_route(self._readings[-1])),
        )

    def build_object(self) -> dict[str, object]:
        """Returns the figures for JSON: times in seconds, rates per second."""
        models = [asdict(model) for model in self.compute_model_rates()]
        routes = [asdict(route) for route in compute_route_rates(self._readings[0], self._readings[-1])]
        return {
            "url": self._client.url,
            "release": self._get_release(),
            "models": models,
            "routes": routes,
            "models_without_route": list_models_without_route(self._readings[-1]),
        }

    def _get_release(self) -> str:
        return self._readings[-1].list_label_values("antiphon_build_info", "version")[0]


def build_tables(models: Iterable[ModelRates]) -> list[RenderableType]:
    """Builds the tables of loads, latencies, cells and adapters."""
    loads = build_table("model", "wait", "run", "prompt\ntok/s", "cached\ntok/s", "made\ntok/s")
    for heading in ("first token\np50/p95 ms", "per token\np50/p95 ms"):
        loads.add_column(heading, justify="right", no_wrap=True)
    cells = build_table("model", "cells", "used", "kept", "prefix hits", "preempted", "refused")
    cells.add_column("")
    adapters = build_table("model", "wait", "run", "made\ntok/s")
    adapters.add_column("adapter")
    devices = build_table("model", "layers", "GB", "used")
    devices.add_column("device")
    devices.add_column("")
    for model in models:
        name = Text(escape_unprintable(model.model))
        if not model.up:
            loads.add_row(name, Text("down"))
            continue
        figures = (format_rate(rate) for rate in (model.computed, model.cached, model.made))
        times = (format_latency(latency) for latency in (model.first_token, model.inter_token))
        loads.add_row(name, str(model.queued), str(model.running), *figures, *times)
        if model.cells:
            shares = (f"{count / model.cells:.0%}" for count in (model.cells_used, model.cells_cached))
            hits = "-" if model.prefix_hits is None else f"{model.prefix_hits:.0%}"
            counts = (f"{model.preempted:,}", f"{model.refused:,}")
            bar = Bar(model.cells, 0, model.cells_used, width=BAR_WIDTH)
            cells.add_row(name, f"{model.cells:,}", *shares, hits, *counts, bar)
        for adapter in model.adapters:
            adapter_figures = (str(adapter.queued), str(adapter.running), format_rate(adapter.made))
            adapters.add_row(
                name, *adapter_figures, Text(escape_unprintable(adapter.adapter[:DIGEST_CHARACTERS]))
            )
        for device in model.devices:
            device_name = Text(escape_unprintable(device.device))
            sizes = (str(device.layers), f"{device.memory / GIGABYTE:.1f}")
            if device.used is None:
                devices.add_row(name, *sizes, "-", device_name, "")
            else:
                share = f"{device.used / max(1, device.memory):.0%}"
                bar = Bar(device.memory, 0, device.used, width=BAR_WIDTH)
                devices.add_row(name, *sizes, share, device_name, bar)
    filled_tables = [table for table in (cells, devices, adapters) if table.rows]
    return [loads, *(item for table in filled_tables for item in (Text(), table))]


def compute_model_rates(earlier: Reading, later: Reading) -> tuple[ModelRates, ...]:
    """Computes the figures of every model, in the page's order."""
    models = later.list_label_values(f"{ENGINE_PREFIX}up", "model")
    return tuple(_ReadingPair(earlier, later, model).compute_rates() for model in models)


class _ReadingPair(Struct, frozen=True):
    """Two readings of one model's metrics."""

    earlier: Reading
    later: Reading
    model: str

    def compute_rates(self) -> ModelRates:
        """Computes the figures of the model."""
        if not self._read_gauge("up"):
            return ModelRates(self.model, up=False)
        hits, admitted = self._compute_increase("prefix_hits_total"), self._compute_increase("admitted_total")
        list_names = partial(self.later.list_label_values, model=self.model)
        adapters = list_names(f"{ENGINE_PREFIX}adapter_running", "adapter")
        devices = list_names(f"{ENGINE_PREFIX}device_layers", "device")
        return ModelRates(
            self.model,
            up=True,
            queued=self._read_gauge("queued"),
            running=self._read_gauge("running"),
            computed=self._compute_rate("prompt_tokens_total"),
            cached=self._compute_rate("cached_tokens_total"),
            made=self._compute_rate("decoded_tokens_total"),
            first_token=self._estimate_latency("first_token_seconds"),
            inter_token=self._estimate_latency("inter_token_seconds"),
            cells=self._read_gauge("cells"),
            cells_used=self._read_gauge("cells_used"),
            cells_cached=self._read_gauge("cells_cached"),
            prefix_hits=hits / admitted if hits is not None and admitted else None,
            preempted=self._read_gauge("preemptions_total"),
            refused=self._read_gauge("refused_total"),
            adapters=tuple(
                AdapterRates(
                    adapter,
                    queued=self._read_gauge("adapter_queued", adapter=adapter),
                    running=self._read_gauge("adapter_running", adapter=adapter),
                    made=self._compute_rate("adapter_decoded_tokens_total", adapter=adapter),
                )
                for adapter in adapters
            ),
            devices=tuple(map(self._read_device, devices)),
        )

    def _read_device(self, device: str) -> DeviceUse:
        used = self.later.get_value(
            f"{ENGINE_PREFIX}device_memory_used_bytes", model=self.model, device=device
        )
        return DeviceUse(
            device,
            layers=self._read_gauge("device_layers", device=device),
            memory=self._read_gauge("device_memory_bytes", device=device),
            used=None if used is None else int(used),
        )

    def _read_gauge(self, name: str, **labels: str) -> int:
        """Returns the latest value of an engine's gauge; 0 if it is missing."""
        return int(self.later.get_value(ENGINE_PREFIX + name, model=self.model, **labels) or 0)

    def _compute_rate(self, name: str, **labels: str) -> float | None:
        """Returns the increase of a counter per second; None if it is unknown."""
        increase, seconds = self._compute_increase(name, **labels), self.later.read_at - self.earlier.read_at
        return increase / seconds if increase is not None and seconds > 0 else None

    def _compute_increase(self, name: str, **labels: str) -> float | None:
        """Returns the increase of a counter; None if a reading lacks it or the counter was reset."""
        before = self.earlier.get_value(ENGINE_PREFIX + name, model=self.model, **labels)
        now = self.later.get_value(ENGINE_PREFIX + name, model=self.model, **labels)
        return now - before if before is not None and now is not None and now >= before else None

    def _estimate_latency(self, name: str) -> Latency | None:
        """Returns the latencies between the two readings; None without measurements."""
        return estimate_latency(self.earlier, self.later, ENGINE_PREFIX + name, model=self.model)
