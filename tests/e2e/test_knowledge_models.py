"""Embedding models of knowledge tables on a real server: loaded on request, a vendor's, and gone midway."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from antiphon.services.knowledge.documents import MAX_BATCHES_AHEAD
from tests.support.model_files import write_encoder
from tests.support.server import Server, serving
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

TABLES = "/v1/knowledge/tables"
CONFIG = """
[[models]]
name = "parked"
path = "{path}"
load = "request"
keep_alive = 1.0

[providers.vendor]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "far"
routes = [{{ provider = "vendor", model = "fake" }}]
"""
ATTEMPTS = 5
WORDS = [f"word{number}" for number in range(2500)]
SIZES = {"chunk_size": "40", "chunk_overlap": "0", "chunk_unit": "characters"}


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def server(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("knowledge")
    file = home / "antiphon.toml"
    file.write_text(CONFIG.format(path=write_encoder(home / "encoder.gguf"), url=upstream.url))
    with serving("--config", str(file), env={"ANTIPHON_HOME": str(home)}) as server:
        yield server


def ask(server: Server, method: str, path: str, **sent: Any) -> Any:
    with server.client() as client:
        answer = client.request(method, TABLES + path, **sent)
    assert answer.is_success, answer.text
    return answer.json()


def add_file(server: Server, table: str, number: int = 0) -> Callable[[], Any]:
    """Adds a long file, and returns what looks at its document."""
    files = {"file": (f"long{number}.txt", " ".join(WORDS).encode())}
    card = ask(server, "POST", f"/{table}/documents", files=files, data=SIZES)
    return lambda: ask(server, "GET", f"/{table}/documents/{card['id']}")


def read_words(server: Server, table: str) -> list[str]:
    """All words of the table's chunks, in their order."""
    texts: list[str] = []
    while True:
        page = ask(server, "GET", f"/{table}/chunks?limit=1000&offset={len(texts)}")
        texts += [chunk["text"] for chunk in page["data"]]
        if len(texts) >= page["total"]:
            return " ".join(texts).split()


def test_a_model_that_is_parked_is_loaded_for_a_table(server: Server) -> None:
    wait_until(lambda: server.children("engines.host") == [], what="it is unloaded")
    made = ask(server, "POST", "", json={"name": "idle", "embedding_model": "parked"})
    assert (made["search"], made["dimensions"], made["chunk_unit"]) == ("hybrid", 64, "tokens")
    wait_until(lambda: server.children("engines.host") == [], what="it is unloaded")
    card = ask(
        server,
        "POST",
        "/idle/documents",
        files={"file": ("a.txt", b"the sea is blue")},
        data={"wait": "true"},
    )
    assert card["state"] == "ready"
    wait_until(lambda: server.children("engines.host") == [], what="it is unloaded again")
    (hit,) = ask(server, "POST", "/idle/search", json={"query": "ocean", "mode": "vectors"})["data"]
    assert hit["chunk"]["text"] == "the sea is blue"


def test_the_first_embedding_model_may_be_parked(server: Server) -> None:
    wait_until(lambda: server.children("engines.host") == [], what="it is unloaded")
    made = ask(server, "POST", "", json={"name": "first"})
    assert (made["embedding_model"], made["search"]) == ("parked", "hybrid")


def index_halfway(server: Server, table: str) -> tuple[Callable[[], Any], psutil.Process]:
    """Adds a long file, and stops the engine's host with a batch under way. Returns what looks at the
    document, and the host. On a machine that stood still the document may be ready first: then it begins
    again."""
    for attempt in range(ATTEMPTS):
        show = add_file(server, table, number=attempt)
        hosts: list[psutil.Process] = []

        def is_halfway(show: Callable[[], Any] = show, hosts: list[psutil.Process] = hosts) -> bool:
            hosts[:] = server.children("engines.host")
            return bool(hosts) and show()["progress"] > 0

        wait_until(is_halfway, what="a part is kept")
        hosts[0].suspend()
        if show()["state"] == "indexing":
            return show, hosts[0]
        hosts[0].resume()
        ask(server, "DELETE", f"/{table}/documents/{show()['id']}")
    raise AssertionError("the document was always ready first")


def test_an_engine_killed_midway_is_waited_for(server: Server) -> None:
    ask(server, "POST", "", json={"name": "killed", "embedding_model": "parked"})
    show, host = index_halfway(server, "killed")
    seen = show()
    assert (seen["state"], read_words(server, "killed")) == ("indexing", []), "nothing half indexed"
    host.kill()
    wait_until(lambda: show()["state"] != "indexing", what="it goes on")
    card = show()
    assert (card["state"], card["error"], card["warnings"]) == ("ready", None, [])
    assert read_words(server, "killed") == WORDS, "none is lost, none is there twice"


def test_a_vendor_that_fails_midway_is_waited_for(server: Server, upstream: ScriptedUpstream) -> None:
    made = ask(server, "POST", "", json={"name": "far", "embedding_model": "far"})
    assert (made["dimensions"], made["chunk_unit"]) == (2, "characters")
    # Those that are asked at once. The next one is asked when the first is in the index.
    upstream.embeddings_before_status, upstream.embeddings_status = MAX_BATCHES_AHEAD + 1, 503
    show = add_file(server, "far")
    wait_until(lambda: show()["error"] is not None, what="the document says that it waits")
    waiting = show()
    assert waiting["progress"] > 0, "a part is kept"
    assert waiting["state"] == "indexing" and read_words(server, "far") == []
    assert re.match(r"is kept, and goes on by itself: .*vendor", waiting["error"]), waiting
    upstream.embeddings_status = 200
    wait_until(lambda: show()["state"] == "ready", what="it goes on")
    assert show()["error"] is None and read_words(server, "far") == WORDS
    found = ask(server, "POST", "/far/search", json={"query": "word77", "k": 50})["data"]
    assert any("word77 " in hit["chunk"]["text"] for hit in found)
    assert {hit["vector_rank"] is not None for hit in found} == {True, False}, "by words and by vectors"
