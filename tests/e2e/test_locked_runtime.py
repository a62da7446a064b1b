"""The server starts and answers where only the locked runtime is installed, as after `make serve`."""

import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import SRC, dotted
from tests.support.runtime_environment import make_runtime_environment
from tests.support.server import serving

NO_PATH = {"PYTHONPATH": ""}
"""Nothing of the test's own environment."""

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
private = true

[[models]]
name = "cantor"
path = "cantor"

[[models]]
name = "v/*"
provider = "v"
"""

NEEDS = {
    "antiphon.auth.signing_keys": "jwt",
    "antiphon.auth.single_sign_on": "jwt",
    "antiphon.engines.host.ray.request_router": "ray",
    "antiphon.engines.vllm.plugin": "torch",
    "antiphon.limits.redis": "redis",
    "antiphon.media.images": "PIL",
    "antiphon.media.sound": "miniaudio",
    "antiphon.retrieval.ingest.pdf": "pypdfium2",
    "antiphon.retrieval.ingest.sheets": "openpyxl",
    "antiphon.retrieval.ingest.slides": "pptx",
    "antiphon.retrieval.ingest.word": "docx",
    "antiphon.telemetry.otlp": "opentelemetry",
}
"""Modules that import a package of an extra, or of their own environment. All other modules do without."""

# Alembic runs it as a script, with the connection that it is handed.
MIGRATING = "antiphon.store.migrations.env"

IMPORT_EACH = """
import importlib, sys
for name in sys.stdin.read().split():
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of the locked runtime."""
    return make_runtime_environment(tmp_path_factory.mktemp("runtime") / "environment")


def test_only_modules_of_extras_need_an_extra(python: str) -> None:
    names = "\n".join({dotted(path) for path in SRC.rglob("*.py")} - {MIGRATING})
    command = [python, "-P", "-c", IMPORT_EACH]
    run = subprocess.run(command, input=names, env=NO_PATH, capture_output=True, text=True, check=True)
    assert dict(line.split() for line in run.stdout.splitlines()) == NEEDS


def test_the_server_answers_without_any_extra(python: str, tmp_path: Path) -> None:
    file = tmp_path / "antiphon.toml"
    file.write_text(SETTINGS)
    env = {"ANTIPHON_HOME": str(tmp_path), "ANTIPHON_KEYS": "true", **NO_PATH}
    with serving("--config", str(file), env=env, python=python) as server:
        admin = {"authorization": f"Bearer {(tmp_path / 'admin.key').read_text().strip()}"}
        with server.client() as client:
            asked = {"kind": "service", "project": "default"}
            key = client.post("/admin/v1/keys", json=asked, headers=admin).json()["secret"]
            body = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
            headers = {"authorization": f"Bearer {key}"}
            answer = client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        assert {each.exe() for each in server.supervisor.children()} == {server.supervisor.exe()}
        assert all(each.cmdline()[0] == python for each in server.supervisor.children())
