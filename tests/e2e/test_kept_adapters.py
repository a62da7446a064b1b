"""Adapters that last over a restart, and adapters of projects, on the real server with cantor."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.support.hub_server import HubServer, Repository, serve_hub
from tests.support.model_files import BUNDLED
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

LORA = "/empower/api/v1/lora"
QUESTION = {
    "messages": [{"role": "user", "content": "What is Antiphon?"}],
    "temperature": 0,
    "max_tokens": 24,
}

pytestmark = pytest.mark.timeout(480)


class Caller:
    """A key of a running server."""

    def __init__(self, server: Server, key: str) -> None:
        self.server = server
        self.headers = {"authorization": f"Bearer {key}"}

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx2.Response:
        with self.server.client() as client:
            return client.request(method, path, json=body, headers=self.headers | headers)

    def deploy(self, repository: str, name: str) -> httpx2.Response:
        body = {"model_name": repository, "model_source": "HF_HUB", "name": name}
        return self.ask("POST", LORA, body)

    def say(self, model: str) -> str:
        reply = self.ask("POST", "/v1/chat/completions", {"model": model, **QUESTION})
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text

    def names(self) -> list[str]:
        models = self.ask("GET", "/v1/models").json()["data"]
        loras = [each["name"] for each in self.ask("GET", LORA).json()]
        listed = [each["id"] for each in models if each.get("parent")]
        assert listed == loras
        return listed


def kill(server: Server) -> None:
    """Ends the server without any notice, as a crash does."""
    children = server.supervisor.children(recursive=True)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait(50)
    assert psutil.wait_procs(children, 50)[1] == []


def operator(server: Server, home: Path) -> Caller:
    return Caller(server, (home / "admin.key").read_text().strip())


def make_project_key(caller: Caller, name: str) -> str:
    project = caller.ask("POST", "/admin/v1/projects", {"name": name}).json()["id"]
    body = {"kind": "service", "project": project, "endpoints": ["/v1/*", "*lora*"]}
    secret: str = caller.ask("POST", "/admin/v1/keys", body).json()["secret"]
    return secret


def test_adapters_belong_to_their_projects_and_outlast_a_crash(tmp_path: Path) -> None:
    files = {name: (BUNDLED / "adapters" / f"{name}.gguf").read_bytes() for name in ("pirate", "mood")}
    held = {f"ada/{name}": Repository({f"{name}.gguf": data}) for name, data in files.items()}
    with serve_hub(HubServer(held)) as hub:
        home = tmp_path / "home"
        env = {
            "ANTIPHON_HUB_ENDPOINT": hub.url,
            "ANTIPHON_LORA_REPOSITORIES": "ada/*",
            "ANTIPHON_LORA_DIRECTORIES": str(BUNDLED / "adapters"),
            "ANTIPHON_LORA_PROJECT_ADAPTERS": "1",
            "ANTIPHON_KEYS": "true",
            "ANTIPHON_HOME": str(home),
            "HF_TOKEN": "",
        }
        with serving(env=env, cwd=tmp_path) as server:
            admin = operator(server, home)
            keys = [make_project_key(admin, name) for name in ("one", "two", "three")]
            said = load_everything(server, admin, *keys[:2])
            require_bounds(server, admin, *keys)
            require_counted(admin, keys[0])
            kill(server)
        with serving(env=env, cwd=tmp_path) as server:
            one, two, three = (Caller(server, key) for key in keys)
            admin = operator(server, home)
            assert (one.names(), two.names()) == (["common", "style"], ["common", "style"])
            assert three.names() == admin.names() == ["common"]
            assert [one.say("style"), two.say("style"), three.say("common")] == said
            require_removed(home, admin, one, two)


def load_everything(server: Server, admin: Caller, first: str, second: str) -> list[str]:
    """The operator's adapter, and one of each project under one name; returns what they say."""
    one, two = Caller(server, first), Caller(server, second)
    loaded = admin.ask("POST", "/v1/load_lora_adapter", {"lora_name": "common", "lora_path": "pirate.gguf"})
    assert loaded.status_code == 200, loaded.text
    assert one.deploy("ada/pirate", "style").status_code == 200
    assert two.deploy("ada/mood", "style").status_code == 200
    said = [one.say("style"), two.say("style"), admin.say("common")]
    assert said[0] == said[2] != said[1], "one content under two names, and another under the same name"
    return said


def require_bounds(server: Server, admin: Caller, first: str, second: str, third: str) -> None:
    """What a project may not."""
    one, three = Caller(server, first), Caller(server, third)
    absent = three.ask("GET", f"{LORA}/absent")
    unknown = three.ask("POST", "/v1/chat/completions", {"model": "absent", **QUESTION})
    for caller in (three, admin):
        for method in ("GET", "DELETE"):
            reply = caller.ask(method, f"{LORA}/style")
            assert reply.status_code == 404
            assert reply.text.replace("style", "absent") == caller.ask(method, f"{LORA}/absent").text
        reply = caller.ask("POST", "/v1/chat/completions", {"model": "style", **QUESTION})
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert reply.text.count("style") == 1 and absent.status_code == unknown.status_code == 404
    refused: dict[str, tuple[httpx2.Response, int]] = {
        "a second adapter": (one.deploy("ada/mood", "more"), 403),
        "the operator's name": (three.deploy("ada/mood", "common"), 400),
        "the base model's name": (three.deploy("ada/mood", "cantor"), 400),
        "the operator's adapter": (one.ask("DELETE", f"{LORA}/common"), 403),
        "another repository": (three.deploy("eve/mood", "mood"), 403),
        "a path of the server": (
            three.ask("POST", LORA, {"model_name": "mood.gguf", "model_source": "LOCAL", "name": "m"}),
            403,
        ),
        "a path of the server at vLLM's route": (
            three.ask("POST", "/v1/load_lora_adapter", {"lora_name": "m", "lora_path": "mood.gguf"}),
            403,
        ),
        "a key without the path": (plain_key(admin, server).deploy("ada/mood", "m"), 403),
    }
    assert {what: reply.status_code for what, (reply, _) in refused.items()} == {
        what: status for what, (_, status) in refused.items()
    }


def plain_key(admin: Caller, server: Server) -> Caller:
    """A service key whose endpoints do not name adapters."""
    body = {"kind": "service", "project": "default"}
    return Caller(server, admin.ask("POST", "/admin/v1/keys", body).json()["secret"])


def require_counted(admin: Caller, key: str) -> None:
    """The ledger has the project's name, and sums and numbers have the base model's."""
    rows: list[Mapping[str, object]] = []

    def has_row() -> bool:
        reply = admin.ask("GET", "/admin/v1/usage/entries?limit=100")
        rows[:] = reply.json()["data"]
        return {"style", "common"} <= {row["asked"] for row in rows}

    wait_until(has_row, what="both in the ledger")
    named = {(row["asked"], row["model"]) for row in rows if row["adapter"]}
    assert named == {("style", "cantor"), ("common", "common")}
    metrics = admin.ask("GET", "/metrics").text
    assert 'model="common"' in metrics and "style" not in metrics


def require_removed(home: Path, admin: Caller, one: Caller, two: Caller) -> None:
    """A removed adapter is gone for its project alone, with its file; the operator's files stay."""
    assert one.ask("POST", "/v1/unload_lora_adapter", {"lora_name": "style"}).status_code == 200
    assert one.ask("DELETE", f"{LORA}/style").status_code == 404
    assert (one.names(), two.names()) == (["common"], ["common", "style"])
    assert len(list((home / "adapters").glob("*.gguf"))) == 2
    project = next(each["id"] for each in admin.ask("GET", "/admin/v1/projects").json()["data"][2:])
    removed = admin.ask("DELETE", f"{LORA}/style", None, **{"x-project-id": project})
    assert removed.status_code == 200, removed.text
    assert two.names() == ["common"]
    assert len(list((home / "adapters").glob("*.gguf"))) == 1
    kept = json.loads((home / "adapters" / "names.json").read_bytes())
    assert [each["entry"]["name"] for each in kept] == ["common"]
