"""The Grafana dashboard and the alert rules ask for metrics and labels that exist."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - safe_load of a file of this repository

ROOT = Path(__file__).parents[2]
FAMILIES = Path(__file__).with_name("families.txt")

METRIC = re.compile(r"antiphon_\w+")
BY = re.compile(r"(?:by|without|on) \(([^)]*)\)")
MATCHER = re.compile(r"(antiphon_\w+)\{([^}]*)\}")
TARGET = {"job", "instance"}
"""The labels that Prometheus adds to everything that it scrapes."""
SUFFIXES = ("_bucket", "_sum", "_count")


def list_expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/antiphon.json").read_text())
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"]["query"] for each in dashboard["templating"]["list"] if each["type"] == "query")
    yield from list_alert_expressions()


def list_rules() -> Iterator[dict[str, Any]]:
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/antiphon.rules.yml").read_text())
    for group in alerts["groups"]:
        yield from group["rules"]


def list_alert_expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in list_rules())


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
    if expression.startswith("up{job="):
        return  # Prometheus' own metric
    assert names
    labels: set[str] = {"le", *TARGET}
    for name in names:
        kind, own = families[strip_suffix(name)]
        assert (strip_suffix(name) != name) == (kind == "histogram")
        labels |= own
    for used in BY.findall(expression):
        assert {label.strip() for label in used.split(",")} <= labels
    for name, matchers in MATCHER.findall(expression):
        assert set(re.findall(r"(\w+)[=!~]", matchers)) <= families[strip_suffix(name)][1] | TARGET


def test_no_sum_of_an_alert_hides_the_instance() -> None:
    """`by` drops every label that it does not name, and `on` compares by nothing else."""
    for expression in list_alert_expressions():
        for kept in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert "instance" in kept, expression
        assert "instance" not in re.findall(r"\bwithout \(([^)]*)\)", expression)


def test_every_panel_follows_the_variables() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/antiphon.json").read_text())
    assert [each["name"] for each in dashboard["templating"]["list"]] == [
        "datasource",
        "instance",
        "model",
        "project",
    ]
    families = read_families()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in METRIC.findall(target["expr"]):
                variables = {"instance", *(families[strip_suffix(name)][1] & {"model", "project"})}
                used = [matchers for found, matchers in MATCHER.findall(target["expr"]) if found == name]
                assert used, f"{panel['title']}: {name} has no filter"
                for matchers in used:
                    missing = {each for each in variables if f'{each}=~"${each}"' not in matchers}
                    assert missing <= ({"model"} if "deaths" in name else set()), panel["title"]


def test_the_alert_rules_are_loaded() -> None:
    folder = ROOT / "deploy/prometheus"
    settings = yaml.safe_load((folder / "prometheus.yml").read_text())
    loaded = {path.name for pattern in settings["rule_files"] for path in folder.glob(pattern)}
    assert loaded == {"antiphon.rules.yml"}


def test_every_alert_has_a_paragraph_of_its_own() -> None:
    page = (ROOT / "docs/alerts.md").read_text("utf-8")
    headings = re.findall(r"^#+ (Antiphon\w+)$", page, re.MULTILINE)
    rules = list(list_rules())
    assert headings == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
        assert rule["annotations"]["summary"].endswith(".")


def test_every_alert_fires_in_a_test_of_promtool() -> None:
    tests = yaml.safe_load((ROOT / "deploy/prometheus/antiphon.rules.test.yml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {
        rule["alert"] for rule in list_rules()
    }
