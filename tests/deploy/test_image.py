"""The image: built from the Dockerfile over a base of Debian's packages, then run by podman.

No registry of images is asked. mmdebstrap makes the base, and buildah builds with chroot isolation, which
needs root. ANTIPHON_TEST_BASE names a base that was made before, as a tar file.
"""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.support.docs import ROOT
from tests.support.programs import find_free_port, require_program
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(1800)]

RELEASE = "bookworm"
BASE = "localhost/debian-base:test"
DEADLINE = 120.0
"""Seconds until a container serves; it takes about five."""
STOP_S = 30
"""What compose and Kubernetes give a container to end."""
CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}

IN_OWN_CGROUPS = """
umount -R /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup
exec podman "$@"
"""
"""crun refuses a machine that mixes both versions of control groups, so podman sees one version."""


@dataclass(frozen=True)
class Engine:
    """podman and buildah with a storage of their own."""

    folder: Path

    @property
    def storage(self) -> list[str]:
        return [
            "--root",
            f"{self.folder}/images",
            "--runroot",
            f"{self.folder}/run",
            "--storage-driver",
            "overlay",
        ]

    def podman(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        own = ["unshare", "--mount", "sh", "-c", IN_OWN_CGROUPS, "podman"]
        command = [*own, *self.storage, "--cgroup-manager", "cgroupfs", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, done.stderr
        return done

    def build(self, context: Path, tag: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Builds the Dockerfile of a source tree, with the packages of this machine's pip."""
        secret = self.folder / "pip.conf"
        settings = subprocess.run(
            [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        ).stdout
        told = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", settings, re.MULTILINE))
        secret.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in told.items()))
        folders = {word.removeprefix("file://") for value in told.values() for word in value.split()}
        folders = {
            str(Path(each).parent if each.endswith("/simple") or Path(each).is_file() else each)
            for each in folders
            if each[:1] == "/"
        }
        mounts = [
            f"--volume={each}:{each}:ro"
            for each in sorted(folders | {"/etc/ssl/certs"})
            if Path(each).is_dir()
        ]
        command = ["buildah", *self.storage, "bud", "--isolation", "chroot", "--format", "docker", "--layers"]
        command += [
            *mounts,
            "--network",
            "host",
            "--build-arg",
            f"BASE={BASE}",
            *words,
            "--secret",
            f"id=pip,src={secret}",
        ]
        command += ["--file", str(context / "deploy" / "Dockerfile"), "--tag", tag, str(context)]
        return subprocess.run(command, capture_output=True, text=True, check=False)


def build_image(engine: Engine, context: Path, tag: str, *words: str) -> str:
    """Builds an image that must be built, and returns its name."""
    done = engine.build(context, tag, *words)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-4000:]
    return tag


@dataclass(frozen=True)
class Container:
    """A running container, on this machine's network."""

    engine: Engine
    name: str
    url: str

    def run(self, *words: str, check: bool = True) -> str:
        return self.engine.podman("exec", self.name, *words, check=check).stdout.strip()

    def stop(self) -> tuple[float, int]:
        """Stops it by SIGTERM. Returns the seconds that it took, and its exit status."""
        began = time.monotonic()
        self.engine.podman("stop", "--time", str(STOP_S), self.name)
        seconds = time.monotonic() - began
        told = self.engine.podman("inspect", "--format", "{{.State.ExitCode}}", self.name).stdout
        return seconds, int(told)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    for program in ("buildah", "podman", "crun", "mmdebstrap"):
        require_program(program)
    if os.geteuid() != 0:
        pytest.skip("needs root: building with chroot isolation, and a volume of the image's user")
    folder = tmp_path_factory.mktemp("containers")
    base = Path(os.environ.get("ANTIPHON_TEST_BASE", folder / "base.tar"))
    if not base.exists():
        command = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates", RELEASE, str(base)]
        subprocess.run(command, capture_output=True, check=True)
    engine = Engine(folder)
    engine.podman("import", str(base), BASE)
    yield engine
    engine.podman("rm", "--all", "--force", check=False)
    engine.podman("rmi", "--all", "--force", check=False)


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    labels = ("--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=abc")
    return build_image(engine, ROOT, "antiphon:first", *labels)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A volume of the image's user."""
    (tmp_path / "home").mkdir(mode=0o700)
    os.chown(tmp_path / "home", 10001, 10001)
    return tmp_path / "home"


@contextmanager
def running(engine: Engine, image: str, home: Path) -> Iterator[Container]:
    """A container as docs/deploy.md starts it, and its end."""
    name, port = f"antiphon-{time.monotonic_ns()}", find_free_port()
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = ["run", "--detach", "--name", name, "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
    words += ["--security-opt", "no-new-privileges", "--cgroups", "disabled", "--no-healthcheck"]
    words += ["--ulimit", f"nofile={files}:{files}", "--ulimit", "nproc=4096:4096", "--network", "host"]
    words += ["--env", f"ANTIPHON_PORT={port}", "--env", "ANTIPHON_HOST=127.0.0.1"]
    engine.podman(*words, "--volume", f"{home}:/var/lib/antiphon", image, "serve", "--threads", "1")
    container = Container(engine, name, f"http://127.0.0.1:{port}")
    try:
        with httpx2.Client(timeout=5) as client:
            wait_until(lambda: is_ready(client, container.url), DEADLINE, lambda: engine.podman("logs", name))
        yield container
    finally:
        engine.podman("rm", "--force", name, check=False)


def is_ready(client: httpx2.Client, url: str) -> bool:
    """Whether it is; a short pause where nothing answers yet."""
    try:
        return client.get(f"{url}/health/ready").status_code == 200
    except httpx2.TransportError:
        time.sleep(0.2)
        return False


def count_requests(container: Container, home: Path) -> int:
    headers = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
    answer = httpx2.get(f"{container.url}/admin/v1/usage", headers=headers, timeout=60)
    requests: int = answer.json()["total"]["requests"]
    return requests


def ask(container: Container, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx2.post(f"{container.url}/v1/chat/completions", json=CHAT, headers=headers, timeout=60)
    return answer.status_code


def test_it_runs_without_root_on_a_read_only_disk(engine: Engine, image: str, home: Path) -> None:
    with running(engine, image, home) as container:
        assert container.run("id", "-u") == "10001"
        assert container.run("sh", "-c", "touch /x /usr/x 2>&1; true").count("Read-only file system") == 2
        assert container.run("sh", "-c", "command -v gcc cc c++ g++ make; true") == ""
        assert "tini" in container.run("cat", "/proc/1/comm")
        (told,) = json.loads(engine.podman("inspect", image).stdout)
        kind, *check = told["Healthcheck"]["Test"]
        assert kind == "CMD" and engine.podman("exec", container.name, *check).returncode == 0
        assert engine.podman(
            "exec", "--env", "ANTIPHON_PORT=1", container.name, *check, check=False
        ).returncode
        assert told["Config"]["User"] == "10001:10001"
        assert "python" not in " ".join(check), "a start of Python every ten seconds costs too much"
        labels = {name.rpartition(".")[2]: value for name, value in told["Config"]["Labels"].items()}
        assert labels["title"] == "Antiphon" and labels["licenses"] == "Apache-2.0"
        assert (labels["version"], labels["revision"]) == ("1.2.3", "abc")
        find = "find /usr -name pip -o -name pip3 -o -name ensurepip -o -name setuptools"
        assert container.run(*find.split()) == ""


def test_it_answers_stops_in_time_and_survives_an_upgrade(
    engine: Engine, image: str, home: Path, tmp_path: Path
) -> None:
    with running(engine, image, home) as container:
        key = container.run("antiphon", "keys", "create", "service", "--project", "default")
        assert ask(container, key) == 200
        wait_until(lambda: count_requests(container, home) == 1, DEADLINE, "the ledger has it")
        container.run("antiphon", "store", "backup", "/var/lib/antiphon/monday")
        seconds, status = container.stop()
        assert (status, seconds < STOP_S / 2) == (0, True), seconds
    newer = copy_source(tmp_path / "newer", "9.8.7")
    build_image(engine, newer, "antiphon:second")
    with running(engine, "antiphon:second", home) as container:
        assert container.run("antiphon", "version") == "9.8.7"
        assert ask(container, key) == 200
        wait_until(lambda: count_requests(container, home) == 2, DEADLINE, "the ledger has both")


def copy_source(folder: Path, version: str) -> Path:
    """What the image is made of, with another version."""
    for name in ("src", "requirements", "deploy", "scripts"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md", ".dockerignore"):
        shutil.copy(ROOT / name, folder / name)
    file = folder / "src" / "antiphon" / "__init__.py"
    text = re.sub(r'(?m)^__version__ = ".*"$', f'__version__ = "{version}"', file.read_text("utf-8"))
    file.write_text(text)
    return folder


def test_the_health_check_fails_where_the_server_does_not_answer_200() -> None:
    """The check itself, on this machine: beside a server that refuses, one that is silent, and none."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text("utf-8")
    (line,) = re.findall(r"^HEALTHCHECK .*\n +CMD (\[.*\])$", dockerfile, re.MULTILINE)
    check = json.loads(line)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        env = {"PATH": os.environ["PATH"], "ANTIPHON_PORT": str(port)}
        for answer, expected in (
            (b"HTTP/1.1 200 OK\r\n\r\n", True),
            (b"HTTP/1.1 503 No\r\n\r\n 200 ", False),
            (b"", False),
        ):
            asking = subprocess.Popen(check, env=env)
            connection, _ = listener.accept()
            with connection:
                request = b""
                while not request.endswith(b"\r\n\r\n"):
                    request += connection.recv(4096)
                assert request.startswith(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
                connection.sendall(answer)
            assert (asking.wait(DEADLINE) == 0) == expected
    assert subprocess.run(check, env=env, capture_output=True, check=False).returncode != 0


def test_the_stages_for_cuda_reach_the_compiler(engine: Engine) -> None:
    """Without CUDA's toolkit in the builder, the build stops where the library is compiled, and says why."""
    done = engine.build(ROOT, "antiphon:cuda", "--build-arg", "BACKEND=cuda")
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "BACKEND=cuda: nvcc is not here" in told, told[-4000:]
    assert "not here: " not in told.replace("nvcc is not here", ""), "a compiler and CMake are there"
