"""Adapters that callers deploy in Empower's dialect: from a hub on loopback and from a directory, as it ships
but for the engine's library."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import constants

from antiphon.auth.base import RequestedScope
from antiphon.auth.keyring import SettingsKey
from antiphon.domain.identity import EVERY_RIGHT, Actor, ActorKind
from antiphon.domain.tenancy import Grant
from antiphon_testing import Hold, Script, ScriptedTokenEngine
from benchmarks.make_model import SIZES, write_model
from tests.support.http_server import KEY, PROCESS_PATIENCE, TEXT, at_most, gone
from tests.support.hub_server import COMMIT, TOKEN, HubServer, Repository, serve_hub
from tests.support.lora_server import Lora, lending, write_peft
from tests.support.waiting import await_until

API = "/empower/api/v1"
PIRATE = "ada/pirate-lora"
PEFT = ("adapter_config.json", "adapter_model.safetensors")

pytestmark = pytest.mark.timeout(480)
"""Each deployment takes two processes, a second or two where the machine is busy."""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of architecture llama; only its header counts here."""
    return write_model(tmp_path_factory.mktemp("base") / "base.gguf", SIZES["tiny"], "f32")


def packed(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Holds one adapter for the model as PEFT saves it. It may answer as late as a busy machine lets it."""
    for name in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
        monkeypatch.setenv(name, "60")
        monkeypatch.setattr(constants, name, 60)
    files = packed(write_peft(tmp_path / "pirate", base)) | {"README.md": b"Arr."}
    with serve_hub(HubServer({PIRATE: Repository(files)})) as server:
        yield server


class Caller:
    """A program that speaks Empower's dialect."""

    def __init__(self, lora: Lora) -> None:
        self.lora = lora
        headers = {"authorization": f"Bearer {lora.key}"} if lora.key else {}
        self.http = httpx2.AsyncClient(base_url=lora.url, headers=headers, timeout=100)

    async def deploy(self, model_name: str = PIRATE, **more: object) -> httpx2.Response:
        body = {"model_name": model_name, "model_source": "HF_HUB"} | more
        return await self.http.post(f"{API}/lora", json=body)

    async def deployed(self, model_name: str = PIRATE, **more: object) -> dict[str, Any]:
        reply = await self.deploy(model_name, **more)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    async def refused(self, model_name: str = PIRATE, **more: object) -> dict[str, Any]:
        """The error; nothing may have changed."""
        before = await self.names()
        reply = await self.deploy(model_name, **more)
        assert reply.status_code in (400, 403, 404), reply.text
        error: dict[str, Any] = reply.json()
        assert error["object"] == "error" and error["type"] == "invalid_request_error"
        assert await self.names() == before
        assert not leftovers(self.lora), "nothing half is left behind"
        return error | {"status": reply.status_code}

    async def names(self) -> list[str]:
        return [row["name"] for row in (await self.http.get(f"{API}/lora")).json()]

    async def say(self, model: str) -> str:
        body = {"model": model, "messages": "hi", "max_tokens": 12, "temperature": 0}
        reply = await self.http.post(f"{API}/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["model"] == model
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text


def leftovers(lora: Lora) -> list[str]:
    """What stands in the registry besides whole adapters."""
    return [path.name for path in lora.registry.glob("*") if path.suffix != ".gguf"]


@asynccontextmanager
async def calling(*where: Path, **how: Any) -> AsyncIterator[Caller]:
    async with lending(*where, **how) as lora:
        caller = Caller(lora)
        async with caller.http:
            yield caller


@pytest.fixture
async def caller(tmp_path: Path, base: Path, hub: HubServer) -> AsyncIterator[Caller]:
    async with calling(tmp_path, base, hub=hub.url) as made:
        yield made


@pytest.fixture
async def isolated(tmp_path: Path, base: Path, hub: HubServer) -> AsyncIterator[Caller]:
    """Fetches and reads in processes of their own, as it ships."""
    async with calling(tmp_path, base, hub=hub.url, isolated=True) as made:
        yield made


# --- deploying ----------------------------------------------------------------------------------------------


async def test_a_deployed_repository_is_a_model_by_its_own_name(isolated):
    lora = await isolated.deployed()
    assert lora == {
        "name": PIRATE,
        "unit_price": 0,
        "active_deployment": {
            "base_model_name": "m",
            "model_name": PIRATE,
            "model_source": "HF_HUB",
            "hf_revision": COMMIT,
            "created_at": 1_800_000_000,
            "creator": {"actor_type": "ANONYMOUS", "user": None, "api_key": None},
        },
    }
    assert await isolated.say(PIRATE) != await isolated.say("m")
    assert (await isolated.http.get(f"{API}/lora/{PIRATE}")).json() == lora
    assert (await isolated.http.get(f"{API}/lora/ada%2Fpirate-lora")).json() == lora
    assert (await isolated.http.get(f"{API}/lora")).json() == [lora]
    rows = {row["id"]: row["parent"] for row in (await isolated.http.get("/v1/models")).json()["data"]}
    assert rows == {"m": None, PIRATE: "m"}
    assert not leftovers(isolated.lora)


async def test_a_deployment_may_have_another_name_and_goes_with_it(caller):
    assert (await caller.deployed(name="team/pirate:2"))["name"] == "team/pirate:2"
    await caller.say("team/pirate:2")
    removed = await caller.http.delete(f"{API}/lora/team/pirate:2")
    assert (removed.status_code, removed.json()) == (
        200,
        {"name": "team/pirate:2", "unit_price": 0, "active_deployment": None},
    )
    for again in (
        await caller.http.delete(f"{API}/lora/team/pirate:2"),
        await caller.http.get(f"{API}/lora/team/pirate:2"),
        await caller.http.post(f"{API}/chat/completions", json={"model": "team/pirate:2", "messages": "hi"}),
    ):
        assert again.status_code == 404 and again.json()["object"] == "error", again.text


async def test_one_gguf_file_is_an_adapter_too(caller, hub):
    await caller.deployed()
    (kept,) = caller.lora.registry.glob("*.gguf")
    files = {"pirate.gguf": kept.read_bytes()}
    hub.repositories["ada/gguf"] = Repository(files)
    hub.repositories["ada/both"] = Repository(files | {"other.gguf": b"x"})
    await caller.deployed("ada/gguf")
    assert await caller.say("ada/gguf") == await caller.say(PIRATE)
    error = await caller.refused("ada/both")
    assert "several GGUF files (pirate.gguf, other.gguf)" in error["message"]
    found = await caller.deployed("ada/both:pirate.gguf")
    assert found["name"] == "ada/both:pirate.gguf"
    assert "there is no away.gguf" in (await caller.refused("ada/both:away.gguf"))["message"]


async def test_a_file_in_an_allowed_directory_deploys_by_relative_path(caller):
    caller.lora.peft("shelved")
    found = await caller.deployed("shelved", model_source="LOCAL")
    deployment = found["active_deployment"]
    assert (deployment["model_source"], deployment["model_name"]) == ("LOCAL", "shelved")
    assert deployment["hf_revision"] is None
    await caller.say("shelved")
    for path in ("../pirate", str(caller.lora.shelf / "shelved"), "away", "/etc/passwd"):
        error = await caller.refused(path, model_source="LOCAL", name="x")
        assert (error["status"], error["param"]) == (400, "model_name"), path


async def test_redeploying_is_no_error_and_a_newer_commit_replaces(caller, hub, tmp_path, base):
    await caller.deployed()
    said = await caller.say(PIRATE)
    await caller.deployed()
    assert await caller.say(PIRATE) == said and await caller.names() == [PIRATE]
    newer = "b" * 40
    hub.repositories[PIRATE] = Repository(packed(write_peft(tmp_path / "newer", base, 2.0)), newer)
    assert (await caller.deployed())["active_deployment"]["hf_revision"] == newer
    assert await caller.say(PIRATE) != said and await caller.names() == [PIRATE]
    assert len(caller.lora.tokens.adapters.paths) == 1, "the engine let go of the older one"


async def test_what_is_asked_for_at_a_commit_is_of_that_commit(caller, hub):
    found = await caller.deployed(hf_revision=COMMIT)
    assert found["active_deployment"]["hf_revision"] == COMMIT
    asked = [asked.path for asked in hub.requests if "safetensors" in asked.path]
    assert asked and all(f"/resolve/{COMMIT}/" in path for path in asked)


async def test_two_deployments_of_a_name_at_once_leave_one_adapter(caller, hub, tmp_path, base):
    other = packed(write_peft(tmp_path / "other", base, 3.0))
    hub.repositories["ada/other"] = Repository(other, "c" * 40)
    first, second = await asyncio.gather(
        caller.deployed(name="both"), caller.deployed("ada/other", name="both")
    )
    assert await caller.names() == ["both"]
    shown = (await caller.http.get(f"{API}/lora/both")).json()
    assert shown in (first, second)
    alone = await caller.deployed(shown["active_deployment"]["model_name"], name="alone")
    assert await caller.say("both") == await caller.say("alone"), "what is shown is what answers"
    assert alone["name"] == "alone" and not leftovers(caller.lora)


async def test_many_deployments_at_once_wait_for_their_turn(caller):
    names = [f"pirate-{at}" for at in range(3)]
    await asyncio.gather(*(caller.deployed(name=name) for name in names))
    assert sorted(await caller.names()) == names


# --- what cannot be had -------------------------------------------------------------------------------------


async def test_what_the_hub_refuses_is_an_error_that_names_the_field(caller):
    for asked, param, words in (
        ({"model_name": "ada/unknown"}, "model_name", "there is no repository"),
        ({"model_name": PIRATE, "hf_token": "hf_wrong"}, "hf_token", "refuses the token"),
        ({"model_name": PIRATE, "hf_revision": "away"}, "hf_revision", "has no revision away"),
    ):
        error = await caller.refused(**asked)
        assert (error["status"], error["param"]) == (400, param), error
        assert words in error["message"] and str(caller.lora.registry) not in error["message"], error


async def test_a_gated_repository_uses_the_callers_unsaved_token(caller, hub, caplog):
    hub.repositories["ada/gated"] = Repository(hub.repositories[PIRATE].files, is_gated=True)
    with caplog.at_level("DEBUG"):
        reply = await caller.deploy("ada/gated", hf_token=TOKEN)
    assert reply.status_code == 200, reply.text
    assert {asked.authorization for asked in hub.requests} == {f"Bearer {TOKEN}"}
    assert {sent.authorization for sent in hub.file_requests} == {None}, "the files' host is not sent it"
    assert TOKEN not in reply.text + caplog.text + (await caller.http.get(f"{API}/lora")).text
    kept = [path for path in caller.lora.registry.rglob("*") if path.is_file()]
    assert kept and not any(TOKEN.encode() in path.read_bytes() for path in kept)


async def test_the_operators_token_is_not_lent(isolated, hub, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    home = tmp_path / "home" / ".cache" / "huggingface"
    home.mkdir(parents=True)
    (home / "token").write_text(TOKEN)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(home))
    hub.repositories["ada/gated"] = Repository(hub.repositories[PIRATE].files, is_gated=True)
    await isolated.refused("ada/gated")
    assert {asked.authorization for asked in hub.requests} == {None}


async def test_a_cut_download_resumes_and_an_endless_one_is_an_error(caller, hub):
    hub.faults.hang_up_at = 200
    await caller.deployed()
    assert "bytes=200-" in hub.ranges()
    hub.faults.reset_at = 100
    reply = await caller.deploy(name="other")
    error = reply.json()
    assert (reply.status_code, error["code"], error["param"]) == (503, "hub_unavailable", None), error
    assert hub.url in error["message"] and "hangs up" in error["message"]
    assert "the incomplete file is kept" not in error["message"]
    assert await caller.names() == [PIRATE] and not leftovers(caller.lora)


async def test_bytes_that_are_not_what_the_hub_says_are_not_deployed(caller, hub):
    hub.faults.flip_at = 20
    error = await caller.refused()
    assert error["status"] == 400 and "differs from the hub's file" in error["message"], error


@pytest.mark.parametrize(
    "files",
    [
        {"adapter.gguf": b"no gguf at all"},
        {PEFT[0]: b"{", PEFT[1]: b"x"},
        {PEFT[0]: b"[" * 5000, PEFT[1]: b"x"},
    ],
    ids=["no GGUF", "no JSON", "deep JSON"],
)
async def test_a_repository_whose_files_are_no_adapter_is_an_error(caller, hub, files):
    hub.repositories["eve/bad"] = Repository(files)
    error = await caller.refused("eve/bad")
    assert (error["status"], error["param"]) == (400, "model_name"), error
    assert str(caller.lora.registry) not in error["message"], error


async def test_an_adapter_of_another_model_is_an_error(caller, hub, tmp_path):
    size = SIZES["small"] if "small" in SIZES else SIZES["middle"]
    other = write_model(tmp_path / "other.gguf", size, "f32")
    hub.repositories["ada/other"] = Repository(packed(write_peft(tmp_path / "for-other", other)))
    assert "made for another model" in (await caller.refused("ada/other"))["message"]


NO_DEPLOYMENTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"model_name": "pirate"}, "model_name"),
    ({"model_name": "a/b/c"}, "model_name"),
    ({"model_name": "../pirate"}, "model_name"),
    ({"model_name": "ada/pirate@main"}, "model_name"),
    ({"model_name": "http://evil.example/x"}, "model_name"),
    ({"model_name": "ada/pirate:../x.gguf"}, "model_name"),
    ({"model_name": "ada/pirate:x.bin"}, "model_name"),
    ({"model_name": 3}, "model_name"),
    ({"model_name": PIRATE, "model_source": "S3"}, "model_source"),
    ({"model_name": PIRATE, "model_source": None}, "model_source"),
    ({"model_name": PIRATE, "hf_revision": "../x"}, "hf_revision"),
    ({"model_name": PIRATE, "hf_revision": "a b"}, "hf_revision"),
    ({"model_name": PIRATE, "hf_token": "a\r\nx: y"}, "hf_token"),
    ({"model_name": PIRATE, "name": "a b"}, "name"),
    ({"model_name": PIRATE, "name": "m"}, "name"),
    ({"model_name": PIRATE, "name": "a/../m"}, "name"),
    ({"model_name": PIRATE, "name": "a//m"}, "name"),
    ({"model_name": PIRATE, "name": "a/"}, "name"),
    ({"model_name": PIRATE, "name": "a/."}, "name"),
    ({"model_name": "a/../b", "model_source": "LOCAL"}, "model_name"),
    ({"model_name": PIRATE, "name": "accounts/fireworks/models/m"}, "name"),
    ({"model_name": PIRATE, "name": "accounts/fireworks/models/later"}, "name"),
    ({"model_name": PIRATE, "name": "x" * 201}, "name"),
    ({"model_name": PIRATE, "base_model_name": "other"}, "base_model_name"),
    ({"model_name": PIRATE, "surprise": 1}, "surprise"),
    ({"model_name": "x", "model_source": "LOCAL", "hf_token": "x"}, "hf_token"),
)


async def test_what_is_no_deployment_is_refused_by_the_fields_name(caller, hub):
    for body, param in NO_DEPLOYMENTS:
        reply = await caller.http.post(f"{API}/lora", json={"model_source": "HF_HUB"} | body)
        error = reply.json()
        assert reply.status_code in (400, 404), error
        assert (error["object"], error["param"]) == ("error", param), error
        if param != "base_model_name":
            assert not hub.requests, "nobody was asked"
        hub.requests.clear()
        assert not leftovers(caller.lora)


async def test_a_name_that_was_not_deployed_is_not_taken(caller):
    body = {"lora_name": "loaded", "lora_path": str(caller.lora.peft("loaded"))}
    assert (await caller.http.post("/v1/load_lora_adapter", json=body)).status_code == 200
    assert "was not deployed" in (await caller.refused(name="loaded"))["message"]
    shown = (await caller.http.get(f"{API}/lora/loaded")).json()["active_deployment"]
    assert shown["model_name"].startswith("sha256:") and shown["creator"] is None
    assert (await caller.http.delete(f"{API}/lora/loaded")).status_code == 200
    await caller.deployed(name="loaded")


async def test_adapters_take_no_alias_and_a_catch_all_reserves_no_name(tmp_path, base, hub):
    aliases = {"gpt-4": "m", "later": "nothing-yet", "team/*": "m", "*": "m"}
    async with calling(tmp_path, base, hub=hub.url, aliases=aliases) as caller:
        before = await caller.say("gpt-4")
        path = str(caller.lora.peft("pirate"))
        for name in ("gpt-4", "later", "team/pirate", "accounts/fireworks/models/m"):
            error = await caller.refused(name=name)
            assert error["param"] == "name" and "is an alias" in error["message"], error
            loaded = await caller.lora.load(name, path, load_inplace=True)
            assert (loaded.status, loaded.error["param"]) == (400, "lora_name")
        assert not hub.requests, "nobody was asked"
        assert await caller.say("gpt-4") == before
        await caller.deployed(name="pirate.v1/.x")
        assert await caller.names() == ["pirate.v1/.x"]


# --- who may ------------------------------------------------------------------------------------------------


async def test_nothing_is_deployed_from_the_hub_unless_configured(tmp_path, base, hub):
    async with calling(tmp_path, base) as caller:
        error = await caller.refused()
        assert (error["status"], error["code"]) == (403, "permission_denied")
        assert "ANTIPHON_LORA_REPOSITORIES" in error["message"]
    assert not hub.requests


async def test_only_repositories_that_the_operator_names_are_deployed(tmp_path, base, hub):
    repositories = ("eve/one", "ada/*")
    hub.repositories["eve/two"] = hub.repositories[PIRATE]
    async with calling(tmp_path, base, hub=hub.url, repositories=repositories) as caller:
        await caller.deployed()
        for name in ("eve/two", "eve/one2", "adam/x"):
            error = await caller.refused(name)
            assert (error["status"], error["param"]) == (403, "model_name"), name
    assert not any("eve" in asked.path for asked in hub.requests)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "same"])
async def test_no_web_page_deploys_or_removes_without_a_key(caller, hub, origin):
    await caller.deployed()
    asked = len(hub.requests)
    headers = {"origin": caller.lora.url if origin == "same" else origin}
    body = {"model_name": PIRATE, "model_source": "HF_HUB", "name": "by-page"}
    posted = await caller.http.post(f"{API}/lora", json=body, headers=headers)
    deleted = await caller.http.delete(f"{API}/lora/{PIRATE}", headers=headers)
    for reply in (posted, deleted):
        assert (reply.status_code, reply.json()["object"]) == (403, "error")
    assert await caller.names() == [PIRATE] and len(hub.requests) == asked


async def test_only_a_key_deploys_and_its_name_is_the_creator(tmp_path, base, hub):
    async with calling(tmp_path, base, key=KEY, hub=hub.url) as caller:
        bare = {"authorization": "Bearer wrong"}
        body = {"model_name": PIRATE, "model_source": "HF_HUB"}
        for method, path in (
            ("POST", "/lora"), ("GET", "/lora"), ("GET", f"/lora/{PIRATE}"), ("DELETE", f"/lora/{PIRATE}"),
            ("GET", "/base-model"), ("GET", "/base-model/m"), ("POST", "/chat/completions"),
        ):  # fmt: skip
            sent = body if method == "POST" else None
            reply = await caller.http.request(method, API + path, json=sent, headers=bare)
            assert (reply.status_code, reply.json()["object"]) == (401, "error"), path
        assert not hub.requests
        creator = (await caller.deployed())["active_deployment"]["creator"]
        assert creator == {"actor_type": "API_KEY", "user": None, "api_key": {"name": "service-key"}}
        assert KEY not in json.dumps(creator)


class Confined:
    """Every token is a key of its own project, for the models `m` and `mine...`; it may deploy."""

    async def verify(self, token: str, chosen: RequestedScope) -> Actor | None:
        grant = Grant(models=("m", "mine*"))
        return Actor(ActorKind.SERVICE_KEY, token, project=token, rights=EVERY_RIGHT, grant=grant)


async def test_a_key_for_some_models_sees_and_changes_no_others(tmp_path, base, hub):
    knowing = (SettingsKey(KEY), Confined())
    async with calling(tmp_path, base, hub=hub.url, models=("m", "n"), knowing=knowing) as caller:
        caller.http.headers["authorization"] = f"Bearer {KEY}"
        for name in ("mine", "theirs"):
            await caller.deployed(name=name, base_model_name="m")
        assert (await caller.http.get(f"{API}/lora/mine")).json()["active_deployment"]["creator"]
        caller.http.headers["authorization"] = "Bearer other"
        assert await caller.names() == ["mine"]
        for reply in (
            (await caller.http.get(f"{API}/lora")).json()[0],
            await caller.deployed(name="mine2", base_model_name="m"),
        ):
            whose = reply["active_deployment"]["creator"]
            assert whose is None if reply["name"] == "mine" else whose["api_key"]["name"] == "other"
        assert [row["name"] for row in (await caller.http.get(f"{API}/base-model")).json()] == ["m"]
        for method, path in (("GET", "lora/theirs"), ("DELETE", "lora/theirs"), ("GET", "base-model/n")):
            reply = await caller.http.request(method, f"{API}/{path}")
            assert reply.status_code == 404 and "does not exist" in reply.json()["message"], reply.text
        told = await caller.refused(name="theirs")
        assert (told["status"], told["param"]) == (403, "name")
        for more, status, said in (
            ({}, 400, "models that take adapters: m"),
            ({"base_model_name": "n"}, 404, "do not have access to it."),
            ({"base_model_name": "mine0"}, 404, "This server has: m, mine, mine2."),
        ):
            told = await caller.refused(name="mine3", **more)
            assert (told["status"], told["param"]) == (status, "base_model_name"), told
            assert told["message"].endswith(said), told
        for path in ("load", "unload"):
            body = {"lora_name": "theirs"} | ({"lora_path": "x"} if path == "load" else {})
            reply = await caller.http.post(f"/v1/{path}_lora_adapter", json=body)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"]) == (403, "lora_name"), error
        caller.http.headers["authorization"] = f"Bearer {KEY}"
        assert await caller.names() == ["mine", "theirs", "mine2"]


async def test_base_models_are_shown_and_are_no_loras(caller):
    await caller.deployed()
    (row,) = (await caller.http.get(f"{API}/base-model")).json()
    assert row == (await caller.http.get(f"{API}/base-model/m")).json()
    assert (row["name"], row["unit_price"]) == ("m", 0)
    assert row["active_deployment"]["model_name"] == "m"
    for path in ("/base-model/away", f"/base-model/{PIRATE}", "/lora/m", "/lora/away"):
        reply = await caller.http.get(API + path)
        assert (reply.status_code, reply.json()["object"]) == (404, "error"), path
    assert (await caller.http.delete(f"{API}/lora/m")).status_code == 404


# --- while requests run -------------------------------------------------------------------------------------


async def test_what_runs_with_a_removed_adapter_ends_as_it_would_have(tmp_path, base, hub):
    gate = asyncio.Event()
    tokens = ScriptedTokenEngine(Script(text="Hello world", hold=Hold(gate, 1)))
    async with calling(tmp_path, base, hub=hub.url, tokens=tokens) as caller:
        await caller.deployed()
        (digest,) = tokens.adapters.paths
        async with asyncio.TaskGroup() as group:
            saying = group.create_task(caller.say(PIRATE))
            await await_until(lambda: tokens.adapters.running[digest] >= 1)
            assert (await caller.http.delete(f"{API}/lora/{PIRATE}")).status_code == 200
            assert await caller.names() == []
            gate.set()
        assert saying.result() == "Hello world"


async def test_a_caller_that_leaves_ends_its_download(isolated, hub):
    hub.faults.stall_at = 100
    leaving = httpx2.AsyncClient(base_url=isolated.lora.url)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(
            leaving.post(f"{API}/lora", json={"model_name": PIRATE, "model_source": "HF_HUB"}, timeout=100)
        )
        async with at_most(PROCESS_PATIENCE):
            await await_until(lambda: hub.file_requests)
        asking.cancel()
    await leaving.aclose()
    await gone(_Staged(isolated.lora), PROCESS_PATIENCE)
    assert await isolated.names() == []


class _Staged:
    """How much of deployments that are not over lies in the registry."""

    def __init__(self, lora: Lora) -> None:
        self._lora = lora

    def __len__(self) -> int:
        return len(leftovers(self._lora))


async def test_the_adapter_of_several_models_says_which_it_is_for(tmp_path, base, hub):
    said = write_peft(tmp_path / "said", base, base_model_name_or_path="big/Second")
    hub.repositories["ada/said"] = Repository(packed(said))
    async with calling(tmp_path, base, hub=hub.url, models=("first", "second")) as caller:
        error = await caller.refused()
        assert error["param"] == "base_model_name" and "first, second" in error["message"]
        found = await caller.deployed("ada/said")
        assert found["active_deployment"]["base_model_name"] == "second"
        found = await caller.deployed(base_model_name="first")
        assert found["active_deployment"]["base_model_name"] == "first"


async def test_a_deployed_adapter_speaks_in_the_other_dialects_too(caller):
    await caller.deployed()
    body = {"model": PIRATE, "prompt": "hi", "max_tokens": 4}
    assert (await caller.http.post(TEXT, json=body)).json()["model"] == PIRATE
