"""`antiphon doctor` finds what is wrong in the settings of agents, and reports nothing without them."""

import json
from pathlib import Path

import pytest

from antiphon.cli.doctor.clients import check_clients
from antiphon.cli.doctor.findings import Finding, FindingSeverity

CODEX = """
model_provider = "antiphon"
[model_providers.antiphon]
base_url = "{address}"
wire_api = "{api}"
"""


def check(home: Path) -> list[Finding]:
    return list(check_clients({}, home))


def write_claude(home: Path, text: str) -> Path:
    path = home / ".claude" / "settings.json"
    path.parent.mkdir()
    path.write_text(text)
    return path


def write_codex(home: Path, text: str) -> Path:
    path = home / ".codex" / "config.toml"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_without_agents_there_is_nothing_to_report(tmp_path: Path):
    assert check(tmp_path) == []
    write_claude(tmp_path, '{"permissions": {}}')
    write_codex(tmp_path, 'model = "gpt-5.5"')
    assert check(tmp_path) == []


def test_right_settings_are_told(tmp_path: Path):
    write_claude(tmp_path, json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8000"}}))
    write_codex(tmp_path, CODEX.format(address="http://127.0.0.1:8000/v1", api="responses"))
    claude, codex = check(tmp_path)
    assert {claude.severity, codex.severity} == {FindingSeverity.OK}
    assert claude.message.endswith("Claude Code asks http://127.0.0.1:8000")
    assert codex.message.endswith("Codex asks http://127.0.0.1:8000/v1")


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1/"])
def test_claude_code_adds_the_version_itself(tmp_path: Path, address: str):
    path = write_claude(tmp_path, json.dumps({"env": {"ANTHROPIC_BASE_URL": address}}))
    (finding,) = check(tmp_path)
    assert (finding.id, finding.severity) == ("client-misconfigured", FindingSeverity.ADVICE)
    assert str(path) in finding.message and "leave /v1 out" in finding.message


@pytest.mark.parametrize(
    ("address", "api", "remedy"),
    [
        ("http://127.0.0.1:8000", "responses", "add /v1"),
        ("http://127.0.0.1:8000/v1", "chat", "write responses"),
    ],
)
def test_codex_needs_the_version_and_responses(tmp_path: Path, address: str, api: str, remedy: str):
    write_codex(tmp_path, CODEX.format(address=address, api=api))
    (finding,) = check(tmp_path)
    assert finding.id == "client-misconfigured" and remedy in finding.message


@pytest.mark.parametrize("text", ["{", "[]", '{"env": []}', '{"env": {"ANTHROPIC_BASE_URL": 1}}'])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str):
    path = write_claude(tmp_path, text)
    (finding,) = check(tmp_path)
    assert finding.id == "client-misconfigured" and str(path) in finding.message


def test_the_folders_are_those_of_the_variables(tmp_path: Path):
    write_claude(tmp_path, json.dumps({"env": {"ANTHROPIC_BASE_URL": "http://a"}}))
    found = check_clients({"CLAUDE_CONFIG_DIR": str(tmp_path / ".claude")}, tmp_path / "elsewhere")
    assert len(list(found)) == 1
