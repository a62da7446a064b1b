"""Checks the settings files of agents on this machine: whether Claude Code and Codex find an Antiphon with
them. A file that names no other server than the agent's own is not reported."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.cli.doctor.findings import Finding, FindingSeverity, report_ok, report_problem


def check_clients(variables: Mapping[str, str], home: Path) -> Iterator[Finding]:
    """Checks the file of each agent that has one."""
    claude = Path(variables.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "settings.json"
    codex = Path(variables.get("CODEX_HOME") or home / ".codex") / "config.toml"
    for path, check in ((claude, _check_claude_code), (codex, _check_codex)):
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # nearly always, there is none
        try:
            yield from check(path, text)
        except (ValueError, AttributeError, TypeError):
            yield _report(f"{path} cannot be read as the agent's settings")


def _check_claude_code(path: Path, text: str) -> Iterator[Finding]:
    """Checks the address, to which Claude Code adds /v1/messages."""
    address = json.loads(text).get("env", {}).get("ANTHROPIC_BASE_URL")
    if address is None:
        return
    if urlsplit(address).path.rstrip("/").endswith("/v1"):
        yield _report(f"{path}: Claude Code adds /v1 to ANTHROPIC_BASE_URL {address}; leave /v1 out")
    else:
        yield report_ok("client", f"{path}: Claude Code asks {address}")


def _check_codex(path: Path, text: str) -> Iterator[Finding]:
    """Checks the provider that Codex uses: its address, to which Codex adds /responses, and its API."""
    settings = tomllib.loads(text)
    name = settings.get("model_provider")
    provider = settings.get("model_providers", {}).get(name)
    if provider is None:
        return
    address, api = provider.get("base_url", ""), provider.get("wire_api", "responses")
    if api != "responses":
        yield _report(f"{path}: Codex refuses wire_api {api}; write responses")
    elif not urlsplit(address).path.strip("/"):
        yield _report(f"{path}: Codex adds /responses to base_url {address}; add /v1 to it")
    else:
        yield report_ok("client", f"{path}: Codex asks {address}")


def _report(message: str) -> Finding:
    return report_problem("client-misconfigured", message, FindingSeverity.ADVICE)
