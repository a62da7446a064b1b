"""The examples of proxies, with the real programs, TLS and the real server behind them."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.certificates import write_certificate
from tests.support.docs import ROOT
from tests.support.held_vendor import HeldVendor, serve_held_vendor
from tests.support.programs import find_free_port, require_program
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.deploy

EXAMPLES = ROOT / "deploy" / "proxies"
DEADLINE = 30.0
"""Seconds; each step takes milliseconds."""

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}/v1"
private = true

[[models]]
name = "held"
provider = "v"
"""

NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


@dataclass
class Proxied:
    """A server behind a proxy, and the vendor behind the server."""

    server: Server
    vendor: HeldVendor
    port: int
    certificate: Path

    def connect(self) -> http.client.HTTPSConnection:
        """A connection to the proxy, whose certificate is verified."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection("localhost", self.port, timeout=DEADLINE, context=context)

    def ask(self, *, stream: bool) -> http.client.HTTPSConnection:
        """A connection on which a chat was asked for."""
        self.vendor.reset()
        connection = self.connect()
        body = {"model": "held", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection

    def count_running(self) -> int:
        """Generations that run, told by the server itself."""
        with self.server.client() as client:
            load: int = client.get("/load").json()["server_load"]
        return load


@contextmanager
def run_program(command: list[str], port: int, certificate: Path) -> Iterator[None]:
    """Runs a proxy until the end of the block."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    context = ssl.create_default_context(cafile=str(certificate))
    try:
        wait_until(lambda: process.poll() is not None or answers(port, context), DEADLINE, command)
        assert process.poll() is None, process.communicate()[0]
        yield
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE)


def answers(port: int, context: ssl.SSLContext) -> bool:
    connection = http.client.HTTPSConnection("localhost", port, timeout=5, context=context)
    with closing(connection):
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False


def prepare_nginx(folder: Path, site: Callable[[str], str]) -> list[str]:
    """Writes the example into a whole configuration. Returns the command that runs it."""
    program = require_program("nginx", "nginx-light")
    text = site((EXAMPLES / "nginx.conf").read_text("utf-8"))
    text = text.replace("/etc/ssl/antiphon/fullchain.pem", f"{folder}/cert.pem")
    (folder / "site.conf").write_text(text.replace("/etc/ssl/antiphon/privkey.pem", f"{folder}/key.pem"))
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return [program, "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]


def prepare_caddy(folder: Path, site: Callable[[str], str]) -> list[str]:
    program = require_program("caddy")
    text = site((EXAMPLES / "Caddyfile").read_text("utf-8"))
    text = text.replace("{\n", f"{{\n\ttls {folder}/cert.pem {folder}/key.pem\n", 1)
    options = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(options + text)
    home = ["env", f"HOME={folder}", f"XDG_DATA_HOME={folder}", f"XDG_CONFIG_HOME={folder}"]
    return [*home, program, "run", "--adapter", "caddyfile", "--config", f"{folder}/Caddyfile"]


@pytest.fixture(scope="module")
def vendor() -> Iterator[HeldVendor]:
    with serve_held_vendor() as vendor:
        yield vendor


@pytest.fixture(scope="module")
def server(vendor: HeldVendor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    file = folder / "antiphon.toml"
    file.write_text(SETTINGS.format(url=vendor.url))
    env = {"ANTIPHON_HOME": str(folder), "ANTIPHON_ALLOWED_HOSTS": "localhost"}
    with serving("--config", str(file), env=env) as server:
        yield server


@pytest.fixture(scope="module", params=[prepare_nginx, prepare_caddy], ids=["nginx", "caddy"])
def proxied(
    request: pytest.FixtureRequest,
    server: Server,
    vendor: HeldVendor,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxied]:
    folder, port = tmp_path_factory.mktemp("proxy"), find_free_port()
    folder.chmod(0o755)
    certificate, _ = write_certificate(folder)

    def site(text: str) -> str:
        text = text.replace("127.0.0.1:8000", server.url.removeprefix("http://"))
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        return text.replace(
            "antiphon.example.org", f"localhost:{port}" if "reverse_proxy" in text else "localhost"
        )

    with run_program(request.param(folder, site), port, certificate):
        yield Proxied(server, vendor, port, certificate)


def test_a_stream_arrives_word_by_word(proxied: Proxied) -> None:
    with closing(proxied.ask(stream=True)) as connection:
        answer = connection.getresponse()
        for count in range(3):
            if count:
                proxied.vendor.words.release()  # the vendor sends nothing before
            while b"word" not in answer.readline():
                pass
        assert answer.getheader("content-type", "").startswith("text/event-stream")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(proxied: Proxied, stream: bool) -> None:
    with closing(proxied.ask(stream=stream)) as connection:
        assert proxied.vendor.began.wait(DEADLINE)
        if stream:
            answer = connection.getresponse()
            while b"word" not in answer.readline():
                pass
        assert proxied.count_running() == 1
    assert proxied.vendor.left.wait(DEADLINE)
    wait_until(lambda: proxied.count_running() == 0, DEADLINE, "the place is free")


def test_metrics_are_not_shown_to_everybody(proxied: Proxied) -> None:
    with closing(proxied.connect()) as connection:
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 404
    with proxied.server.client() as client:
        assert client.get("/metrics").status_code == 200
