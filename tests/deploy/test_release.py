"""A release, built and then used as a stranger would: from its wheel and from its source archive."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from scripts.release import NOT_LOCKED
from tests.support.docs import ROOT
from tests.support.programs import find_free_port, require_program
from tests.support.server import serving
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(900)]

VERSION = "9.8.7"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = " ".join(name for name in PROJECT["optional-dependencies"] if name not in NOT_LOCKED)
IMPORTS = "import docx, genai_prices, jwt, openpyxl, opentelemetry.sdk, pptx, psycopg, pypdfium2, redis"
CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
INSTALL_DEADLINE = 600.0
NO_INTERNET = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "PIP_NO_INDEX": "1"}
"""Variables with which neither pip nor another client reaches anything but this machine."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of what is committed."""
    require_program("git")
    out = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "scripts/release.py", "--version", VERSION, "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True)
    return out


@pytest.fixture(scope="module")
def unpacked(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, as it is without version control."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(release / f"antiphon-{VERSION}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / f"antiphon-{VERSION}"


def empty_environment(home: Path) -> dict[str, str]:
    """The variables of somebody who has just logged in, and where packages come from."""
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    config = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True, check=True
    )
    files = re.findall(r"^\s+(\S+), exists: True$", config.stdout, re.MULTILINE)
    return (
        kept
        | {"PATH": os.environ["PATH"], "HOME": str(home)}
        | ({"PIP_CONFIG_FILE": files[-1]} if files else {})
    )


@contextmanager
def make_serving(folder: Path, home: Path) -> Iterator[str]:
    """`make serve` with every extra in an empty home, until it is ready."""
    with run_until_ready(
        ["make", "serve", f"EXTRAS={EXTRAS}"], "PORT={}", folder, empty_environment(home)
    ) as url:
        yield url


@contextmanager
def run_until_ready(
    command: list[str], port_argument: str, folder: Path, env: dict[str, str]
) -> Iterator[str]:
    """The address of the server that a command starts, until it is ready."""
    port = find_free_port()
    command = [*command, port_argument.format(port)]
    log = Path(env["HOME"]) / "log"
    with log.open("wb") as output:
        started = subprocess.Popen(command, cwd=folder, env=env, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(timeout=5) as client:
            wait_until(
                lambda: started.poll() is not None or is_ready(client, url), INSTALL_DEADLINE, str(command)
            )
        assert started.poll() is None, log.read_text()
        yield url
    finally:
        started.terminate()
        started.wait(60)


def is_ready(client: httpx2.Client, url: str) -> bool:
    """Whether it is; a short pause where nothing answers yet."""
    try:
        return client.get(f"{url}/health/ready").status_code == 200
    except httpx2.TransportError:
        time.sleep(0.3)
        return False


def test_every_file_has_its_digest(release: Path) -> None:
    lines = [line.split() for line in (release / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    files = {path.name: path.read_bytes() for path in release.iterdir() if path.name != "SHA256SUMS"}
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    endings = [".cdx.json", "-licenses.md", "-py3-none-any.whl", ".tar.gz"]
    names = [f"antiphon-{VERSION}{ending}" for ending in endings]
    assert sorted(files) == sorted([*names, f"antiphon_testing-{VERSION}-py3-none-any.whl"])


def test_the_sbom_has_what_the_locks_have(release: Path) -> None:
    document = json.loads((release / f"antiphon-{VERSION}.cdx.json").read_text())
    found = {f"{each['name']}=={each['version']}" for each in document["components"]}
    locked = set()
    for lock in ("serve", *EXTRAS.split()):
        text = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8")
        locked |= set(re.findall(r"^[a-z0-9][a-z0-9.-]*==[^ ]+", text, re.MULTILINE))
    assert locked <= found and document["metadata"]["component"]["version"] == VERSION


def test_the_wheel_and_an_extra_install_from_a_file(release: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    (wheel,) = release.glob("antiphon-*.whl")
    command = [python, "-m", "pip", "install", "--quiet", "--find-links", str(release)]
    command += [f"antiphon[postgresql,testing] @ {wheel.as_uri()}"]
    subprocess.run(command, cwd=tmp_path, env=empty_environment(tmp_path / "home"), check=True)
    subprocess.run([python, "-c", "import psycopg; from antiphon_testing import check_engine"], check=True)
    env = {"HOME": str(tmp_path), "PYTHONPATH": ""}
    with serving(env=env, cwd=tmp_path, python=python) as server, server.client() as client:
        assert client.get("/version").json() == {"version": VERSION}
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("form", ["--only-binary", "--no-binary"], ids=["wheel", "source-archive"])
def test_a_name_installs_and_serves_and_nothing_is_fetched(form: str, release: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    env = empty_environment(tmp_path / "home")
    python = str(tmp_path / "venv" / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", form, "antiphon"]
    command += ["--find-links", str(release), f"antiphon=={VERSION}"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    script = [str(tmp_path / "venv" / "bin" / "antiphon"), "serve"]
    with run_until_ready(script, "--port={}", tmp_path, env | NO_INTERNET) as url:
        require_answer(url)


def test_pipx_runs_it_from_a_file(release: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    env = empty_environment(tmp_path / "home") | {"PIPX_HOME": str(tmp_path / "pipx")}
    command = [str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "pipx"]
    subprocess.run(command, cwd=tmp_path, env=env, check=True)
    (wheel,) = release.glob("antiphon-*.whl")
    run = [str(tmp_path / "venv" / "bin" / "pipx"), "run", "--spec", str(wheel), "antiphon", "serve"]
    with run_until_ready(run, "--port={}", tmp_path, env) as url:
        require_answer(url)


def require_answer(url: str) -> None:
    """The server has the release's version and answers with the model in its package, which `demo` names."""
    assert httpx2.get(f"{url}/version").json() == {"version": VERSION}
    answer = httpx2.post(f"{url}/v1/chat/completions", json=CHAT | {"model": "demo"}, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "cantor" in {model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]}


def test_a_source_archive_serves_with_every_extra(unpacked: Path, tmp_path: Path) -> None:
    with make_serving(unpacked, tmp_path / "home") as url:
        assert httpx2.get(f"{url}/version").json() == {"version": VERSION}
        assert httpx2.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).status_code == 200
    subprocess.run([unpacked / ".venv" / "bin" / "python", "-c", IMPORTS], check=True)


def test_a_clone_without_tags_serves(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run([require_program("git"), "clone", "--quiet", "--no-tags", ROOT, clone], check=True)
    with make_serving(clone, tmp_path / "home") as url:
        assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0", httpx2.get(f"{url}/version").json()["version"])
    subprocess.run([clone / ".venv" / "bin" / "python", "-c", IMPORTS], check=True)
