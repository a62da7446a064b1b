"""Fetching from a hub: what arrives is checked and kept, what is cut goes on, a refusal says what to do."""

import hashlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.errors import ModelFetchError
from antiphon.weights.hub.cache import HubCache
from antiphon.weights.hub.download import ANSWER_S, FetchProgress, Hub, Stage
from antiphon.weights.hub.reference import Reference, parse
from benchmarks.make_model import SIZES, write_model
from tests.support.hub_server import COMMIT, TOKEN, HubServer, Repository, serve_hub

FILE = "tiny-q8_0.gguf"
MODEL = Reference("ada/tiny-GGUF", FILE)
NEXT_COMMIT = "b" * 40


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tmp_path_factory.mktemp("model") / FILE, SIZES["tiny"]).read_bytes()


@pytest.fixture
def server(data: bytes) -> Iterator[HubServer]:
    with serve_hub(HubServer({"ada/tiny-GGUF": Repository({FILE: data, "README.md": b"words"})})) as server:
        yield server


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token, mode or proxy of whoever runs the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with much other work may delay an answer."""
    monkeypatch.setattr("antiphon.weights.hub.download.ANSWER_S", 50.0)


@pytest.fixture
def cache(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "models")


def silent(_: FetchProgress) -> None:
    """Nobody looks."""


def hub(server: HubServer, cache: HubCache, **more: object) -> Hub:
    return Hub(cache, endpoint=server.url, pauses=(0.0,), **more)  # type: ignore[arg-type]


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(ModelFetchError) as caught:
        call()
    return caught.value.message


def test_a_file_is_fetched_whole_and_found_without_asking_again(
    server: HubServer, cache: HubCache, data: bytes
):
    told: list[FetchProgress] = []
    fetched = hub(server, cache).find_or_pull(MODEL, told.append)
    assert fetched.path.read_bytes() == data and fetched.path.name == FILE
    assert (fetched.commit, fetched.digest) == (COMMIT, hashlib.sha256(data).hexdigest())
    assert told[-1] == FetchProgress(Stage.CHECKING, FILE, len(data), len(data))
    assert [step.done for step in told if step.stage is Stage.FETCHING][-1] == len(data)
    asked = len(server.requests)
    assert hub(server, cache).find_or_pull(MODEL, silent) == fetched
    assert len(server.requests) == asked


def test_only_what_the_file_needs_is_asked_of_the_hub(server: HubServer, cache: HubCache):
    hub(server, cache).pull(MODEL, silent)
    place = f"/ada/tiny-GGUF/resolve/{{}}/{FILE}"
    assert [(asked.method, asked.path) for asked in server.requests] == [
        ("HEAD", place.format("main")),
        ("GET", place.format(COMMIT)),
    ]


def test_a_small_file_is_checked_with_the_checksum_of_git(server: HubServer, cache: HubCache, data: bytes):
    server.repositories["ada/small"] = Repository({FILE: data}, is_small=True)
    small = Reference("ada/small", FILE)
    assert hub(server, cache).pull(small, silent).path.read_bytes() == data
    server.faults.flip_at = 100
    assert "checksum" in refused(lambda: hub(server, HubCache(cache.root / "other")).pull(small, silent))


def test_a_connection_that_hangs_up_is_gone_on_with_at_once(server: HubServer, cache: HubCache, data: bytes):
    server.faults.hang_up_at = cut = len(data) // 2
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data
    assert server.ranges() == [None, f"bytes={cut}-"]


def test_a_download_that_was_given_up_goes_on_where_it_ended(server: HubServer, cache: HubCache, data: bytes):
    server.faults.reset_at = cut = len(data) // 3
    arrived: list[int] = []
    server.faults.has_arrived = lambda: arrived[-1:] == [cut]
    message = refused(lambda: hub(server, cache).pull(MODEL, lambda step: arrived.append(step.done)))
    assert "hangs up" in message and "continues the download" in message
    assert cache.find(MODEL) is None
    (left,) = cache.list_leftovers()
    assert left.is_partial and left.size == cut
    server.faults.reset_at = None
    server.file_requests.clear()
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data
    assert server.ranges() == [f"bytes={cut}-"]
    assert cache.list_leftovers() == []


def test_a_host_that_ignores_ranges_starts_again(server: HubServer, cache: HubCache, data: bytes):
    server.faults.hang_up_at, server.faults.ignores_ranges = 1000, True
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data


def test_a_flipped_byte_is_refused_and_the_file_removed(server: HubServer, cache: HubCache, data: bytes):
    server.faults.flip_at = len(data) - 1
    message = refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert hashlib.sha256(data).hexdigest() in message and "removed" in message
    assert cache.find(MODEL) is None and cache.list_leftovers() == []


def test_a_byte_that_flips_on_the_disk_is_found_by_the_next_pull(
    server: HubServer, cache: HubCache, data: bytes
):
    place = hub(server, cache).pull(MODEL, silent).path
    place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "removed" in refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert not place.exists() and cache.find(MODEL) is None
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data


def test_more_bytes_than_were_promised_are_refused(server: HubServer, cache: HubCache):
    server.faults.longer_by = 10
    assert "sends more than" in refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert cache.find(MODEL) is None


@pytest.mark.parametrize("header", ["X-Repo-Commit", "X-Linked-Etag"])
def test_a_hub_that_gives_no_checksum_or_commit_is_refused(server: HubServer, cache: HubCache, header: str):
    server.faults.hides = frozenset({header})
    assert "could not be checked" in refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert server.file_requests == []


def test_a_repository_that_is_not_there_is_named(server: HubServer, cache: HubCache):
    message = refused(lambda: hub(server, cache).pull(replace(MODEL, repository="ada/tyni"), silent))
    assert f"{server.url}/ada/tyni" in message and "check its name" in message and "none is set" in message


def test_a_file_that_is_not_there_names_those_that_are(server: HubServer, cache: HubCache, data: bytes):
    server.repositories["ada/tiny-GGUF"].files["Q4/tiny.GGUF"] = data
    message = refused(lambda: hub(server, cache).pull(replace(MODEL, file="tiny.gguf"), silent))
    assert message == f"there is no tiny.gguf in ada/tiny-GGUF; it has Q4/tiny.GGUF, {FILE}"
    server.repositories["ada/words"] = Repository({"README.md": b"words"})
    message = refused(lambda: hub(server, cache).pull(Reference("ada/words", FILE), silent))
    assert "nor any other GGUF file" in message


def test_a_revision_that_is_not_there_is_named(server: HubServer, cache: HubCache):
    message = refused(lambda: hub(server, cache).pull(replace(MODEL, revision="v9"), silent))
    assert "ada/tiny-GGUF has no revision v9" in message


def test_a_gate_without_a_token_says_how_to_get_one(server: HubServer, cache: HubCache):
    server.repositories["ada/tiny-GGUF"].is_gated = True
    message = refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert "is gated" in message and "/settings/tokens" in message and "HF_TOKEN" in message


def test_a_token_opens_a_gate_and_goes_to_the_hub_alone(
    server: HubServer, cache: HubCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    server.repositories["ada/tiny-GGUF"].is_gated = True
    server.faults.hang_up_at = 1000
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level("DEBUG")
    hub(server, cache).pull(MODEL, silent)
    assert {asked.authorization for asked in server.requests} == {f"Bearer {TOKEN}"}
    assert {asked.authorization for asked in server.file_requests} == {None}
    assert TOKEN not in caplog.text
    assert not any(TOKEN.encode() in path.read_bytes() for path in cache.root.rglob("*") if path.is_file())


def test_a_token_without_access_and_a_wrong_one_are_told_apart(
    server: HubServer, cache: HubCache, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    wrong = refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert "refuses the token" in wrong
    server.repositories["ada/tiny-GGUF"].is_gated = True
    ungranted = refused(lambda: hub(server, cache).pull(MODEL, silent))
    assert "has no access to it" in ungranted
    assert "hf_of_somebody_else" not in wrong + ungranted


def test_a_token_is_not_sent_in_the_clear(cache: HubCache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    message = refused(lambda: Hub(cache, endpoint="http://hub.invalid").pull(MODEL, silent))
    assert "in the clear" in message and TOKEN not in message


def test_without_a_network_only_fetched_files_are_served(cache: HubCache, data: bytes):
    with serve_hub(HubServer({"ada/tiny-GGUF": Repository({FILE: data})})) as server:
        hub(server, cache).pull(MODEL, silent)
    assert hub(server, cache).find_or_pull(MODEL, silent).path.read_bytes() == data
    other = replace(MODEL, file="other.gguf")
    assert "was not fetched before" in refused(lambda: hub(server, cache).find_or_pull(other, silent))
    assert "stays as it is" in refused(lambda: hub(server, cache).pull(MODEL, silent))


def test_offline_asks_nobody(server: HubServer, cache: HubCache):
    assert "offline mode is on" in refused(
        lambda: hub(server, cache, offline=True).find_or_pull(MODEL, silent)
    )
    assert server.requests == []
    fetched = hub(server, cache).pull(MODEL, silent)
    assert hub(server, cache, offline=True).find_or_pull(MODEL, silent) == fetched


def test_a_hub_in_trouble_is_told_from_a_wrong_address(server: HubServer, cache: HubCache):
    server.faults.status = 503
    assert "fails with status 503" in refused(lambda: hub(server, cache).pull(MODEL, silent))
    server.faults.status = 429
    assert "too many requests" in refused(lambda: hub(server, cache).pull(MODEL, silent))
    server.faults.status = 418
    assert "ANTIPHON_HUB_ENDPOINT" in refused(lambda: hub(server, cache).pull(MODEL, silent))


def test_a_disk_without_room_is_seen_before_anything_is_fetched(server: HubServer, tmp_path: Path):
    class SmallDisk(HubCache):
        def count_free_bytes(self) -> int:
            return 1000

    message = refused(lambda: hub(server, SmallDisk(tmp_path / "models")).pull(MODEL, silent))
    assert "ANTIPHON_HUB_CACHE" in message and "GB free" in message
    assert server.file_requests == []


def test_a_disk_that_fills_up_keeps_what_has_arrived(server: HubServer, cache: HubCache, data: bytes):
    """A limit on the size of files stands for a full disk: the system refuses a write in the middle."""
    script = (
        "import sys; from pathlib import Path; from antiphon.weights.hub.cache import HubCache\n"
        "from antiphon.weights.hub.download import Hub; from antiphon.weights.hub.reference import parse\n"
        "Hub(HubCache(Path(sys.argv[1])), endpoint=sys.argv[2]).pull(parse(sys.argv[3]), lambda _: None)"
    )
    limit = len(data) // 2

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    ended = subprocess.run(
        [sys.executable, "-B", "-c", script, str(cache.root), server.url, str(MODEL)],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ModelFetchError: cannot write all of" in ended.stderr and "continues the download" in ended.stderr
    (left,) = cache.list_leftovers()
    assert left.is_partial and 0 < left.size <= limit
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data


def test_a_cache_that_cannot_be_written_is_named(server: HubServer, tmp_path: Path):
    (tmp_path / "models").write_text("a file where the directory should be")
    message = refused(lambda: hub(server, HubCache(tmp_path / "models")).pull(MODEL, silent))
    assert "cannot store" in message and "ANTIPHON_HUB_CACHE" in message


def test_a_pinned_commit_stays_when_the_branch_moves_on(server: HubServer, cache: HubCache, data: bytes):
    first = hub(server, cache).pull(MODEL, silent)
    server.repositories["ada/tiny-GGUF"] = Repository({FILE: data + b"more"}, commit=NEXT_COMMIT)
    assert hub(server, cache).find_or_pull(MODEL, silent) == first, "serving asks nobody"
    assert hub(server, cache).pull(MODEL, silent).path.read_bytes() == data + b"more"
    pinned = parse(f"hf:ada/tiny-GGUF@{COMMIT}:{FILE}")
    assert hub(server, cache, offline=True).find_or_pull(pinned, silent).path.read_bytes() == data


def test_a_second_fetcher_waits_and_fetches_nothing(server: HubServer, cache: HubCache, data: bytes):
    with ThreadPoolExecutor(1) as pool:
        with cache.lock(MODEL, hashlib.sha256(data).hexdigest()):
            pulled = pool.submit(hub(server, cache).pull, MODEL, silent)
            with pytest.raises(TimeoutError):
                pulled.result(0.5)
            cache.build_file_path(MODEL, hashlib.sha256(data).hexdigest()).write_bytes(data)
        assert pulled.result(30).path.read_bytes() == data
    assert server.requests and server.file_requests == []


@pytest.mark.parametrize("ask", ["pull", "list"])
def test_a_hub_that_never_answers_is_told_of_in_seconds(
    cache: HubCache, ask: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("antiphon.weights.hub.download.ANSWER_S", ANSWER_S)
    with socket.create_server(("127.0.0.1", 0)) as silent_hub:
        endpoint = f"http://127.0.0.1:{silent_hub.getsockname()[1]}"
        hub = Hub(cache, endpoint=endpoint, pauses=(0.0,))
        began = time.monotonic()
        said = refused(lambda: hub.pull(MODEL, silent) if ask == "pull" else hub.list_files("a/b", "main"))
        assert ANSWER_S <= time.monotonic() - began < 10 * ANSWER_S
    assert said.startswith(f"{endpoint} does not answer in time") and ANSWER_S < 5
    for thread in threading.enumerate():
        if thread.name == "antiphon-hub":
            thread.join(60)  # the closed hub has ended its connection
