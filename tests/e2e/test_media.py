"""Images over the wire to a tiny model with a projector: every dialect, fetched files, and hostile ones."""

import asyncio
import base64
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

from benchmarks.make_media_model import HEARING, write_hearing_projector, write_projector, write_text_model
from tests.support.certificates import write_certificate
from tests.support.media_files import build_wav, draw, list_hostile_images, list_hostile_recordings, record
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

SETTINGS = """
[media]
fetch = ["localhost:{port}"]
fetch_private = true

[[models]]
name = "owl"
path = "{folder}/text.gguf"
mmproj = "{folder}/mmproj.gguf"
context_length = 2048
exact = true

[[models]]
name = "bat"
path = "{folder}/bat.gguf"
mmproj = "{folder}/ears.gguf"
context_length = 2048
exact = true

[[models]]
name = "mole"
path = "{folder}/text.gguf"
context_length = 2048
load = "request"
"""

SECONDS = 10.0
"""Ten times what the answer to a hostile file may take."""

RED = "data:image/png;base64," + base64.b64encode(draw(224, 224)).decode()


class FileHost:
    """Serves one picture at https://localhost, in a thread. Other paths are redirects to it."""

    def __init__(self, folder: Path) -> None:
        self.certificate, key = write_certificate(folder)
        self.port = 0
        self.paths: list[str] = []
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(self.certificate, key)
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._end = asyncio.Event()
        self._thread.start()
        self._ready.wait(60)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._end.wait()
        server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.paths.append(head.split()[1].decode())
        body = draw(224, 224)
        status = b"200 OK" if self.paths[-1] == "/red.png" else b"302 Found\r\nlocation: /red.png"
        writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
        await writer.drain()
        writer.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileHost]:
    host = FileHost(tmp_path_factory.mktemp("tls"))
    yield host
    host.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, host: FileHost) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("owl")
    write_text_model(folder / "text.gguf", "qwen2vl")
    write_projector(folder / "mmproj.gguf", "qwen2vl")
    write_text_model(folder / "bat.gguf", HEARING)
    write_hearing_projector(folder / "ears.gguf")
    config = folder / "antiphon.toml"
    config.write_text(SETTINGS.format(folder=folder, port=host.port))
    env = {"SSL_CERT_FILE": str(host.certificate), "ANTIPHON_ENGINE_RESTART_PATIENCE": "50"}
    with serving("--config", str(config), env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    with server.client() as client:
        yield client


def show(url: str = RED, **more: Any) -> Any:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url} | more}]
    return [{"role": "user", "content": parts}]


def ask(
    client: httpx2.Client, messages: list[dict[str, Any]], model: str = "owl", **more: Any
) -> httpx2.Response:
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 8, "logprobs": True}
    return client.post("/v1/chat/completions", json=body | more)


def read(reply: httpx2.Response) -> tuple[str, list[float]]:
    """The text and its log-probabilities."""
    assert reply.status_code == 200, reply.text
    choice = reply.json()["choices"][0]
    return choice["message"]["content"], [each["logprob"] for each in choice["logprobs"]["content"]]


def encode(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def test_the_real_client_shows_a_picture_and_is_told_its_tokens(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.create(model="owl", messages=show(), max_tokens=8)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    details = answer.usage.prompt_tokens_details.model_dump()
    assert 0 < details["image_tokens"] < answer.usage.prompt_tokens
    profile = client.models.retrieve("owl").model_dump()["profile"]
    assert profile["modalities"] == ["text", "image"], profile
    chunks = list(
        client.chat.completions.create(
            model="owl",
            messages=show(),
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    usage = chunks[-1].usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.model_dump()["image_tokens"] == details["image_tokens"]


def test_the_model_sees_pixels_and_not_files(client: httpx2.Client) -> None:
    seen = read(ask(client, show()))
    same = encode(draw(224, 224, "WEBP", lossless=True), "webp")
    assert read(ask(client, show(same))) == seen
    assert read(ask(client, show(encode(draw(224, 224, color=(0, 200, 0)))))) != seen


def test_a_low_detail_takes_fewer_tokens(client: httpx2.Client) -> None:
    large = encode(draw(1400, 1400, "JPEG"), "jpeg")
    counts = {}
    for detail in ("auto", "high", "low"):
        usage = ask(client, show(large, detail=detail), max_tokens=1).json()["usage"]
        counts[detail] = usage["prompt_tokens_details"]["image_tokens"]
    assert counts["low"] < counts["auto"] == counts["high"]


def test_a_picture_is_fetched_from_an_allowed_host_only(client: httpx2.Client, host: FileHost) -> None:
    fetched = read(ask(client, show(f"https://localhost:{host.port}/red.png")))
    assert fetched == read(ask(client, show())) and host.paths == ["/red.png"]
    moved = ask(client, show(f"https://localhost:{host.port}/moved"))
    assert moved.status_code == 400 and "is a redirect" in moved.json()["error"]["message"]
    assert host.paths == ["/red.png", "/moved"]
    other = ask(client, show("https://images.example.com/red.png")).json()["error"]
    assert "from which this server fetches nothing" in other["message"]
    assert other["param"] == "messages[0].content[1].image_url"


def test_every_dialect_shows_the_picture(client: httpx2.Client) -> None:
    tokens = ask(client, show(), max_tokens=1).json()["usage"]["prompt_tokens_details"]["image_tokens"]
    plain = {"model": "owl", "max_tokens": 4}
    source = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
    blocks = [{"type": "text", "text": "What is it?"}, {"type": "image", "source": source}]
    old = {"model": "owl", "model_parameters": {"max_tokens": 4}}
    scale = [{"role": "user", "content": [show()[0]["content"][1]]}]
    asked: dict[str, dict[str, Any]] = {
        "/fireworks/inference/v1/chat/completions": plain | {"messages": show()},
        "/fireworks/inference/v1/completions": plain | {"prompt": "Look: <image> It is", "images": [RED]},
        "/empower/api/v1/chat/completions": plain | {"messages": show()},
        "/sgp/v4/beta/chat/completions": plain | {"messages": show()},
        "/sgp/v4/chat-completions": old | {"messages": scale},
        "/sgp/v4/completions": old | {"prompt": "Look", "images": [{"image_url": RED}]},
        "/jamai/api/v1/chat/completions": plain | {"messages": show()},
        "/v1/responses": {
            "model": "owl",
            "max_output_tokens": 16,
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": RED}]}],
        },
        "/v1/messages": plain | {"messages": [{"role": "user", "content": blocks}]},
    }
    for path, body in asked.items():
        reply = client.post(path, json=body)
        assert reply.status_code == 200, (path, reply.text)
        usage = reply.json().get("usage") or {}
        if usage:
            names = ("prompt_tokens", "input_tokens", "cache_read_input_tokens")
            assert sum(usage.get(name, 0) for name in names) > tokens, (path, reply.text)
        hurt = json.loads(json.dumps(body).replace(RED, encode(b"not a picture")))
        if path == "/v1/messages":
            hurt["messages"][0]["content"][1]["source"]["data"] = "AAAA"
        refused = client.post(path, json=hurt)
        assert refused.status_code in (400, 422), (path, refused.text)
        assert "is not a JPEG, PNG, WebP or GIF image" in refused.text, (path, refused.text)


def test_a_model_without_eyes_says_who_has_them(client: httpx2.Client) -> None:
    error = ask(client, show(), "mole").json()["error"]
    assert error["param"] == "messages[0].content[1].image_url"
    assert error["message"].endswith("leave it out, or send it to a model that takes it: owl")
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    deaf = ask(client, [{"role": "user", "content": [sound]}]).json()["error"]
    assert "takes no recordings" in deaf["message"] and deaf["param"] == "messages[0].content[0].input_audio"


def test_a_model_with_ears_hears_a_recording(client: httpx2.Client) -> None:
    def play(data: bytes, kind: str = "wav") -> Any:
        sound = {"data": base64.b64encode(data).decode(), "format": kind}
        return [{"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}]

    reply = ask(client, play(record(2)), "bat")
    heard, details = read(reply), reply.json()["usage"]["prompt_tokens_details"]
    assert details["audio_tokens"] > 0 and "image_tokens" not in details
    assert (
        read(ask(client, play(record(2)), "bat"))
        == heard
        != read(ask(client, play(build_wav(bytes(64_000))), "bat"))
    )
    assert client.get("/v1/models/bat").json()["profile"]["modalities"] == ["text", "audio"]
    for name, said, data, words in list_hostile_recordings():
        if said in ("wav", "mp3"):
            refused = ask(client, play(data, said), "bat")
            assert refused.status_code == 400, (name, refused.text)
            error = refused.json()["error"]
            assert words in error["message"], name
            assert error["param"] == "messages[0].content[0].input_audio", name
    assert "takes no images" in ask(client, show(), "bat").json()["error"]["message"]


def test_a_picture_that_needs_more_than_the_context_is_counted(client: httpx2.Client) -> None:
    many = [
        {"role": "user", "content": [show(encode(draw(1400, 1400, "JPEG"), "jpeg"))[0]["content"][1]] * 4}
    ]
    error = ask(client, many).json()["error"]
    assert error["code"] == "context_length_exceeded" and "resulted in" in error["message"]


def test_hostile_files_end_in_a_sentence_and_no_neighbour_notices(
    client: httpx2.Client, server: Server
) -> None:
    story = {
        "model": "owl",
        "prompt": "Once",
        "max_tokens": 400,
        "stream": True,
        "ignore_eos": True,
        "seed": 1,
    }
    expected = client.post("/v1/completions", json=story).text.count("data: {")
    told: list[str] = []

    def tell() -> None:
        with server.client() as neighbour:
            told.append(neighbour.post("/v1/completions", json=story).text)

    neighbours = [threading.Thread(target=tell) for _ in range(2)]
    for thread in neighbours:
        thread.start()
    for name, said, data, words in list_hostile_images():
        begun = time.monotonic()
        reply = ask(client, show(encode(data, said)))
        assert reply.status_code == 400, (name, reply.text)
        error = reply.json()["error"]
        assert (
            error["message"].startswith("messages[0].content[1].image_url ") and words in error["message"]
        ), name
        assert error["param"] == "messages[0].content[1].image_url"
        assert time.monotonic() - begun < SECONDS, name
    for thread in neighbours:
        thread.join(60)
    assert [each.count("data: {") for each in told] == [expected] * 2 and all(
        "[DONE]" in each for each in told
    )
    (gateway,) = server.children("antiphon.assembly")
    decoders = [each for each in gateway.children() if "decoding_process" in " ".join(each.cmdline())]
    assert len(decoders) == 1 and decoders[0].memory_info().rss < 200 << 20


def test_a_killed_decoder_is_an_error_of_one_request_only(client: httpx2.Client, server: Server) -> None:
    expected = read(ask(client, show()))
    (gateway,) = server.children("antiphon.assembly")
    for child in gateway.children():
        if "decoding_process" in " ".join(child.cmdline()):
            os.kill(child.pid, signal.SIGKILL)
            psutil.wait_procs([child], 60)
    replies = [ask(client, show()) for _ in range(3)]
    assert sum(reply.status_code == 503 for reply in replies) <= 1
    assert all(read(reply) == expected for reply in replies if reply.status_code == 200)


def ask_and_end_the_encode(
    client: httpx2.Client, server: Server, picture: Any, signal_number: signal.Signals
) -> httpx2.Response:
    """Asks about a picture, and sends the signal to the host that encodes it. Returns the answer."""
    replies = list[httpx2.Response]()
    hosts = {child.pid: child for child in server.children("engines.host")}
    used_before = {pid: sum(child.cpu_times()[:2]) for pid, child in hosts.items()}

    def find_encoding() -> list[psutil.Process]:
        """The host that has computed for a fifth of a second. It encodes for more than half a second, and
        what it does before takes a tenth of that."""
        return [child for pid, child in hosts.items() if sum(child.cpu_times()[:2]) - used_before[pid] > 0.2]

    asking = threading.Thread(target=lambda: replies.append(ask(client, picture)))
    asking.start()
    wait_until(find_encoding, what="it encodes")
    (killed,) = find_encoding()
    killed.send_signal(signal_number)
    asking.join(120)
    pids = {child.pid for child in server.children("engines.host")}
    assert len(pids) == len(hosts) and pids >= hosts.keys() - {killed.pid} and killed.pid not in pids
    return replies[0]


def test_a_host_that_is_killed_while_it_encodes_is_replaced_and_the_picture_is_sent_again(
    client: httpx2.Client, server: Server
) -> None:
    picture = show(encode(draw(1024, 1024, color=(9, 99, 199))))
    reply = ask_and_end_the_encode(client, server, picture, signal.SIGKILL)
    assert read(reply) == read(ask(client, picture))
    assert not any(record["event"] == "request_failed" for record in server.log())


def test_a_picture_with_which_the_library_ends_the_host_is_refused_from_then_on(
    client: httpx2.Client, server: Server
) -> None:
    picture = show(encode(draw(1024, 1024, color=(199, 99, 9))))
    reply = ask_and_end_the_encode(client, server, picture, signal.SIGABRT)
    pids = {child.pid for child in server.children("engines.host")}
    for each in (reply, ask(client, picture)):
        assert each.status_code == 400, each.text
        assert "has ended the engine before" in each.json()["error"]["message"]
    read(ask(client, show()))
    assert {child.pid for child in server.children("engines.host")} == pids
