"""What the probe found: runs it under the interpreter of the engine hosts, with their environment, and reads
its lines. The native library is opened there and never here.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from antiphon.engines.base import LoadSpec
from antiphon.settings import EngineSettings
from antiphon.supervisor import host_environment

DEADLINE = 300.0
"""Seconds: opening the library takes a tenth of one, loading a large model minutes."""

SHOWN_ERROR = 300
"""Characters of what a probe said last."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A library or a model that cannot be used."""

    what: str
    """The library's origin and path, or the model's path."""
    message: str


@dataclass(slots=True)
class Inspection:
    """All that was learnt, as far as the probe came."""

    threads: int = 0
    """That the engine would choose."""
    processors: int = 0
    opening: str = ""
    """Origin and path of the last library that was tried."""
    refusals: list[Refusal] = field(default_factory=list)
    """Libraries that cannot be used, in the order in which they were tried."""
    version: str = ""
    """Of the library that was opened; empty when none was."""
    features: tuple[str, ...] = ()
    loading: str = ""
    loaded: list[str] = field(default_factory=list)
    not_loaded: list[Refusal] = field(default_factory=list)
    death: str = ""
    """How the probe ended, if not by itself: `signal SIGILL`."""
    last_words: str = ""


def inspect(python: str, engine: EngineSettings, models: Sequence[LoadSpec]) -> Inspection:
    """Runs the probe to its end, or until it dies."""
    order = json.dumps({"library": engine.library, "models": [asdict(model) for model in models]})
    try:
        done = subprocess.run(
            [python, "-P", "-m", "antiphon.cli.probe"],
            input=order + "\n",
            env=host_environment(os.environ, engine.wait_policy),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        seen = read(_text(late.stdout).splitlines())
        seen.death = f"no answer within {DEADLINE:.0f} s"
        return seen
    seen = read(done.stdout.splitlines())
    if done.returncode:
        seen.death = ended(done.returncode)
        seen.last_words = done.stderr.strip().rpartition("\n")[2][:SHOWN_ERROR]
    return seen


def read(lines: Iterable[str]) -> Inspection:
    """The probe's lines; what a library itself wrote between them is left out."""
    seen = Inspection()
    for line in lines:
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict):
            _note(seen, said)
    return seen


def _note(seen: Inspection, said: dict[str, object]) -> None:
    match said:
        case {"step": "machine", "threads": int(threads), "processors": int(processors)}:
            seen.threads, seen.processors = threads, processors
        case {"step": "opening", "path": str(path), "origin": str(origin)}:
            seen.opening = f"{origin}, {path}"
        case {"step": "refused", "message": str(message)}:
            seen.refusals.append(Refusal(seen.opening, message))
        case {"step": "opened", "version": str(version), "features": list(features)}:
            seen.version, seen.features = version, tuple(str(feature) for feature in features)
        case {"step": "loading", "model": str(model)}:
            seen.loading = model
        case {"step": "loaded"}:
            seen.loaded.append(seen.loading)
        case {"step": "not_loaded", "message": str(message)}:
            seen.not_loaded.append(Refusal(seen.loading, message))


def ended(code: int) -> str:
    """An exit status, for people."""
    return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _text(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""
