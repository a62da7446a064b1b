"""A server with keys as its operator starts it: the first key, restarts, and what it refuses to start for."""

import re
import shutil
import sqlite3
import stat

import psutil
import pytest

from tests.e2e.bearers import bearer
from tests.e2e.refused_starts import prepare, refused
from tests.support.commands import run_command
from tests.support.server import serving

NO_ENGINE = '[[models]]\nname = "cantor"\npath = "cantor"\nload = "request"\n'
"""Settings of a server that nobody asks for an answer: it starts no engine."""


@pytest.fixture
def env(tmp_path):
    """A home of nothing. The address of the database is the default; with it the server makes its own."""
    home = tmp_path / "home"
    store = f"sqlite:///{home}/antiphon.db"
    return {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_STORE": store}


def test_the_operators_key_makes_others_and_all_outlive_a_kill(env, tmp_path):
    """The second start also finishes what a first start leaves that is killed before its last step."""
    home = tmp_path / "home"
    (tmp_path / "antiphon.toml").write_text(NO_ENGINE)
    with serving(env=env, cwd=tmp_path) as server, server.client() as client:
        admin = (home / "admin.key").read_text()
        made = client.post(
            "/admin/v1/keys", json={"kind": "service", "project": "default"}, headers=bearer(admin)
        )
        key = made.json()["secret"]
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200
        assert client.get("/v1/models").status_code == 401
        tree = [server.supervisor, *server.supervisor.children(recursive=True)]
        server.supervisor.kill()
        server.process.wait(50)
        assert psutil.wait_procs(tree, 50)[1] == []  # the database's files change until the last has ended
        said = "\n".join(server.lines)
    assert str(home / "admin.key") in said
    assert admin.strip() not in said
    assert key not in said
    for file in ("admin.key", "pepper"):
        assert stat.S_IMODE((home / file).stat().st_mode) == 0o600
    kept = b"".join(path.read_bytes() for path in home.glob("antiphon.db*"))
    assert key.encode() not in kept
    ended = run_command("store", "admin-key", "--out", str(tmp_path / "new.key"), cwd=tmp_path, env=env)
    assert ended.returncode == 0, ended.stderr
    another = (tmp_path / "new.key").read_text()
    (home / "admin.key").rename(home / "admin.key.new")  # as if the first start had been cut before its end
    with serving("--host", "0.0.0.0", env=env, cwd=tmp_path) as server, server.client() as client:
        assert re.fullmatch(r"http://0\.0\.0\.0:\d+", server.url), "keys allow that"
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200
        for operator in (admin, another):
            assert client.get("/admin/v1/audit", headers=bearer(operator)).status_code == 200
        assert (home / "admin.key").read_text() == admin


def test_what_does_not_fit_together_is_refused_at_start(env, tmp_path):
    home = tmp_path / "home"
    prepare(env)
    pepper = (home / "pepper").read_text()
    (home / "pepper").unlink()
    assert "their pepper is missing" in refused(env=env)
    (home / "pepper").write_text("ab" * 32)
    assert "were made with another pepper" in refused(env=env)
    (home / "pepper").write_text(pepper)
    (home / "pepper").write_text("")
    assert f"{home / 'pepper'} contains no pepper" in refused(env=env)
    with sqlite3.connect(home / "antiphon.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "was made by a later version of Antiphon" in refused(env=env)
    assert "no address of a database" in refused(env=env | {"ANTIPHON_STORE": "nonsense"})
    assert "is a database in memory" in refused(env=env | {"ANTIPHON_STORE": "sqlite://"})
    nowhere = env | {"ANTIPHON_HOME": "/dev/null/home"}
    assert "/dev/null/home cannot be written" in refused(env=nowhere)
    shutil.rmtree(home)
    home.mkdir()
    (home / "admin.key").write_text("somebody's\n")
    assert "exists already" in refused(env=env)


def test_a_lost_operators_key_is_made_anew_on_the_machine_itself(env, tmp_path):
    home = tmp_path / "home"
    prepare(env)
    old = (home / "admin.key").read_text()
    made = run_command("store", "admin-key", "--out", str(tmp_path / "new.key"), cwd=tmp_path, env=env)
    assert made.returncode == 0, made.stderr
    new = (tmp_path / "new.key").read_text()
    assert new.strip() not in made.stdout + made.stderr
    with sqlite3.connect(home / "antiphon.db") as connection:
        makers = connection.execute("SELECT actor FROM audit WHERE action = 'key.create' ORDER BY id")
        assert [actor for (actor,) in makers] == ["antiphon serve", "antiphon store admin-key"]
        connection.execute("UPDATE keys SET revoked = 1")
    prepare(env)  # it has none that is valid: one more is made
    newest = (home / "admin.key").read_text().strip()
    assert len({old.strip(), new.strip(), newest}) == 3
    with sqlite3.connect(home / "antiphon.db") as connection:
        valid = connection.execute("SELECT prefix FROM keys WHERE revoked IS NULL OR revoked = 0")
        assert [newest.startswith(prefix) for (prefix,) in valid] == [True]


def test_the_command_says_where_the_database_stands(env, tmp_path):
    def ran(*words):
        return run_command("store", *words, cwd=tmp_path, env=env)

    before = ran("status")
    assert (before.returncode, "0001" in before.stdout) == (1, True)
    assert ran("upgrade", "--dry-run").returncode == 0
    assert "it is empty" in ran("status").stdout
    assert ran("upgrade").returncode == 0
    assert ran("status").returncode == 0
