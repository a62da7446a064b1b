"""Importing does nothing: no thread, file, socket, process, signal handler, variable or word."""

import json
import subprocess
import sys
from pathlib import Path

from tests.architecture.borders import BORDERS
from tests.architecture.source import SRC, dotted, expect_none

SCRIPT = Path(__file__).with_name("watch_imports.py")
# What a dependency does when it is imported is its own affair. The engine's library is opened, not imported.
# Those that have an environment of their own are not in this one.
ELSEWHERE = {"grpc", "ray", "tokenizers", "torch", "vllm"}
DEPENDENCIES = sorted(BORDERS.keys() - {"xllamacpp"} - ELSEWHERE)
# Alembic runs it as a script, with the connection that it is handed.
MIGRATING = "antiphon.store.migrations.env"
# Others import these, and they begin with the other's package: vLLM its plugin, Ray Serve its request router.
PLUGINS = ("antiphon.engines.vllm.plugin", "antiphon.engines.host.ray.request_router")

EFFECTS = {
    "asks": "import socket\nsocket.socket().close()",
    "fails": "1 / 0",
    "handles": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "holds": "import os\nkept = os.open('/dev/null', os.O_RDONLY)",
    "runs": "import subprocess\nsubprocess.run(['true'])",
    "sets": "import os\nos.environ['A'] = 'b'",
    "starts": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
    "warns": "import warnings\nwarnings.warn('old', DeprecationWarning)",
    "writes": "open('/dev/null', 'w').close()",
}


def effects(names: list[str], path: str = "", dependencies: list[str] = DEPENDENCIES) -> list[str]:
    """What importing does, and what it prints, in a fresh interpreter without the caller's environment."""
    command = [sys.executable, str(SCRIPT), json.dumps(names), json.dumps(dependencies)]
    env = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin"}
    run = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    return run.stdout.splitlines() + run.stderr.splitlines()


def test_importing_a_module_does_nothing():
    names = {dotted(path) for path in SRC.rglob("*.py")} - {MIGRATING, *PLUGINS}
    expect_none(effects(sorted(names)))


def test_an_effect_is_found(tmp_path):
    harmless = "import json, pathlib\ntext = pathlib.Path('/dev/null').read_text()"
    for name, body in {**EFFECTS, "reads": harmless, "says": "print('hello')"}.items():
        (tmp_path / f"{name}.py").write_text(body)
    found = effects([*EFFECTS, "reads", "says"], path=str(tmp_path), dependencies=[])
    assert {line.partition(" ")[0] for line in found} == {*EFFECTS, "hello"}
