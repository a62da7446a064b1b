"""The client of an OpenAI-compatible address: how it reads answers, and how it tells of faults."""

import socket
from collections.abc import Iterator

import pytest

from antiphon.cli.client import CallFailed, Client, NobodyThere, Usage
from tests.cli.standin import MODELS, Standin, standin


@pytest.fixture(scope="module")
def server() -> Iterator[Standin]:
    with standin() as running:
        yield running


def chatted(server: Standin, model: str) -> str:
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": "a b"}]}
    return "".join(piece.text for piece in Client(server.url).chat(body))


def test_a_stream_gives_its_text_its_end_and_the_servers_count(server: Standin):
    body: dict[str, object] = {"model": "good", "messages": [{"role": "user", "content": "a b"}]}
    pieces = list(Client(server.url).chat(body))
    assert [piece.text for piece in pieces] == ["one", " two", " three", ""]
    assert (pieces[-1].finish, pieces[-1].usage) == ("stop", Usage(14, 3))


@pytest.mark.parametrize("form", ["{}", "{}/", "{}/v1", "{}/v1/"])
def test_an_address_may_end_as_people_write_it(server: Standin, form: str):
    assert Client(form.format(server.url)).models() == list(MODELS)
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
    stream = Client(server.url).chat({"model": "endless", "messages": []})
    assert next(stream).text == "on "
    stream.close()
    assert server.left.wait(10)


def test_a_refusal_has_its_sentence_and_code(server: Standin):
    with pytest.raises(CallFailed, match="the prompt is too long") as failed:
        chatted(server, "long")
    assert (failed.value.status, failed.value.code) == (400, "context_length_exceeded")


def test_the_key_is_sent():
    with standin(key="sesame") as server:
        with pytest.raises(CallFailed, match="no such key") as failed:
            Client(server.url).models()
        assert failed.value.status == 401
        assert Client(server.url, "sesame").models() == list(MODELS)


def test_nobody_there_and_somebody_else_are_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(NobodyThere, match=f"nothing answers at http://127.0.0.1:{port}"):
        Client(f"http://127.0.0.1:{port}").models()
