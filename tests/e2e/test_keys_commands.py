"""Projects, users and keys from the command line, against a real server; its database in SQLite, and in
PostgreSQL."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.conftest import bare_environment
from tests.e2e.server import Server, serving
from tests.postgresql import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


@pytest.fixture(params=["sqlite", "postgresql"])
def env(request: pytest.FixtureRequest, tmp_path) -> dict[str, str]:
    kept = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home")}
    if request.param == "postgresql":
        kept["ANTIPHON_STORE"] = request.getfixturevalue("postgresql")
    return kept


@pytest.fixture
def server(env: dict[str, str]) -> Iterator[Server]:
    with serving(env=env) as running:
        yield running


def status(server: Server, key: str) -> int:
    with server.client() as client:
        answer = client.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"})
        return answer.status_code


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_from_a_project_to_a_revoked_key(server: Server, env: dict[str, str], tmp_path) -> None:
    def ran(*words: str, key: str = "") -> str:
        """What a command prints where the server's home is, with a key or with none said."""
        done = subprocess.run(
            [sys.executable, "-m", "antiphon", *words, "--url", server.url],
            env=bare_environment()
            | {"ANTIPHON_HOME": env["ANTIPHON_HOME"]}
            | ({"ANTIPHON_API_KEY": key} if key else {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.removesuffix("\n")

    project = ran("projects", "create", "Research")
    ann = ran("users", "create", "Ann", "--email", "ann@example.com")
    ran("projects", "add-member", project, ann, "--role", "owner")
    assert ran("projects", "members", project).splitlines()[1].split()[:2] == [ann, "owner"]
    token = ran("keys", "create", "access_token", "--user", ann, "--expires", "12h")
    bot = ran(
        "keys", "create", "service", "--project", project, "--model", "cantor*", "--expires", "1h", key=token
    )
    other = ran(
        "keys", "create", "service", "--project", project, "--model", "other", "--expires", "1h", key=token
    )
    assert (status(server, bot), status(server, other)) == (200, 403)

    listed = json.loads(ran("keys", "list", "--project", project, "--json", key=token))["keys"]
    assert [each["models"] for each in listed] == [["cantor*"], ["other"]]
    id_ = listed[0]["id"]
    successor = ran("keys", "rotate", id_, "--overlap", "1h", key=token)
    assert (status(server, bot), status(server, successor)) == (200, 200)
    ran("keys", "revoke", id_, key=token)
    assert (status(server, bot), status(server, successor)) == (401, 200)
    assert "revoked" in ran("keys", "list").split(id_)[1].splitlines()[0]
    assert f"project   {project}" in ran("keys", "show", id_).replace("project     ", "project   ")

    ran("projects", "archive", project)
    assert status(server, successor) == 401
    ran("projects", "restore", project)
    ran("users", "disable", ann)
    assert (status(server, successor), status(server, token)) == (200, 401)
    entries = json.loads(ran("audit", "--limit", "3", "--json"))["audit"]
    assert [(each["action"], each["target"]) for each in entries] == [
        ("user.change", ann),
        ("project.change", project),
        ("project.change", project),
    ]
    said = "\n".join(server.lines)
    assert not [each for each in (token, bot, other, successor, "canary-hunter2") if each in said]
