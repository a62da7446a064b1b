"""Adapters from the hub on the real server, with cantor: deployed, asked, removed; and what stays of them."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.support.commands import run_command
from tests.support.hub_server import COMMIT, TOKEN, HubServer, Repository, serve_hub
from tests.support.lora_server import write_peft
from tests.support.model_files import BUNDLED
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

API = "/empower/api/v1"
SOON = 30.0
"""Seconds in which a small adapter answers, on a machine that is busy with others; alone it takes two."""

pytestmark = pytest.mark.timeout(480)
"""Each starts a server, and processes that fetch and convert."""


@dataclass(frozen=True)
class Lender:
    """A server that may deploy from a hub on loopback."""

    server: Server
    hub: HubServer
    home: Path

    def post(self, path: str, body: Mapping[str, object]) -> httpx2.Response:
        with self.server.client() as client:
            return client.post(API + path, json=body)

    def say(self, model: str) -> str:
        body = {"model": model, "messages": "What is Antiphon?", "temperature": 0, "max_tokens": 24}
        reply = self.post("/chat/completions", body)
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text

    def loras(self) -> list[str]:
        with self.server.client() as client:
            return [lora["name"] for lora in client.get(f"{API}/lora").json()]


@pytest.fixture(scope="module")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender]:
    place = tmp_path_factory.mktemp("deploying")
    peft = write_peft(place / "peft", BUNDLED / "cantor.gguf", 0.3)
    files = {path.name: path.read_bytes() for path in peft.iterdir()}
    pirate = {"pirate.gguf": (BUNDLED / "adapters" / "pirate.gguf").read_bytes()}
    held = {
        "ada/peft-lora": Repository(files),
        "ada/pirate": Repository(pirate),
        "ada/gated": Repository(pirate, is_gated=True),
    }
    with serve_hub(HubServer(held)) as hub:
        env = {
            "ANTIPHON_HUB_ENDPOINT": hub.url,
            "ANTIPHON_LORA_REPOSITORIES": "ada/*",
            "ANTIPHON_HOME": str(place / "home"),
            "HF_TOKEN": "",
        }
        with serving(env=env, cwd=place) as server:
            yield Lender(server, hub, place / "home")


@pytest.mark.parametrize("repository", ["ada/peft-lora", pytest.param("ada/pirate", marks=pytest.mark.soak)])
def test_a_repository_is_deployed_answers_and_is_removed(lender: Lender, repository: str) -> None:
    base = lender.say("cantor")
    began = time.monotonic()
    deployed = lender.post("/lora", {"model_name": repository, "model_source": "HF_HUB"})
    assert deployed.status_code == 200, deployed.text
    assert deployed.json()["active_deployment"]["hf_revision"] == COMMIT
    said = lender.say(repository)
    assert time.monotonic() - began < SOON
    assert said != base == lender.say("cantor")
    assert lender.loras() == [repository]
    with lender.server.client() as client:
        assert client.delete(f"{API}/lora/{repository}").status_code == 200
    assert lender.loras() == []
    gone = lender.post("/chat/completions", {"model": repository, "messages": "hi"})
    assert (gone.status_code, gone.json()["object"]) == (404, "error")


def test_a_refused_deployment_leaves_nothing_and_logs_no_token(lender: Lender) -> None:
    asked = {"model_name": "ada/gated", "model_source": "HF_HUB"}
    for body, status in (
        (asked | {"hf_token": "hf_wrong_canary"}, 400),
        (asked | {"model_name": "ada/absent"}, 400),
        (asked | {"model_name": "eve/pirate"}, 403),
        ({"model_name": "pirate.gguf", "model_source": "LOCAL"}, 403),
    ):
        reply = lender.post("/lora", body)
        assert (reply.status_code, reply.json()["object"]) == (status, "error"), reply.text
    assert lender.loras() == []
    assert lender.post("/lora", asked | {"hf_token": TOKEN}).status_code == 200
    assert lender.loras() == ["ada/gated"]
    with lender.server.client() as client:
        client.delete(f"{API}/lora/ada/gated").raise_for_status()
    wait_until(lambda: lender.server.records("lora_deployed"), what="it is logged")
    said = "\n".join(lender.server.lines)
    assert TOKEN not in said and "hf_wrong_canary" not in said
    kept = {path.name for path in (lender.home / "adapters").iterdir()} - {
        "names.json",
        "names.lock",
        "changes.lock",
    }
    assert kept and all(name.endswith(".gguf") for name in kept), "nothing half is left behind"


def test_the_command_deploys_what_the_hub_has(lender: Lender) -> None:
    def lora(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command("lora", *arguments, "--url", lender.server.url, cwd=lender.home.parent)

    added = lora("add", "sailor=hf:ada/pirate:pirate.gguf")
    assert (added.returncode, added.stdout) == (0, "loaded sailor\n"), added.stderr
    listed = json.loads(lora("list", "--json").stdout)["adapters"]
    assert [(row["name"], row["model"]) for row in listed] == [("sailor", "cantor")]
    refused = lora("add", "other=hf:eve/pirate")
    assert refused.returncode == 1 and "ANTIPHON_LORA_REPOSITORIES" in refused.stderr
    assert lora("remove", "sailor").returncode == 0
    assert lender.loras() == []
