"""The routes in `antiphon top`: load, failures, pauses and latency of each route, from two readings."""

from collections.abc import Iterator

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
from antiphon.domain.values import Struct

ROUTE_PREFIX = "antiphon_route_"
SUCCEEDED = "ok"
CANCELLED = "cancelled"


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
    first_event: Latency | None
    """Seconds from the start of an attempt to its first event."""


def compute_route_rates(earlier: Reading, later: Reading) -> tuple[RouteRates, ...]:
    """Computes the figures of every route, except a local model under its own name."""
    return tuple(
        _compute_rates(earlier, later, model, route) for model, route in _list_routes(later) if model != route
    )


def _list_routes(reading: Reading) -> Iterator[tuple[str, str]]:
    """Yields each model with each of its routes."""
    for model in reading.list_label_values(f"{ROUTE_PREFIX}in_flight", "model"):
        for route in reading.list_label_values(f"{ROUTE_PREFIX}in_flight", "route", model=model):
            yield model, route


def _compute_rates(earlier: Reading, later: Reading, model: str, route: str) -> RouteRates:
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
        first_event=estimate_latency(earlier, later, f"{ROUTE_PREFIX}first_event_seconds", **labels),
    )


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
            f"{rates.rests:,}",
            format_latency(rates.first_event),
            Text(escape_unprintable(rates.route)),
        )
    return [Text(), table]
