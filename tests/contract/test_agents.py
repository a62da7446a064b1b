"""Agents as their users run them, unchanged and headless: each edits a file and runs commands by calls of
tools, over several turns, against a server with keys. The model's answers are fixed.

`make clients` installs the agents' programs, of 900 MB, and runs these tests.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.contract.agents.scripted_vendor import (
    COMPLETION_TOKENS,
    ScriptedVendor,
    Step,
    count_usage,
    name_call,
    serve_script,
)
from tests.support.server import serving
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.agents, pytest.mark.timeout(480)]

PROGRAMS = Path(__file__).parent / "agents" / "node_modules"
PATIENCE = 300
"""Seconds of an agent's whole run; it takes about five."""

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}/v1"
private = true

[[models]]
name = "local"
provider = "v"
profile = {{ max_output = 8192, context_length = 32768, reasoning = true, modalities = ["text", "image"] }}
"""


@dataclass(frozen=True)
class Place:
    """A server with keys whose model is the scripted vendor's, and a folder for the agent."""

    url: str
    vendor: ScriptedVendor
    secret: str
    """The agent's key."""
    key: str
    """The key's id."""
    operator: httpx2.Client
    home: Path
    work: Path

    def run(self, command: Sequence[str | Path], fails: bool = False, **variables: str) -> str:
        """What the agent prints. It sees no variable of this process, so it can use no proxy either. `fails`:
        whether its task must fail."""
        env = {"PATH": os.defpath, "HOME": str(self.home), "LANG": "C.UTF-8"} | variables
        done = subprocess.run(
            command,
            cwd=self.work,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout

    def list_rows(self, least: int) -> list[dict[str, Any]]:
        """The rows of the agent's key in the ledger, the oldest first. `least`: as many there must be."""
        rows: list[dict[str, Any]] = []

        def are_there() -> bool:
            asked = f"/admin/v1/usage/entries?key={self.key}&limit=100"
            rows[:] = self.operator.get(asked).json()["data"]
            return len(rows) >= least

        wait_until(are_there, what="the rows of the ledger")
        return sorted(rows, key=lambda row: row["prompt_tokens"])

    def expect_rows(self, path: str, first: int = 1) -> None:
        """Checks that the ledger has every turn with its usage, and nothing besides. `first`: how often the
        first turn is asked for."""
        turns = [0] * (first - 1) + list(range(len(self.vendor.steps)))
        assert [
            (row["operation"], row["status"], row["prompt_tokens"], row["output_tokens"])
            for row in self.list_rows(len(turns))
        ] == [(path, "ok", count_usage(turn)["prompt_tokens"], COMPLETION_TOKENS) for turn in turns]


@contextmanager
def serve_agent(folder: Path, steps: Sequence[Step]) -> Iterator[Place]:
    """A server that answers an agent with these steps."""
    home, agent_home, work = folder / "server", folder / "home", folder / "work"
    for each in (home, agent_home, work):
        each.mkdir()
    file = home / "antiphon.toml"
    with serve_script(steps) as vendor:
        file.write_text(SETTINGS.format(url=vendor.url))
        env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
        with serving("--config", str(file), threads=None, env=env) as server:
            admin = (home / "admin.key").read_text().strip()
            with server.client(headers={"authorization": f"Bearer {admin}"}) as operator:
                key = operator.post("/admin/v1/keys", json={"kind": "service", "project": "default"}).json()
                yield Place(server.url, vendor, key["secret"], key["id"], operator, agent_home, work)


def find_program(pattern: str) -> Path:
    """The agent's program for this machine. npm installs none where its makers have none."""
    found = sorted(PROGRAMS.glob(pattern))
    if not found and any(PROGRAMS.glob("*/*")):
        pytest.skip(f"npm has no {pattern} for this machine")
    assert found, "the agents are not installed; run: make clients"
    return found[0]


def test_claude_code_edits_a_file_and_runs_commands(tmp_path: Path) -> None:
    program = find_program("@anthropic-ai/claude-code-*/claude")
    greeting = tmp_path / "work" / "greeting.txt"
    steps = (
        Step(reasoning="I read it first.", calls=[("Read", {"file_path": str(greeting)})]),
        Step(
            "I change it.",
            [
                (
                    "Edit",
                    {"file_path": str(greeting), "old_string": "Good morning", "new_string": "Good evening"},
                )
            ],
        ),
        Step(
            calls=[
                ("Bash", {"command": "tr a-z A-Z < greeting.txt > shouted.txt", "description": "Shout"}),
                ("Bash", {"command": "cat no-such-file", "description": "Read what is not there"}),
            ],
        ),
        Step(calls=[("ToolSearch", {"query": "select:WebFetch", "max_results": 1})]),
        Step("Done: it is evening."),
    )
    with serve_agent(tmp_path, steps) as place:
        greeting.write_text("Good morning, world\n")
        options = ("--output-format", "json", "--allowedTools", "Bash,Read,Edit,ToolSearch")
        printed = place.run(
            [program, "-p", "Greet in the evening.", *options], fails=False, **name_variables(place)
        )
        result = json.loads(printed)
        assert (result["is_error"], result["result"]) == (False, "Done: it is evening.")
        assert greeting.read_text() == "Good evening, world\n"
        assert (place.work / "shouted.txt").read_text() == "GOOD EVENING, WORLD\n"
        results = place.vendor.list_results()
        assert list(results) == [name_call(*each) for each in ((0, 0), (1, 0), (2, 0), (2, 1), (3, 0))]
        assert "Good morning, world" in results[name_call(0, 0)]
        assert "No such file" in results[name_call(2, 1)]
        place.expect_rows("/v1/messages")
        first, *_, last = place.vendor.bodies
        assert "WebFetch" not in list_tools(first) and "WebFetch" in list_tools(last)
        assert '"name": "WebFetch"' in results[name_call(3, 0)]
        assert "DeferredToolPlaceholder" not in list_tools(last)
        assert "x-anthropic-billing-header" not in json.dumps(first)


CODEX_SETTINGS = """
model = "local"
model_provider = "antiphon"
model_context_window = 32768
model_catalog_json = "{catalog}"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.antiphon]
name = "Antiphon"
base_url = "{url}/v1"
env_key = "ANTIPHON_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false

[analytics]
enabled = false

[history]
persistence = "none"
"""

CODEX_MODEL = {
    "slug": "local",
    "display_name": "Local",
    "supported_reasoning_levels": [{"effort": "low", "description": "low"}],
    "default_reasoning_level": "low",
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 1,
    "base_instructions": "You are a coding agent.",
    "support_verbosity": False,
    "truncation_policy": {"mode": "tokens", "limit": 10000},
    "supports_parallel_tool_calls": True,
    "context_window": 32768,
    "experimental_supported_tools": [],
    "input_modalities": ["text"],
    "apply_patch_tool_type": "freeform",
}
"""Codex's facts about the model, by which it gives it the custom tool apply_patch."""

PATCH = """*** Begin Patch
*** Update File: greeting.txt
@@
-Good morning, world
+Good evening, world
*** End Patch
"""


OPENCODE_SETTINGS = """
{
  "provider": {
    "antiphon": {
      "npm": "%(package)s",
      "name": "Antiphon",
      "options": { "baseURL": "%(url)s/v1", "apiKey": "{env:ANTIPHON_KEY}" },
      "models": {
        "local": { "name": "My model", "tool_call": true, "limit": { "context": 32768, "output": 4096 } }
      }
    }
  },
  "model": "antiphon/local",
  "small_model": "antiphon/local",
  "share": "disabled"
}
"""


def test_codex_edits_a_file_and_runs_commands(tmp_path: Path) -> None:
    program = find_program("@openai/codex-*/vendor/*/bin/codex")
    steps = (
        Step(reasoning="I read it first.", calls=[("exec_command", {"cmd": "cat greeting.txt"})]),
        Step("I change it.", [("apply_patch", {"input": PATCH})]),
        Step(
            calls=[
                ("exec_command", {"cmd": "tr a-z A-Z < greeting.txt > shouted.txt"}),
                ("exec_command", {"cmd": "cat no-such-file"}),
            ]
        ),
        Step("Done: it is evening."),
    )
    with serve_agent(tmp_path, steps) as place:
        greeting = place.work / "greeting.txt"
        greeting.write_text("Good morning, world\n")
        printed = run_codex(place, program)
        events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        assert [item["text"] for item in items if item["type"] == "agent_message"][-1] == steps[-1].text
        assert greeting.read_text() == "Good evening, world\n"
        assert (place.work / "shouted.txt").read_text() == "GOOD EVENING, WORLD\n"
        results = place.vendor.list_results()
        assert list(results) == [name_call(*each) for each in ((0, 0), (1, 0), (2, 0), (2, 1))]
        assert "Good morning, world" in results[name_call(0, 0)]
        assert "No such file" in results[name_call(2, 1)]
        place.expect_rows("/v1/responses")


def test_codex_does_not_run_a_call_that_the_limit_cut(tmp_path: Path) -> None:
    """It runs a custom call as soon as the call has an end, and its text may look whole."""
    program = find_program("@openai/codex-*/vendor/*/bin/codex")
    steps = (Step(calls=[("apply_patch", {"input": PATCH})], cut=2),)
    with serve_agent(tmp_path, steps) as place:
        greeting = place.work / "greeting.txt"
        greeting.write_text("Good morning, world\n")
        printed = run_codex(place, program, fails=True)
        assert "max_output_tokens" in printed
        assert greeting.read_text() == "Good morning, world\n"


def run_codex(place: Place, program: Path, fails: bool = False) -> str:
    """What Codex prints."""
    catalog = place.home / "catalog.json"
    catalog.write_text(json.dumps({"models": [CODEX_MODEL]}))
    (place.home / "config.toml").write_text(CODEX_SETTINGS.format(url=place.url, catalog=catalog))
    # The commands are those of the steps, in a folder of this test, so Codex needs no sandbox of its own.
    options = ("--skip-git-repo-check", "--ephemeral", "--dangerously-bypass-approvals-and-sandbox")
    return place.run(
        [program, "exec", *options, "--json", "Greet in the evening."],
        fails=fails,
        CODEX_HOME=str(place.home),
        ANTIPHON_KEY=place.secret,
    )


@pytest.mark.parametrize(
    ("package", "path"),
    [("@ai-sdk/openai-compatible", "/v1/chat/completions"), ("@ai-sdk/openai", "/v1/responses")],
)
def test_opencode_edits_a_file_and_runs_commands(tmp_path: Path, package: str, path: str) -> None:
    program = find_program("opencode-*/bin/opencode")
    greeting = tmp_path / "work" / "greeting.txt"
    edit = {"filePath": str(greeting), "oldString": "Good morning", "newString": "Good evening"}
    steps = (
        Step(reasoning="I read it first.", calls=[("read", {"filePath": str(greeting)})]),
        Step("I change it.", [("edit", edit)]),
        Step(
            calls=[
                ("bash", {"command": "tr a-z A-Z < greeting.txt > shouted.txt", "description": "Shout"}),
                ("bash", {"command": "cat no-such-file", "description": "Read what is not there"}),
            ],
        ),
        Step("Done: it is evening."),
    )
    with serve_agent(tmp_path, steps) as place:
        greeting.write_text("Good morning, world\n")
        settings = OPENCODE_SETTINGS % {"url": place.url, "package": package}
        (place.work / "opencode.json").write_text(settings)
        printed = place.run(
            [program, "run", "--format", "json", "Greet in the evening."],
            ANTIPHON_KEY=place.secret,
            OPENCODE_DISABLE_AUTOUPDATE="1",
            OPENCODE_DISABLE_MODELS_FETCH="1",
        )
        events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        texts = [event["part"]["text"] for event in events if event["type"] == "text"]
        assert texts[-1] == steps[-1].text
        assert greeting.read_text() == "Good evening, world\n"
        assert (place.work / "shouted.txt").read_text() == "GOOD EVENING, WORLD\n"
        results = place.vendor.list_results()
        assert list(results) == [name_call(*each) for each in ((0, 0), (1, 0), (2, 0), (2, 1))]
        assert "Good morning, world" in results[name_call(0, 0)]
        assert "No such file" in results[name_call(2, 1)]
        place.expect_rows(path, first=2)  # it asks for a title too


def list_tools(body: Any) -> list[str]:
    return [tool["function"]["name"] for tool in body["tools"]]


def name_variables(place: Place) -> dict[str, str]:
    """The variables of Claude Code, as docs/claude-code.md says, with telemetry and updates off."""
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": place.secret,
        "ANTHROPIC_MODEL": "local",
        "ANTHROPIC_SMALL_FAST_MODEL": "local",
        "CLAUDE_CONFIG_DIR": str(place.home / ".claude"),
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "32768",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
