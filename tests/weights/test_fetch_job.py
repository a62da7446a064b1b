"""Fetching an adapter for a caller: which files, of which commit, with whose token, and what each failure
says. In this process; that it runs in one of its own is seen by tests/http/test_loras.py."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.errors import EngineError, HubUnavailable, InvalidValue
from antiphon.weights.hub.download import choose_files, fetch_job
from tests.support.hub_server import COMMIT, TOKEN, HubServer, Repository, serve_hub

PIRATE = "ada/pirate-lora"
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
FILES = {CONFIG: b'{"base_model_name_or_path": "big/Model-7B"}', WEIGHTS: bytes(range(256)) * 4}
MOST = 1 << 20


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks again at once; it would wait for 23 seconds in all."""
    clock = SimpleNamespace(**vars(time) | {"sleep": lambda _: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", clock)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No token or proxy of whoever runs the tests."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with serve_hub(HubServer({PIRATE: Repository(FILES | {"README.md": b"Arr."})})) as server:
        yield server


def fetch(hub: HubServer, into: Path, repository: str = PIRATE, **more: Any) -> dict[str, Any]:
    payload = {"repository": repository, "revision": "main", "file": "", "token": None, "endpoint": hub.url}
    limits = {"most": MOST, "pauses": [0.0], "into": str(into)}
    return fetch_job(payload | limits | more)


def refused(hub: HubServer, into: Path, repository: str = PIRATE, **more: Any) -> InvalidValue:
    with pytest.raises(InvalidValue) as refusal:
        fetch(hub, into, repository, **more)
    require_discreet(refusal.value.message, into)
    return refusal.value


def away(hub: HubServer, into: Path) -> HubUnavailable:
    with pytest.raises(HubUnavailable) as refusal:
        fetch(hub, into)
    require_discreet(refusal.value.message, into)
    return refusal.value


def require_discreet(said: str, into: Path) -> None:
    assert "HF_TOKEN" not in said and "antiphon models" not in said, "that is the operator's business"
    assert str(into) not in said and TOKEN not in said


def test_both_files_arrive_of_the_commit_that_the_branch_is_now(hub, tmp_path):
    found = fetch(hub, tmp_path)
    assert found == {"path": "pirate-lora", "commit": COMMIT, "base": "big/Model-7B"}
    arrived = {path.name: path.read_bytes() for path in (tmp_path / "arrived" / "pirate-lora").iterdir()}
    assert arrived == FILES, "and nothing else of the repository"
    weights = [asked.path for asked in hub.requests if WEIGHTS in asked.path]
    assert weights and all(f"/resolve/{COMMIT}/" in path for path in weights)


@pytest.mark.parametrize(
    ("names", "file", "expected"),
    [
        ([CONFIG, WEIGHTS, "x.gguf"], "", (CONFIG, WEIGHTS)),
        (["README.md", "sub/x.gguf"], "", ("sub/x.gguf",)),
        (["a.gguf", "b.gguf"], "b.gguf", ("b.gguf",)),
        ([CONFIG, WEIGHTS, "x.GGUF"], "", (CONFIG, WEIGHTS)),
        ([CONFIG, "x.gguf"], "", ("x.gguf",)),
    ],
)
def test_an_adapter_is_pefts_two_files_or_one_gguf_file(names, file, expected):
    assert choose_files("ada/x", names, file) == expected


@pytest.mark.parametrize(
    ("names", "file", "words"),
    [
        ([], "", "has no adapter"),
        ([WEIGHTS], "", "has no adapter"),
        ([f"sub/{CONFIG}", f"sub/{WEIGHTS}"], "", "has no adapter"),
        ([CONFIG, "adapter_model.bin"], "", "can contain code"),
        (["a.gguf", "b.gguf"], "", r"several GGUF files \(a.gguf, b.gguf\); name one as ada/x:FILE.gguf"),
        (["a.gguf"], "b.gguf", "there is no b.gguf in ada/x; GGUF files of it: a.gguf"),
        (["../../up.gguf", "/abs.gguf", "a\\b.gguf"], "", "has no adapter"),
        (["../../up.gguf"], "../../up.gguf", "there is no"),
    ],
)
def test_what_is_none_or_several_is_refused(names, file, words):
    with pytest.raises(InvalidValue, match=words) as refusal:
        choose_files("ada/x", names, file)
    assert refusal.value.param == "model_name"


def test_the_callers_token_opens_gated_files_at_the_hub_only(hub, tmp_path):
    hub.repositories["ada/gated"] = Repository(FILES, is_gated=True)
    fetch(hub, tmp_path, "ada/gated", token=TOKEN)
    assert {asked.authorization for asked in hub.requests} == {f"Bearer {TOKEN}"}
    assert {sent.authorization for sent in hub.file_requests} == {None}


def test_the_operators_token_is_not_lent(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.repositories["ada/gated"] = Repository(FILES, is_gated=True)
    error = refused(hub, tmp_path, "ada/gated")
    assert "send in hf_token it" in error.message or "hf_token" in error.message
    assert {asked.authorization for asked in hub.requests} == {None}


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"repository": "ada/unknown"}, "model_name", "there is no repository"),
        ({"repository": "ada/unknown", "token": TOKEN}, "model_name", "there is no repository"),
        ({"repository": "ada/gated"}, "model_name", "is gated; accept its conditions"),
        ({"token": "hf_wrong"}, "hf_token", "refuses the token"),
        ({"revision": "away"}, "hf_revision", "has no revision away"),
        ({"file": "x.gguf"}, "model_name", "there is no x.gguf"),
    ],
    ids=str,
)
def test_what_the_hub_refuses_names_the_field_at_fault(hub, tmp_path, more, param, words):
    hub.repositories["ada/gated"] = Repository(FILES, is_gated=True)
    error = refused(hub, tmp_path, **more)
    assert (error.param, error.status) == (param, 400)
    assert words in error.message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"flip_at": 20}, "differs from the hub's file"),
        ({"longer_by": 3}, "sends more than"),
        ({"status": 404}, "ada/pirate-lora"),
        ({"hides": frozenset({"X-Linked-Etag", "ETag"})}, "returns no commit, checksum and size"),
        ({"hides": frozenset({"X-Repo-Commit"})}, "returns no commit, checksum and size"),
    ],
    ids=["other bytes", "longer", "not there", "no checksum", "no commit"],
)
def test_a_hub_that_lies_is_named(hub, tmp_path, fault, words):
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    error = refused(hub, tmp_path)
    assert error.param == "model_name" and words in error.message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"status": 503}, "fails with status 503"),
        ({"status": 429}, "too many requests"),
        ({"status": 500}, "fails with status 500"),
        ({"reset_at": 100}, "hangs up"),
    ],
    ids=str,
)
def test_a_failing_hub_may_be_asked_again_without_blame(hub, tmp_path, fault, words):
    for name, value in fault.items():
        setattr(hub.faults, name, value)
    error = away(hub, tmp_path)
    assert (error.param, error.status, error.retryable) == (None, 503, True)
    assert words in error.message and hub.url in error.message


def test_a_connection_that_ends_early_is_continued(hub, tmp_path):
    hub.faults.hang_up_at = 200
    fetch(hub, tmp_path)
    assert "bytes=200-" in hub.ranges()


def test_nobody_is_asked_twice_who_does_not_listen(tmp_path):
    error = away(HubServer(url="http://127.0.0.1:9"), tmp_path)
    assert "cannot be reached" in error.message


def test_a_too_large_file_is_refused_before_its_first_byte(hub, tmp_path):
    hub.repositories["eve/big"] = Repository({"big.gguf": bytes(MOST + 1)})
    assert "the limit is 1,048,576" in refused(hub, tmp_path, "eve/big").message
    assert not hub.file_requests


def test_a_token_is_not_sent_in_the_clear_to_another_machine(tmp_path):
    hub = HubServer(url="http://hub.example.org")
    assert "in the clear" in refused(hub, tmp_path, token=TOKEN).message


def test_a_disk_that_is_full_is_the_operators_business(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("antiphon.weights.hub.cache.HubCache.count_free_bytes", lambda _: 0)
    with pytest.raises(EngineError, match="the server has no disk space") as full:
        fetch(hub, tmp_path)
    assert full.value.status == 500 and str(tmp_path) not in full.value.message


@pytest.mark.parametrize("config", [b"{", b"[" * 5000, b"3", b'{"base_model_name_or_path": 3}', b"\xff"])
def test_a_configuration_that_is_none_names_no_model(hub, tmp_path, config):
    hub.repositories[PIRATE] = Repository(FILES | {CONFIG: config})
    assert fetch(hub, tmp_path)["base"] is None
