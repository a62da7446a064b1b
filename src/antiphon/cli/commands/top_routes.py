"""The part of `antiphon top` about routes: load, failures, rests and latency of each, from two readings."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from antiphon.cli.metrics_reading import (
    Latency,
    Reading,
    build_table,
    estimate_latency,
    format_latency,
    format_rate,
)
from antiphon.cli.output import escape_unprintable

ROUTE = "antiphon_route_"
OK = "ok"
LEFT = "cancelled"


@dataclass(frozen=True, slots=True)
class RouteRates:
    """The figures of one route of a model."""

    model: str
    route: str
    running: int
    answered: float
    """Attempts per second that ended well."""
    failed: float
    """Attempts per second that failed."""
    rests: int
    """Total since the server's start."""
    first_event: Latency | None
    """From an attempt to its first event."""


def compute_routes(earlier: Reading, later: Reading) -> tuple[RouteRates, ...]:
    """Computes the figures of every route that is not just a local model of the same name."""
    return tuple(
        _compute(earlier, later, model, route) for model, route in _list_routes(later) if model != route
    )


def _list_routes(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yields each model's routes."""
    for model in reading.labels(f"{ROUTE}in_flight", "model"):
        for route in reading.labels(f"{ROUTE}in_flight", "route", model=model):
            yield model, route


def _compute(earlier: Reading, later: Reading, model: str, route: str) -> RouteRates:
    """Computes the figures of one route."""
    labels = {"model": model, "route": route}
    outcomes = later.labels(f"{ROUTE}attempts_total", "outcome", **labels)
    seconds = later.when - earlier.when
    grown = {
        outcome: max(
            0.0,
            (later.value(f"{ROUTE}attempts_total", outcome=outcome, **labels) or 0)
            - (earlier.value(f"{ROUTE}attempts_total", outcome=outcome, **labels) or 0),
        )
        for outcome in outcomes
    }
    failed = sum(count for outcome, count in grown.items() if outcome not in (OK, LEFT))
    return RouteRates(
        model,
        route,
        running=int(later.value(f"{ROUTE}in_flight", **labels) or 0),
        answered=grown.get(OK, 0.0) / seconds if seconds > 0 else 0.0,
        failed=failed / seconds if seconds > 0 else 0.0,
        rests=int(later.value(f"{ROUTE}rests_total", **labels) or 0),
        first_event=estimate_latency(earlier, later, f"{ROUTE}first_event_seconds", **labels),
    )


def build_route_table(routes: tuple[RouteRates, ...]) -> list[RenderableType]:
    """Builds the table of routes; nothing if there are none."""
    if not routes:
        return []
    table = build_table("model", "run", "ok/s", "failed/s", "rests", "first event\np50/p95 ms")
    table.add_column("route")
    for each in routes:
        table.add_row(
            Text(escape_unprintable(each.model)),
            str(each.running),
            format_rate(each.answered),
            format_rate(each.failed),
            f"{each.rests:,}",
            format_latency(each.first_event),
            Text(escape_unprintable(each.route)),
        )
    return [Text(), table]
