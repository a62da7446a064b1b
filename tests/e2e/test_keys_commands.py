"""Projects, users and keys from the command line, against a real server; its database in SQLite, and in
PostgreSQL."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.server import Server, serving

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


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


@contextmanager
def serving_keys(folder: Path, **more: str) -> Iterator[Place]:
    home = folder / "home"
    with serving(env={"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)} | more) as server:
        yield Place(server, home)


IN_POSTGRESQL = pytest.param("postgresql", marks=pytest.mark.soak)
"""The commands are the same; tests/e2e/test_nodes.py serves from PostgreSQL."""


@pytest.fixture(scope="module", params=["sqlite", IN_POSTGRESQL])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    store = {}
    if request.param == "postgresql":
        store["ANTIPHON_STORE"] = request.getfixturevalue("cluster").database()
    with serving_keys(tmp_path_factory.mktemp("keys"), **store) as made:
        yield made


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
