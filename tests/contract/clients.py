"""Clients that live in environments of their own: a script there makes the calls it is told in JSON, and
prints what the client gave back, in JSON. What that has to be is asserted by the tests."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def run(self, told: Any) -> Any:
        """What the script prints in its last line when it is told this."""
        printed = execute([self.interpreter, ROOT / "tests" / "contract" / self.script], json.dumps(told))
        return json.loads(printed.splitlines()[-1])

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
        cwd=ROOT / "tests" / "contract" / "node",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PATH": os.defpath, "HOME": os.devnull, "PYTHONPATH": str(ROOT)} | OFFLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def print_javascript(code: str) -> str:
    """What a page's code prints under Node.js."""
    return execute([NODE, "--input-type=module", "-"], code)


NODE = "node/bin/node"
OFFLINE = {"PYTHONSAFEPATH": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""No folder of a script hides a package, and LiteLLM fetches no list of prices when it is imported."""

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
}
"""The clients that run the scenarios of tests/contract/sdks, and where each one lives."""

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
