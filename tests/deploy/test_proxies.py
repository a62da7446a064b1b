"""The examples of proxies, with the real programs, TLS and the real server behind them."""

import http.client
import json
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.certificates import write_certificate
from tests.support.docs import ROOT
from tests.support.held_vendor import HeldVendor, serve_held_vendor
from tests.support.programs import find_free_port, require_program
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.deploy

EXAMPLES = ROOT / "deploy" / "proxies"
JSON_BODY = {"content-type": "application/json"}
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
    plain_port: int
    """The port of http, which is redirected."""
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
    """Whether the proxy answers, if only that there is no server behind it."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=5, context=context)
    with closing(connection):
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status in (200, 503)
        except OSError:
            return False


Prepare = Callable[[Path, Callable[[str], str]], list[str]]


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
    ports = re.findall(r"PORTS (\d+) (\d+)", text)[0]
    options = "{\n\tadmin off\n\tdefault_bind 127.0.0.1\n\tskip_install_trust\n"
    options += f"\thttp_port {ports[0]}\n\thttps_port {ports[1]}\n}}\n"
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
    with run_proxy(
        request.param, server.url.removeprefix("http://"), tmp_path_factory.mktemp("proxy")
    ) as running:
        port, plain_port, certificate = running
        yield Proxied(server, vendor, port, plain_port, certificate)


@contextmanager
def run_proxy(prepare: Prepare, target: str, folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Runs an example in front of `target`. Yields its ports of https and http, and its certificate."""
    port, plain_port = find_free_port(), find_free_port()
    folder.chmod(0o755)
    certificate, _ = write_certificate(folder)

    def site(text: str) -> str:
        text = text.replace("127.0.0.1:8000", target).replace("antiphon.example.org", "localhost")
        text = re.sub(r"(?m)^ *listen \[::\].*\n", "", text)  # a machine can lack IPv6
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        text = text.replace("listen 80;", f"listen 127.0.0.1:{plain_port};")
        return f"# PORTS {plain_port} {port}\n{text}"

    with run_program(prepare(folder, site), port, certificate):
        yield port, plain_port, certificate


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
        assert read_error(connection.getresponse()) == (404, "invalid_request_error", "route_not_found")
    with proxied.server.client() as client:
        assert client.get("/metrics").status_code == 200


def read_error(answer: http.client.HTTPResponse) -> tuple[int, str, str]:
    """The status, type and code of an error in OpenAI's shape."""
    assert answer.getheader("content-type", "").startswith("application/json")
    error = json.loads(answer.read())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return answer.status, error["type"], error["code"]


def send_chunks(connection: http.client.HTTPSConnection, path: str) -> Callable[[bytes], None]:
    """Begins a request whose body comes in chunks. Returns a function that sends one; an empty one is the
    last."""
    connection.putrequest("POST", path)
    connection.putheader("content-type", "application/json")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    return lambda data: connection.send(b"%x\r\n%b\r\n" % (len(data), data))


def test_a_request_arrives_while_it_is_sent(proxied: Proxied) -> None:
    """The server has the first bytes of the body before the client has sent the last ones."""
    with closing(proxied.connect()) as connection:
        send = send_chunks(connection, "/v1/chat/completions")
        send(b" " * 4096)
        with proxied.server.client() as client:
            wait_until(lambda: read_body_bytes(client) >= 4096, DEADLINE, "the server has it")
        send(b"{}")
        send(b"")
        assert connection.getresponse().status == 400


def read_body_bytes(client: httpx2.Client) -> float:
    (line,) = (
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("antiphon_http_body_bytes ")
    )
    return float(line.split()[1])


def test_a_body_above_the_servers_limit_gets_the_servers_answer(proxied: Proxied) -> None:
    with closing(proxied.connect()) as connection:
        connection.request("POST", "/v1/chat/completions", b" " * (9 << 20), JSON_BODY)
        answer = connection.getresponse()
        assert "x-request-id" in answer.headers
        assert read_error(answer) == (413, "invalid_request_error", "body_too_large")


def test_a_body_above_the_proxys_limit_is_refused_before_it_is_sent(proxied: Proxied) -> None:
    with closing(proxied.connect()) as connection:
        connection.putrequest("POST", "/v1/knowledge/tables/x/files")
        connection.putheader("content-length", str(40 << 20))
        connection.endheaders()
        answer = connection.getresponse()
        assert "x-request-id" not in answer.headers
        assert read_error(answer) == (413, "invalid_request_error", "body_too_large")


def test_http_is_redirected(proxied: Proxied) -> None:
    with closing(http.client.HTTPConnection("localhost", proxied.plain_port, timeout=DEADLINE)) as plain:
        plain.request("POST", "/v1/chat/completions?a=b", b"{}", JSON_BODY)
        answer = plain.getresponse()
    assert answer.status == 308
    address = urlsplit(answer.headers["location"])
    assert (address.scheme, address.hostname) == ("https", "localhost")
    assert f"{address.path}?{address.query}" == "/v1/chat/completions?a=b"


def test_http_2_is_spoken(proxied: Proxied) -> None:
    command = [require_program("curl"), "--silent", "--http2", "--cacert", str(proxied.certificate)]
    command += ["--write-out", "%{http_version} %{http_code}", "--output", "-"]
    done = subprocess.run(
        [*command, f"https://localhost:{proxied.port}/health"], capture_output=True, text=True, check=True
    )
    assert done.stdout == '{"status": "ok"}2 200'


@pytest.fixture(params=[prepare_nginx, prepare_caddy], ids=["nginx", "caddy"])
def prepare(request: pytest.FixtureRequest) -> Prepare:
    prepared: Prepare = request.param
    return prepared


def test_a_server_that_is_gone_is_an_error_that_clients_try_again(prepare: Prepare, tmp_path: Path) -> None:
    with run_proxy(prepare, f"127.0.0.1:{find_free_port()}", tmp_path) as (port, _, certificate):
        context = ssl.create_default_context(cafile=str(certificate))
        with closing(http.client.HTTPSConnection("localhost", port, timeout=5, context=context)) as asking:
            asking.request("GET", "/v1/models")
            answer = asking.getresponse()
            assert answer.headers["retry-after"] == "2"
            assert read_error(answer) == (503, "server_error", "server_unavailable")


def test_the_address_of_the_client_cannot_be_invented(prepare: Prepare, tmp_path: Path) -> None:
    seen: list[Message] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Prints nothing."""

    behind = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=behind.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        target = f"127.0.0.1:{behind.server_address[1]}"
        with run_proxy(prepare, target, tmp_path) as (port, _, certificate):
            context = ssl.create_default_context(cafile=str(certificate))
            headers = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "http"}
            with closing(
                http.client.HTTPSConnection("localhost", port, timeout=5, context=context)
            ) as asking:
                asking.request("GET", "/v1/models", headers=headers)
                asking.getresponse().read()
    finally:
        behind.shutdown()
        thread.join()
        behind.server_close()
    told = seen[-1]
    assert (told["x-forwarded-for"], told["x-forwarded-proto"]) == ("127.0.0.1", "https")
    assert told["x-forwarded-host"].partition(":")[0] == "localhost"
