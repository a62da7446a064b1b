"""Medians, ranges and ratios of the rounds."""

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """The figures of one side in one round."""

    scenario: str
    model: str
    requests: int
    side: str
    round: str
    figures: dict[str, float]


def load_rows(paths: Iterable[Path]) -> list[Row]:
    """Loads rows from files."""
    return [Row(**json.loads(line)) for path in paths for line in path.read_text().splitlines()]


def format_figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def print_report(rows: list[Row]) -> None:
    """Prints one block for each scenario, model and number of requests."""
    for key in dict.fromkeys((row.scenario, row.model, row.requests) for row in rows):
        group = [row for row in rows if (row.scenario, row.model, row.requests) == key]
        scenario, model, requests = key
        print(f"\n{scenario}, {model}" + (f", {requests} at once" if scenario == "throughput" else ""))
        for figure in group[0].figures:
            _print_figure(figure, group)


def _print_figure(figure: str, rows: list[Row]) -> None:
    sides = list(dict.fromkeys(row.side for row in rows))
    values = {side: {row.round: row.figures[figure] for row in rows if row.side == side} for side in sides}
    print(f"  {figure}")
    for side, by_round in values.items():
        figures = list(by_round.values())
        print(
            f"    {side:24} {median(figures):10.4g}   {min(figures):.4g} to {max(figures):.4g}, "
            f"{len(figures)} rounds"
        )
    products = ("native", "before", "antiphon", "llama")
    best = [found for product in products if (found := _find_best_side(figure, product, values))]
    for own_side, peer_side in pairwise(best):
        _print_ratio(own_side, peer_side, values)


def compute_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median, and the bounds of its 95 % interval by the ranks of the values, without any
    assumption about their distribution. For fewer than six values the bounds are those of the range."""
    ranked = sorted(values)
    cut = max(0, math.floor(len(ranked) / 2 - 0.98 * math.sqrt(len(ranked))))
    return median(ranked), ranked[cut], ranked[-1 - cut]


def _find_best_side(figure: str, product: str, values: dict[str, dict[str, float]]) -> str | None:
    """Finds the product's side with the best median."""
    choose = max if figure.endswith("/s") else min
    sides = [side for side in values if side.startswith(f"{product}:")]
    return choose(sides, key=lambda side: median(values[side].values()), default=None)


def _print_ratio(side: str, peer_side: str, values: dict[str, dict[str, float]]) -> None:
    peer_median = median(values[peer_side].values())
    if not peer_median:
        return
    common_rounds = values[side].keys() & values[peer_side].keys()
    ratios = [
        values[side][round_name] / values[peer_side][round_name]
        for round_name in common_rounds
        if values[peer_side][round_name]
    ]
    ratio_range = f"   {min(ratios):.2f} to {max(ratios):.2f} by round" if ratios else ""
    print(f"    {side} to {peer_side}: x {median(values[side].values()) / peer_median:.2f}{ratio_range}")
