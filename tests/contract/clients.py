"""Clients that live in environments of their own: a script there makes the calls it is told in JSON, and
prints what the client gave back, in JSON. What that has to be is asserted by the tests."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 150
"""Seconds for all calls of one script."""

Call = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Client:
    """A script, and the interpreter of the environment that `make test` made for it."""

    interpreter: str
    script: str

    def run(self, told: Any) -> Any:
        """What the script prints when it is told this."""
        command = [ROOT / ".venvs" / self.interpreter, ROOT / "tests" / "contract" / self.script]
        done = subprocess.run(
            command,
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={"PATH": os.defpath, "HOME": os.devnull},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def make(self, base_url: str, *calls: Call) -> list[Result]:
        """The result of each call: its `answer`, its `chunks`, its `error`."""
        found = self.run({"base_url": base_url, "calls": calls})
        assert isinstance(found, list) and len(found) == len(calls)
        return found


NODE = "node/bin/node"
