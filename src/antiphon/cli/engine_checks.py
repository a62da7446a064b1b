"""The checks of `antiphon doctor` that need native code: runs the probe under the interpreter of the engine
hosts, with their environment, and reads its lines. Opens no library itself.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from antiphon.cli.findings import Finding, Standing, report_problem
from antiphon.engines.base import LoadSpec
from antiphon.processes.supervisor import host_environment
from antiphon.settings.schema import Settings, choose_interpreter

DEADLINE = 300.0
"""Seconds: opening the library takes a tenth of one, loading a large model minutes."""

SHOWN_ERROR = 300
"""Characters of what a probe said last."""


def check_engine(settings: Settings, models: Sequence[LoadSpec]) -> Iterator[Finding]:
    """Runs the probe to its end, or until it dies. `models`: to be loaded."""
    python, engine = choose_interpreter(settings), settings.engine
    threads = [model.threads for model in settings.models]
    order = {"library": engine.library, "threads": threads, "models": [asdict(model) for model in models]}
    try:
        done = subprocess.run(
            [python, "-P", "-m", "antiphon.cli.probe"],
            input=json.dumps(order).encode() + b"\n",
            env=host_environment(os.environ, engine.wait_policy),
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
        output, death = done.stdout, "" if done.returncode == 0 else describe_end(done.returncode)
        words = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2][:SHOWN_ERROR]
    except subprocess.TimeoutExpired as late:
        output, death, words = late.stdout or b"", f"no answer within {DEADLINE:.0f} s", ""
    except OSError as problem:
        output, death, words = b"", f"it does not run: {problem}", ""
    yield from read_probe(output, death, words)


def read_probe(output: bytes, death: str, words: str) -> Iterator[Finding]:
    """The probe's findings, and what its end means. A library writes between its lines what it likes."""
    step, is_alive = {"step": "", "what": ""}, False
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "step" in said:
            step = said
        elif isinstance(said, dict) and "standing" in said:
            is_alive = True
            yield Finding(**{**said, "standing": Standing(said["standing"])})
    if not is_alive:
        reason = f"the engine's Python cannot run Antiphon ({death or 'it says nothing'})"
        yield report_problem("interpreter-unusable", f"{reason}: {words}" if words else reason)
    elif death and step["step"] == "loading":
        yield report_problem("model-not-loadable", f"loading {step['what']} ends with {death}")
    elif death:
        yield report_problem("library-crashes", f"opening the library of {step['what']} ends with {death}")


def describe_end(code: int) -> str:
    """An exit status, for people."""
    return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
