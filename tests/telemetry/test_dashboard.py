"""The Grafana dashboard and the alert rules ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - safe_load of a file of this repository

ROOT = Path(__file__).parents[2]
FAMILIES = Path(__file__).with_name("families.txt")

METRIC = re.compile(r"antiphon_\w+")
BY = re.compile(r"(?:by|without|on) \(([^)]*)\)")
MATCHER = re.compile(r"(antiphon_\w+)\{([^}]*)\}")
SUFFIXES = ("_bucket", "_sum", "_count")


def list_expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/antiphon.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query")
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/antiphon.rules.yml").read_text())
    yield from (rule["expr"] for group in alerts["groups"] for rule in group["rules"])


def read_families() -> dict[str, tuple[str, set[str]]]:
    """The kind and the labels of each metric."""
    families = {}
    for line in FAMILIES.read_text().splitlines():
        name, kind, labels, *_ = line.split(" ", 3)
        families[name] = kind, set() if labels == "-" else set(labels.split(","))
    return families


def strip_suffix(name: str) -> str:
    return next((name.removesuffix(each) for each in SUFFIXES if name.endswith(each)), name)


@pytest.mark.parametrize("expression", sorted(set(list_expressions())))
def test_each_expression_asks_for_what_exists(expression: str) -> None:
    families = read_families()
    names = METRIC.findall(expression)
    if "up{job=" in expression:
        return  # Prometheus' own metric
    assert names
    labels: set[str] = {"le"}
    for name in names:
        kind, own = families[strip_suffix(name)]
        assert (strip_suffix(name) != name) == (kind == "histogram")
        labels |= own
    for used in BY.findall(expression):
        assert {label.strip() for label in used.split(",")} <= labels
    for name, matchers in MATCHER.findall(expression):
        assert set(re.findall(r"(\w+)[=!~]", matchers)) <= families[strip_suffix(name)][1]
