"""Medians, ranges and ratios of the rounds."""

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Row(NamedTuple):
    """One side in one round."""

    scenario: str
    model: str
    requests: int
    side: str
    round: str
    figures: dict[str, float]


def load(paths: Iterable[Path]) -> list[Row]:
    """The rows that were saved."""
    return [Row(**json.loads(line)) for path in paths for line in path.read_text().splitlines()]


def in_words(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def show(rows: list[Row]) -> None:
    """One block for each scenario, model and number of requests."""
    for key in dict.fromkeys((row.scenario, row.model, row.requests) for row in rows):
        of_key = [row for row in rows if (row.scenario, row.model, row.requests) == key]
        scenario, model, requests = key
        print(f"\n{scenario}, {model}" + (f", {requests} at once" if scenario == "throughput" else ""))
        for figure in of_key[0].figures:
            _show_figure(figure, of_key)


def _show_figure(figure: str, rows: list[Row]) -> None:
    sides = list(dict.fromkeys(row.side for row in rows))
    values = {side: {row.round: row.figures[figure] for row in rows if row.side == side} for side in sides}
    print(f"  {figure}")
    for side, found in values.items():
        each = list(found.values())
        print(f"    {side:24} {median(each):10.4g}   {min(each):.4g} to {max(each):.4g}, {len(each)} rounds")
    products = ("native", "antiphon", "llama")
    best = {product: _best(figure, product, values) for product in products}
    for one, other in pairwise(products):
        ours, theirs = best[one], best[other]
        if ours and theirs:
            _show_ratio(ours, theirs, values)


def _best(figure: str, product: str, values: dict[str, dict[str, float]]) -> str | None:
    """The product's side with the best median."""
    choose = max if figure.endswith("/s") else min
    sides = [side for side in values if side.startswith(f"{product}:")]
    return choose(sides, key=lambda side: median(values[side].values()), default=None)


def _show_ratio(ours: str, theirs: str, values: dict[str, dict[str, float]]) -> None:
    middle = median(values[theirs].values())
    if not middle:
        return
    both = values[ours].keys() & values[theirs].keys()
    each = [values[ours][one] / values[theirs][one] for one in both if values[theirs][one]]
    span = f"   {min(each):.2f} to {max(each):.2f} by round" if each else ""
    print(f"    {ours} to {theirs}: x {median(values[ours].values()) / middle:.2f}{span}")
