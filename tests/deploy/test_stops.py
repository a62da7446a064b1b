"""40 streams of 15 s while their server is stopped: with each manager's grace, and for an upgrade."""

import http.client
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.docs import ROOT
from tests.support.graces import read_graces
from tests.support.held_vendor import HeldVendor, serve_held_vendor
from tests.support.programs import find_free_port, require_program
from tests.support.server import serving
from tests.support.stop_streams import CHAT, is_refusing, list_cut, open_streams, write_settings
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(480)]

STREAMS = 40
SECONDS = 15.0
PAUSE_S = 0.05
"""Between two requests of the traffic beside the streams."""

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    upstream antiphon {{ server {target}; keepalive 64; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://antiphon;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_buffering off;
        }}
    }}
}}
"""


@pytest.fixture
def vendor() -> Iterator[HeldVendor]:
    with serve_held_vendor() as vendor:
        yield vendor


@pytest.mark.parametrize("manager", ["systemd", "compose", "kubernetes"])
def test_a_stop_cuts_none_of_40_streams(vendor: HeldVendor, tmp_path: Path, manager: str) -> None:
    """Does what each manager does: SIGTERM to the first process, and SIGKILL after the grace."""
    (tmp_path / "antiphon.toml").write_text(write_settings(vendor))
    with serving(cwd=tmp_path) as server, open_streams(server.client(), STREAMS) as streams:
        server.process.terminate()
        threading.Timer(SECONDS, vendor.finish.set).start()
        try:
            status = server.process.wait(read_graces()[manager])
        except subprocess.TimeoutExpired:
            server.process.kill()
            raise
    assert (status, list_cut(streams)) == (0, [])


@contextmanager
def run_nginx(folder: Path, port: int, target: str) -> Iterator[list[str]]:
    """Runs nginx before a target. Yields the command that other arguments complete."""
    program = require_program("nginx", "nginx-light")
    write_target(folder, port, target)
    folder.chmod(0o755)
    command = [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    process = subprocess.Popen(command)
    try:
        yield command
    finally:
        process.terminate()
        process.wait()


def write_target(folder: Path, port: int, target: str) -> None:
    text = NGINX.format(folder=folder, port=port, target=target)
    (folder / "nginx.conf").write_text(text)


def test_an_upgrade_behind_a_proxy_breaks_no_answer(vendor: HeldVendor, tmp_path: Path) -> None:
    """The steps of docs/operations.md, beneath streams and other requests: start the new server, switch the
    proxy, stop the old server."""
    (tmp_path / "antiphon.toml").write_text(write_settings(vendor))
    env = {"ANTIPHON_HOME": str(tmp_path / "home"), "ANTIPHON_ALLOWED_HOSTS": "localhost"}
    port, folder, over = find_free_port(), tmp_path / "nginx", threading.Event()
    folder.mkdir()
    outcomes: list[int | str] = []

    def keep_asking() -> None:
        while not over.wait(PAUSE_S):
            outcomes.append(ask_models(port))

    traffic = threading.Thread(target=keep_asking)
    with (
        serving(env=env, cwd=tmp_path) as old,
        serving(env=env, cwd=tmp_path) as new,
        run_nginx(folder, port, old.url.removeprefix("http://")) as command,
    ):
        wait_until(lambda: ask_models(port) == 200, 30, "nginx answers")
        proxied = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        with open_streams(proxied, STREAMS) as streams:
            traffic.start()
            threading.Timer(SECONDS, vendor.finish.set).start()
            write_target(folder, port, new.url.removeprefix("http://"))
            subprocess.run([*command, "-s", "reload"], check=True)
            time.sleep(2)  # nginx starts its new processes
            old.process.terminate()
            wait_until(lambda: is_refusing(old), 30, "the old one takes no more")
            so_far = len(outcomes)
            wait_until(lambda: len(outcomes) > so_far + 20, 30, "the new one answers")
            assert old.process.wait(60) == 0
        over.set()
        traffic.join()
        with new.client() as client:
            assert "[DONE]" in client.post("/v1/chat/completions", json=CHAT).text
    assert list_cut(streams) == []
    assert set(outcomes) == {200}


def ask_models(port: int) -> int | str:
    """The status of a request on a new connection, or why there is none."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status
        except OSError as problem:
            return repr(problem)


def test_systemd_understands_the_units_of_an_upgrade(tmp_path: Path) -> None:
    """A copy of the unit with the drop-in, as the page makes it. The instance's program is this Python."""
    program = require_program("systemd-analyze", "systemd")
    units = ROOT / "deploy" / "systemd"
    shutil.copy(units / "antiphon.service", tmp_path / "antiphon@.service")
    shutil.copytree(units / "antiphon@.service.d", tmp_path / "antiphon@.service.d")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8").replace("/usr/local/lib/antiphon-%i/bin/antiphon", sys.executable)
            path.write_text(text.replace("/usr/local/lib/antiphon/bin/antiphon", sys.executable))
    command = [program, "verify", str(tmp_path / "antiphon@8001.service")]
    (tmp_path / "antiphon@8001.service").symlink_to("antiphon@.service")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
