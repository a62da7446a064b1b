"""The commands that speak to a server, against a real one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.cli.doctor.checks import check_memory, check_models, check_port, find_own_server
from antiphon.cli.doctor.findings import FindingSeverity
from antiphon.cli.serve_options import ServeOptions
from antiphon.settings.server import ServerSettings
from tests.support.commands import run_command
from tests.support.model_files import write_encoder
from tests.support.processes import bare_environment
from tests.support.pty_screen import CTRL_C, open_screen
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

REST = 4000
"""Tokens of an answer that nobody stops: the random model hardly ever ends by itself, and it has room for
more."""


def test_ctrl_c_in_a_chat_frees_the_sequence(busy: Server, tmp_path: Path) -> None:
    busy.wait_until_idle()
    before = busy.load().decoded_tokens
    with open_screen("chat", "--url", busy.url, cwd=tmp_path) as shown:
        shown.expect_prompt()
        shown.type("Go on!\r")
        wait_until(lambda: busy.load().decoded_tokens > before + 3, what="tokens are made")
        shown.type(CTRL_C)
        shown.expect("Ctrl-C again or Ctrl-D leaves")
        wait_until(lambda: busy.load().running == 0, what="the sequence is free again")
        assert busy.load().decoded_tokens - before < REST, "the generation was cut short"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands") / "home"


@pytest.fixture(scope="module")
def two_models(home: Path) -> Iterator[Server]:
    """A server of an encoder, and of cantor under two names."""
    encoder = write_encoder(home.with_name("encoder.gguf"))
    models = ("--model", str(encoder), "--model", "cantor", "--alias", "gpt-4o=cantor")
    with serving("--host", "localhost", *models, env={"ANTIPHON_HOME": str(home)}) as server:
        yield server


def test_doctor_tells_its_own_server_from_others(
    two_models: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.cli.doctor.checks.HEALTH_TIMEOUT", 60.0)
    server = two_models
    settings = ServerSettings(port=int(server.url.rpartition(":")[2]))
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "other"))
    found = check_port(settings)
    assert (found.id, found.severity) == ("port-taken", FindingSeverity.ADVICE)
    assert "another Antiphon already uses" in found.message

    monkeypatch.setenv("ANTIPHON_HOME", str(home))
    found = check_port(settings)
    assert (found.id, found.severity) == ("port", FindingSeverity.OK)
    assert found.message == f"your server listens on {server.url} (process {server.process.pid})"
    own = find_own_server(settings)
    assert own is not None and own.measure_memory() > 10_000_000
    models, _ = check_models(ServeOptions(models=["cantor"]).load_settings())
    (memory,) = check_memory(models, own)
    assert "of them used by the running server" in memory.message


def test_bench_counts_as_the_engine_does(server: Server) -> None:
    server.wait_until_idle()
    before = server.load()
    command = [sys.executable, "-m", "antiphon", "bench", "--url", server.url, "--json"]
    options = ["--requests", "4", "--concurrency", "2", "--max-tokens", "8", "--prompt-tokens", "60"]
    done = subprocess.run(
        [*command, *options], env=bare_environment(), capture_output=True, text=True, check=True, timeout=180
    )
    shown = json.loads(done.stdout)
    assert (shown["answered"], shown["failed"], shown["counted"]) == (4, 0, True)
    assert 4 <= shown["tokens"] <= 4 * 8
    assert 40 <= shown["prompt_tokens"] <= 90
    made = server.load().decoded_tokens - before.decoded_tokens
    requests = 4 + 2  # the probes too; each may also have made the token that ends it
    assert shown["tokens"] <= made <= shown["tokens"] + 2 * requests


def test_chat_and_bench_skip_an_encoder_and_take_an_alias(two_models: Server, tmp_path: Path) -> None:
    server = two_models

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(
            arguments[0], "--url", server.url, *arguments[1:], cwd=tmp_path, stdin="Who are you?\n"
        )

    answers = [said("chat"), said("chat", "--model", "gpt-4o")]
    assert {(each.returncode, each.stderr) for each in answers} == {(0, "")}
    assert all("cantor" in each.stdout for each in answers)
    refused = said("chat", "--model", "encoder")
    assert refused.returncode == 1 and "makes vectors or ranks documents" in refused.stderr
    command = [sys.executable, "-m", "antiphon", "bench", "--url", server.url, "--requests", "1"]
    measured = subprocess.run(  # it starts threads
        [*command, "--max-tokens", "4", "--prompt-tokens", "20", "--json"],
        env=bare_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert json.loads(measured.stdout)["model"] == "cantor"
