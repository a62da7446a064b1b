"""Clients that live in environments of their own.

A script there reads a line of JSON, makes the calls that it names, and prints the results as a line of JSON,
until its input ends. Each script runs once for all tests of a worker: a start takes half a second or more.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.trust import ONE, VARIABLE

ROOT = Path(__file__).parents[2]
PATIENCE = 600
"""Seconds for all calls of one script. The first one also compiles what it imports."""

Call = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """A script, and the interpreter of the environment that `make test` made for it."""

    interpreter: str
    script: str

    def run(self, request: Any) -> Any:
        """The script's results. What else it prints is passed over."""
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith(RESULT):
                return json.loads(line.removeprefix(RESULT))
        raise AssertionError(f"{self.script} ended with {process.wait()}; standard error says why")

    def stop(self) -> None:
        """Ends the input of the script, and waits for its end."""
        if process := PROCESSES.pop(self, None):
            process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        """The script's process, which is started for the first request and after an end."""
        if self not in PROCESSES or PROCESSES[self].poll() is not None:
            command = [ROOT / ".venvs" / self.interpreter, ROOT / "tests" / "contract" / self.script]
            PROCESSES[self] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=NODE_TESTS,
                env=ENVIRONMENT,
            )
        return PROCESSES[self]

    def make(self, base_url: str, *calls: Call) -> list[Result]:
        """The result of each call: its `answer`, its `chunks`, its `error`."""
        found = self.run({"base_url": base_url, "calls": calls})
        assert isinstance(found, list) and len(found) == len(calls)
        return found


def execute(command: Sequence[str | Path], given: str) -> str:
    """What a program of an environment prints when this is its standard input."""
    interpreter, *arguments = command
    done = subprocess.run(
        [ROOT / ".venvs" / interpreter, *arguments],
        input=given,
        cwd=NODE_TESTS,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def print_javascript(code: str) -> str:
    """What a page's code prints under Node.js."""
    return execute([NODE, "--input-type=module", "-"], code)


def stop_clients() -> None:
    for client in tuple(PROCESSES):
        client.stop()


PROCESSES: dict[Client, subprocess.Popen[str]] = {}
RESULT = "RESULT "
NODE = "node/bin/node"
NODE_TESTS = ROOT / "tests" / "contract" / "node"
ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": os.devnull,
    "PYTHONPATH": str(ROOT),
    "PYTHONSAFEPATH": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    VARIABLE: str(ONE),
}
"""No folder of a script hides a package, LiteLLM fetches no list of prices when it is imported, and no
client reads all certificates of the machine."""

SDKS = Client("sdks/bin/python", "sdks/drive.py")
SCENARIOS = {
    "openai": Client(sys.executable, "sdks/drive.py"),
    "litellm": SDKS,
    "instructor": SDKS,
    "langchain": SDKS,
    "llama_index": SDKS,
    "pydantic_ai": Client("pydantic-ai/bin/python", "sdks/drive.py"),
    "fireworks": Client("fireworks/bin/python", "sdks/drive.py"),
    "fireworks_legacy": Client("fireworks-client/bin/python", "sdks/drive.py"),
    "npm_openai": Client(NODE, "node/scenarios.mjs"),
    "ai_sdk_compatible": Client(NODE, "node/scenarios.mjs"),
    "ai_sdk_openai": Client(NODE, "node/scenarios.mjs"),
    "ai_sdk_openai@responses": Client(NODE, "node/scenarios.mjs"),
    "ai_sdk_anthropic@messages": Client(NODE, "node/scenarios.mjs"),
    "langchain@responses": SDKS,
    "pydantic_ai@responses": Client("pydantic-ai/bin/python", "sdks/drive.py"),
    "openai_agents@responses": Client("pydantic-ai/bin/python", "sdks/drive.py"),
    "npm_openai@responses": Client(NODE, "node/scenarios.mjs"),
    "langchain@messages": SDKS,
    "pydantic_ai@messages": Client("pydantic-ai/bin/python", "sdks/drive.py"),
    "npm_anthropic@messages": Client(NODE, "node/scenarios.mjs"),
}
"""The clients that run the scenarios of tests/contract/sdks, and where each one lives."""

CHAT_CLIENTS = [name for name in SCENARIOS if "@" not in name]
"""Those that use chat completions."""

Run = tuple[str, str]
"""A client and a scenario."""


def run_scenarios(
    base_url: str, model: str, runs: Sequence[Run], code: Mapping[str, str] | None = None
) -> dict[Run, Result]:
    """The `result` or the `error` of each run; one process per environment. The scenario `print_code` runs
    the client's code."""
    told = defaultdict[Client, list[Run]](list)
    for run in runs:
        told[SCENARIOS[run[0]]].append(run)
    found: dict[Run, Result] = {}
    for client, chosen in told.items():
        results = client.run({"base_url": base_url, "model": model, "runs": chosen, "code": code or {}})
        found |= zip(chosen, results, strict=True)
    return found
