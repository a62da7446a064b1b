"""A server whose log is JSON: every line of its standard error is, from its start over crashes to its end."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.processes import bare_environment
from tests.support.server import Server, provide_store
from tests.support.waiting import wait_until

CONFIG = """
[log]
format = "json"

[keys]
enabled = true
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "antiphon", "serve", "--port", "0", "--threads", "1", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=bare_environment() | {"ANTIPHON_HOME": str(folder / "home")},
        cwd=folder,
    )


def read(server: Server) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.lines.append(line)


@pytest.mark.slow
def test_every_line_of_a_run_with_a_crash_is_json(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text(CONFIG)
    provide_store({"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home")})
    server = Server(start(tmp_path))
    reader = threading.Thread(target=read, args=(server,))
    reader.start()
    with server.process:
        try:
            wait_until(lambda: server.records("serving"), 120, "the server serves")
            server.host().send_signal(signal.SIGSEGV)
            wait_until(lambda: server.records("process_back"), 120, "the engine is back")
            assert server.stop() == 0
        finally:
            server.process.kill()
            reader.join(60)
        assert server.process.stdout is not None and server.process.stdout.read() == ""
    records = [json.loads(line) for line in server.lines]
    (serving,) = (each for each in records if each["event"] == "serving")
    assert serving["url"].startswith("http://127.0.0.1:") and serving["models"] == ["cantor"]
    assert (serving["workers"], serving["keys"]) == (1, True)
    texts = [each["text"] for each in records if each["event"] in ("output", "notice")]
    assert "Fatal Python error: Segmentation fault" in texts
    assert any(text.startswith("the operator's key was made") for text in texts)


RUN_STARTS = """
import json, os, sys
from antiphon.cli.main import main
statuses = []
for arguments, env in json.load(sys.stdin):
    os.environ.update(env)
    sys.argv = ["antiphon", "serve", "--port", "0", *arguments]
    try:
        main()
    except SystemExit as ended:
        statuses.append(ended.code)
    for name in env:
        del os.environ[name]
    print("END", file=sys.stderr, flush=True)
print(json.dumps(statuses))
"""
"""Runs each start as a process of its own would, which costs half a CPU second to import."""

IN_JSON = {"ANTIPHON_LOG_FORMAT": "json"}

REFUSED: tuple[tuple[tuple[str, ...], dict[str, str], str], ...] = (
    ((), IN_JSON | {"ANTIPHON_SEND_TIMEOUT": "soon"}, "ANTIPHON_SEND_TIMEOUT"),
    ((), IN_JSON | {"ANTIPHON_PROT": "1"}, "ANTIPHON_PROT"),
    (("--log-format", "json", "--nonsense"), {}, "No such option: --nonsense"),
    (("--log-format=json", "--workers", "0"), {}, "--workers"),
    (("--log-format", "json", "--model", "missing.gguf"), {}, "missing.gguf"),
    (("--config", "wrong.toml"), {}, "levle"),
    (("--config", "wrong.toml"), {"ANTIPHON_LOG_LEVEL": "error"}, "levle"),
)


def test_a_refused_start_is_told_in_json(tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('[log]\nformat = "json"\nlevle = "info"\n')
    ended = subprocess.run(
        [sys.executable, "-c", RUN_STARTS],
        input=json.dumps([(arguments, env) for arguments, env, _ in REFUSED]),
        capture_output=True,
        check=True,
        text=True,
        timeout=180,
        env=bare_environment() | {"ANTIPHON_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
    )
    assert all(status > 0 for status in json.loads(ended.stdout)), ended.stdout
    parts = ended.stderr.split("END\n")
    assert parts.pop() == ""
    for part, (_, _, told) in zip(parts, REFUSED, strict=True):
        records = [json.loads(line) for line in part.splitlines()]
        assert any(told in str(each.get("error", each.get("text"))) for each in records), part
