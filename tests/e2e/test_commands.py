"""The commands that speak to a server, against a real one: chat, bench and doctor, and those of projects,
users and keys."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon.cli.doctor.checks import check_memory, check_models, check_port, find_own_server
from antiphon.cli.doctor.findings import FindingSeverity
from antiphon.cli.serve_options import ServeOptions
from antiphon.settings.server import ServerSettings
from tests.support.commands import run_command
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.model_files import write_encoder
from tests.support.server import Server, serving

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands") / "home"


@pytest.fixture(scope="module")
def two_models(home: Path) -> Iterator[Server]:
    """A server with keys, of an encoder, and of cantor under two names."""
    encoder = write_encoder(home.with_name("encoder.gguf"))
    models = ("--model", str(encoder), "--model", "cantor", "--alias", "gpt-4o=cantor")
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
    with serving("--host", "localhost", *models, env=env) as server:
        yield server


def test_doctor_tells_its_own_server_from_others(
    two_models: Server, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.cli.doctor.checks.HEALTH_TIMEOUT", 60.0)
    server = two_models
    settings = ServerSettings(port=int(server.url.rpartition(":")[2]))
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "other"))
    found = check_port(settings)
    assert (found.id, found.severity) == ("port-taken", FindingSeverity.ADVICE)
    assert "another Antiphon already uses" in found.message

    monkeypatch.setenv("ANTIPHON_HOME", str(home))
    found = check_port(settings)
    assert (found.id, found.severity) == ("port", FindingSeverity.OK)
    assert found.message == f"your server listens on {server.url} (process {server.process.pid})"
    own = find_own_server(settings)
    assert own is not None and own.measure_memory() > 10_000_000
    models, _ = check_models(ServeOptions(models=["cantor"]).load_settings())
    (memory,) = check_memory(models, own)
    assert "of them used by the running server" in memory.message


def test_bench_counts_as_the_engine_does(server: Server, tmp_path: Path) -> None:
    server.wait_until_idle()
    before = server.load()
    options = ("--requests", "4", "--concurrency", "2", "--max-tokens", "8", "--prompt-tokens", "60")
    done = run_command("bench", "--url", server.url, "--json", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["answered"], shown["failed"], shown["counted"]) == (4, 0, True)
    assert 4 <= shown["tokens"] <= 4 * 8
    assert 40 <= shown["prompt_tokens"] <= 90
    made = server.load().decoded_tokens - before.decoded_tokens
    requests = 4 + 2  # the probes too; each may also have made the token that ends it
    assert shown["tokens"] <= made <= shown["tokens"] + 2 * requests


def test_chat_and_bench_skip_an_encoder_and_take_an_alias(
    two_models: Server, home: Path, tmp_path: Path
) -> None:
    server, env = two_models, {"ANTIPHON_HOME": str(home)}

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(
            arguments[0], "--url", server.url, *arguments[1:], cwd=tmp_path, env=env, stdin="Who are you?\n"
        )

    answers = [said("chat"), said("chat", "--model", "gpt-4o")]
    assert {(each.returncode, each.stderr) for each in answers} == {(0, "")}
    assert all("cantor" in each.stdout for each in answers)
    refused = said("chat", "--model", "encoder")
    assert refused.returncode == 1 and "makes vectors or ranks documents" in refused.stderr
    measured = said("bench", "--requests", "1", "--max-tokens", "4", "--prompt-tokens", "20", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)["model"] == "cantor"


@dataclass(frozen=True)
class Place:
    """A server and its home, where commands run."""

    server: Server
    home: Path

    def run(self, *words: str, key: str = "") -> str:
        """What a command prints, with a key or with the one in the home."""
        env = {"ANTIPHON_HOME": str(self.home)} | ({"ANTIPHON_API_KEY": key} if key else {})
        done = run_command(*words, "--url", self.server.url, cwd=self.home.parent, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")


IN_POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.soak)
"""The commands are the same; tests/e2e/test_nodes.py serves from PostgreSQL."""


@pytest.fixture(scope="module", params=["sqlite", IN_POSTGRESQL])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if request.param == "sqlite":
        yield Place(request.getfixturevalue("two_models"), request.getfixturevalue("home"))
        return
    home = tmp_path_factory.mktemp("keys") / "home"
    store = request.getfixturevalue("cluster").database()
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_STORE": store}
    with serving(env=env) as server:
        yield Place(server, home)


def status(server: Server, key: str) -> int:
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"})
        return answer.status_code


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_from_a_project_to_a_revoked_key(place: Place) -> None:
    server, ran = place.server, place.run
    project = ran("projects", "create", "Research")
    ann = ran("users", "create", "Ann", "--email", "ann@example.com")
    ran("projects", "add-member", "Research", "Ann@example.com", "--role", "owner")
    row = ran("projects", "members", "Research", "--wide").splitlines()[1].split()
    assert (row[:2], row[-1]) == (["Ann", "owner"], ann)
    token = ran("keys", "create", "access_token", "--user", "ann@example.com", "--expires", "12h")
    bot = ran(
        "keys",
        "create",
        "service",
        "--project",
        "Research",
        "--model",
        "cantor*",
        "--expires",
        "1h",
        key=token,
    )
    other = ran(
        "keys", "create", "service", "--project", project, "--model", "other", "--expires", "1h", key=token
    )
    assert (status(server, bot), status(server, other)) == (200, 403)

    listed = json.loads(ran("keys", "list", "--project", "Research", "--json", key=token))["keys"]
    assert [each["models"] for each in listed] == [["cantor*"], ["other"]]
    id_ = listed[0]["id"]
    successor = ran("keys", "rotate", id_, "--overlap", "1h", key=token)
    assert (status(server, bot), status(server, successor)) == (200, 200)
    ran("keys", "revoke", listed[0]["prefix"], key=token)
    assert (status(server, bot), status(server, successor)) == (401, 200)
    assert "revoked" in ran("keys", "list").split(listed[0]["prefix"])[1].splitlines()[0]
    assert f"project   {project}" in ran("keys", "show", id_).replace("project     ", "project   ")

    ran("projects", "archive", "Research")
    assert status(server, successor) == 401
    ran("projects", "restore", "Research")
    ran("users", "disable", "ann@example.com")
    assert (status(server, successor), status(server, token)) == (200, 401)
    entries = json.loads(ran("audit", "--limit", "3", "--json"))["audit"]
    assert [(each["action"], each["target"]) for each in entries] == [
        ("user.change", ann),
        ("project.change", project),
        ("project.change", project),
    ]
    assert "project.create" in ran("audit", "--project", "Research", "--since", "1h")
    assert ran("audit", "--project", "Research", "--until", "1h") == "nothing was changed"
    said = "\n".join(server.lines)
    assert not [each for each in (token, bot, other, successor, "canary-hunter2") if each in said]


@pytest.mark.slow
def test_the_address_of_a_user_and_texts_that_no_database_gets(place: Place) -> None:
    server, ran = place.server, place.run
    ann = ran("users", "create", "Ann", "--email", "first@example.com")
    ran("users", "update", ann, "--email", "Anna@example.com")
    ran("users", "create", "Other Ann", "--email", "first@example.com")  # the address is free again
    ran("users", "update", ann, "--no-email")
    entries = json.loads(ran("audit", "--target", ann, "--limit", "2", "--json"))["audit"]
    assert [each["detail"] for each in entries] == [{"email": None}, {"email": "anna@example.com"}]
    keys = {"x-api-key": (place.home / "admin.key").read_text().strip(), "api-key": ""}
    with server.client() as client:
        for text in ({"name": "a\0b"}, {"name": "\u200b"}, {"name": "P", "note": "a\0b"}):
            refused = client.post("/admin/v1/projects", json=text, headers=keys)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(reversed(text)))
        found = client.get("/admin/v1/audit?target=%00", headers=keys)
        assert (found.status_code, found.json()["data"]) == (200, [])


@pytest.mark.slow
def test_the_operators_key_file_follows_its_rotation(place: Place) -> None:
    def operators() -> list[str]:
        listed = json.loads(place.run("keys", "list", "--json"))["keys"]
        return [each["id"] for each in listed if each["kind"] == "admin"]

    kept = place.home / "admin.key"
    assert place.run("keys", "rotate", *operators()) == kept.read_text().strip()
    second = place.run("keys", "create", "admin")  # with the new one, which nobody said
    place.run("keys", "revoke", operators()[1])
    assert not kept.exists()
    assert status(place.server, second) == 200
    kept.write_text(second)  # the other tests need an operator's key
