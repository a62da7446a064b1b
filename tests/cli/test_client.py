"""The client of an OpenAI-compatible address: how it reads answers, and how it tells of faults."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from antiphon.cli.client import Client, TokenUsage
from antiphon.cli.output import CallFailed, ServerUnreachable
from tests.cli.standin import MODELS, Standin, standin
from tests.support.waiting import PATIENCE


@pytest.fixture(scope="module")
def server() -> Iterator[Standin]:
    with standin() as running:
        yield running


def chatted(server: Standin, model: str) -> str:
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "a b"}]}
    return "".join(piece.text for piece in Client(server.url).stream_chat(body))


def test_a_stream_gives_its_text_its_end_and_the_servers_count(server: Standin):
    body: dict[str, object] = {"model": "good", "messages": [{"role": "user", "content": "a b"}]}
    pieces = list(Client(server.url).stream_chat(body))
    assert [piece.text for piece in pieces] == ["one", " two", " three", ""]
    assert (pieces[-1].finish_reason, pieces[-1].usage) == ("stop", TokenUsage(14, 3))


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/"])
def test_an_address_may_end_as_people_write_it(server: Standin, form: str):
    assert Client(form.format(server.url)).list_models() == list(MODELS)
    assert Client(form.format(server.url).removeprefix("http://")).url == server.url


@pytest.mark.parametrize("address", ["", "ftp://a", "http://", "http://a:b", "http://a:99999"])
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(CallFailed, match=r"write it as http://127\.0\.0\.1:8000"):
        Client(address)


def test_an_error_event_is_an_error(server: Standin):
    with pytest.raises(CallFailed, match="the engine died") as failed:
        chatted(server, "error")
    assert failed.value.code == "engine_died"


def test_a_stream_without_its_end_is_an_error(server: Standin):
    with pytest.raises(CallFailed, match="broke off before its end"):
        chatted(server, "cut")


def test_leaving_a_stream_closes_its_connection(server: Standin):
    stream = Client(server.url).stream_chat({"model": "endless", "messages": []})
    assert next(stream).text == "on "
    stream.close()
    assert server.left.wait(PATIENCE)


def test_a_refusal_has_its_sentence_and_code(server: Standin):
    with pytest.raises(CallFailed, match="the prompt is too long") as failed:
        chatted(server, "long")
    assert (failed.value.status, failed.value.code) == (400, "context_length_exceeded")


def test_the_key_is_sent():
    with standin(key="sesame") as server:
        with pytest.raises(CallFailed, match="no such key") as failed:
            Client(server.url).list_models()
        assert failed.value.status == 401
        assert Client(server.url, "sesame").list_models() == list(MODELS)


def test_nobody_there_and_somebody_else_are_told_apart():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: nobody else can get the port
        port = bound.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=f"nothing answers at http://127.0.0.1:{port}"):
            Client(f"http://127.0.0.1:{port}").list_models()


@contextmanager
def answering(written: bytes) -> Iterator[str]:
    """Where a listener answers the first thing that is sent with these bytes, and hangs up."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(written)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"fff\r\ndata: ",
            "before the answer was complete",
        ),
        (b"", "before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}", "no readable stream of events"),
        (b"\x15\x03\x03\x00\x02\x02\x46\r\n\r\n", "does not use HTTP"),
    ],
)
def test_a_killed_server_and_a_server_of_another_kind_are_named(written: bytes, said: str):
    with answering(written) as address:
        with pytest.raises(CallFailed, match=said) as failed:
            list(Client(address).stream_chat({"model": "a", "messages": []}))
        assert "IncompleteRead" not in failed.value.message and "\\x" not in failed.value.message


def test_https_to_a_server_without_tls_says_so_and_starts_none():
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        with pytest.raises(CallFailed, match="does not use TLS") as failed:
            Client(f"https://{address}").list_models()
        assert not isinstance(failed.value, ServerUnreachable) and f"http://{address}" in failed.value.message


def write_certificate(path: Path) -> Path:
    """A key and a certificate that it signs itself, in one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    form = serialization.Encoding.PEM
    private = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(private + made.sign(key, hashes.SHA256()).public_bytes(form))
    return path


def test_a_certificate_that_nobody_signed_is_named(tmp_path: Path):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(write_certificate(tmp_path / "own.pem"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shake() -> None:
            connection, _ = listener.accept()
            with suppress(ssl.SSLError, OSError), server.wrap_socket(connection, server_side=True):
                pass

        thread = threading.Thread(target=shake, daemon=True)
        thread.start()
        with pytest.raises(CallFailed, match=r"certificate of https://127\.0\.0\.1:\d+ is not trusted \("):
            Client(f"https://127.0.0.1:{listener.getsockname()[1]}").list_models()
        thread.join(10)
