"""Backup, restore and upgrade as docs/backup.md tells them: a new server goes on with everything."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.databases import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.support.databases import Cluster
from tests.support.knowledge_tables import fill_table
from tests.support.server import Server, serving
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

SETTINGS = """
[providers.vendor]
kind = "openai"
base_url = "{url}"
private = true

[[models]]
name = "far"
routes = [{{ provider = "vendor", model = "fake" }}]
"""
"""Of a server without an engine: the start of one costs a CPU second."""

CHAT = {"model": "far", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
FIRST = Path(__file__).parents[1] / "fixtures" / "store" / "0001.db"


def run(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`antiphon store` with a home."""
    return run_command("store", *words, cwd=home.parent, env={"ANTIPHON_HOME": str(home)} | more)


def set_up(home: Path, store: str | None) -> dict[str, str]:
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_KNOWLEDGE_STORAGE": "files"}
    return env | ({"ANTIPHON_STORE": store} if store else {})


def back_up(home: Path, backup: Path, store: str | None) -> None:
    done = run(home, "backup", "--dump", str(backup), **({"ANTIPHON_STORE": store} if store else {}))
    assert (done.returncode, done.stderr) == (0, "")
    assert (backup / "antiphon.dump").exists() == (store is not None)


def restore(other: Path, backup: Path, store: str | None) -> None:
    done = run(other, "restore", str(backup), **({"ANTIPHON_STORE": store} if store else {}))
    assert done.returncode == 0, done.stderr
    assert (f"pg_restore from {backup}/antiphon.dump" in done.stderr) == (store is not None)


def fill_database(cluster: Cluster, backup: Path) -> str:
    """Fills a new database with the dump of a backup, as the page says. Returns its address."""
    other = cluster.database()
    program, dump = str(cluster.programs / "pg_restore"), str(backup / "antiphon.dump")
    command = [program, "--exit-on-error", "--no-owner", f"--dbname={other}", dump]
    subprocess.run(command, check=True)
    return other


def read_metrics(server: Server, home: Path) -> dict[str, float]:
    with server.client(headers=read_admin(home)) as client:
        lines = client.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}


def ask(server: Server, key: dict[str, str]) -> tuple[int, list[str]]:
    """The status of a chat, and the names of the knowledge tables."""
    with server.client(headers=key) as client:
        status = client.post("/v1/chat/completions", json=CHAT).status_code
        tables = client.get("/v1/knowledge/tables").json()["data"]
    return status, [table["name"] for table in tables]


def count_requests(server: Server, home: Path) -> int:
    """The requests in the ledger."""
    with server.client(headers=read_admin(home)) as client:
        requests: int = client.get("/admin/v1/usage").json()["total"]["requests"]
    return requests


def read_admin(home: Path) -> dict[str, str]:
    return {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}


@pytest.fixture
def vendor() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.mark.parametrize("backend", ["sqlite", pytest.param("postgresql", marks=pytest.mark.deploy)])
async def test_a_restored_server_has_keys_usage_and_tables(
    backend: str, tmp_path: Path, vendor: ScriptedUpstream, request: pytest.FixtureRequest
) -> None:
    cluster: Cluster | None = request.getfixturevalue("cluster") if backend == "postgresql" else None
    store = cluster.database() if cluster else None
    home, other, backup = tmp_path / "home", tmp_path / "other", tmp_path / "backup"
    await fill_table(home / "knowledge")
    (home / "antiphon.toml").write_text(SETTINGS.format(url=vendor.url))
    with serving(env=set_up(home, store)) as server:
        with server.client(headers=read_admin(home)) as client:
            asked = {"kind": "service", "project": "default"}
            secret = client.post("/admin/v1/keys", json=asked).json()["secret"]
        key = {"authorization": f"Bearer {secret}"}
        before = ask(server, key)
        wait_until(lambda: count_requests(server, home) == 1, what="the ledger has it")
        metrics = read_metrics(server, home)
        assert metrics["antiphon_backup_time_seconds"] == 0
        assert metrics['antiphon_store{state="followed"}'] == 1
        assert metrics['antiphon_project_requests_total{project="default"}'] == 1
        assert {'antiphon_disk_bytes{directory="spool"}', "antiphon_store_failures_total"} <= {*metrics}
        back_up(home, backup, store)
        begun = metrics["antiphon_start_time_seconds"]
        assert read_metrics(server, home)["antiphon_backup_time_seconds"] > begun
        copied = fill_database(cluster, backup) if cluster else None
        restore(other, backup, copied)
    assert before == (200, ["sea"])
    with serving(env=set_up(other, copied)) as server:
        assert ask(server, key) == before
        wait_until(lambda: count_requests(server, other) == 2, what="the ledger has both")


def test_a_backup_of_an_earlier_version_is_upgraded(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    shutil.copy(FIRST, home / "antiphon.db")
    assert run(home, "backup", str(tmp_path / "backup")).returncode == 0
    restored = run(other, "restore", str(tmp_path / "backup"))
    assert restored.returncode == 0 and "pending:" in restored.stdout
    assert "antiphon store upgrade" in restored.stderr
    assert run(other, "upgrade").returncode == 0
    assert run(other, "status").returncode == 0
    again = run(other, "restore", str(tmp_path / "backup"))
    assert again.returncode == 1 and "antiphon.db exists already" in again.stderr


def test_a_backup_of_a_later_version_stays_outside(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(FIRST, home / "antiphon.db")
    backup = tmp_path / "backup"
    assert run(home, "backup", str(backup)).returncode == 0
    manifest = backup / "manifest.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"revision": "9999", "version": "9.9.9"})
    )
    refused = run(tmp_path / "other", "restore", str(backup))
    assert refused.returncode == 1 and "later version of Antiphon (9.9.9)" in refused.stderr
    assert not (tmp_path / "other" / "antiphon.db").exists()


def back_up_with_settings(tmp_path: Path, data: Path) -> dict[str, str]:
    """Backs up a home whose settings file has everything else in `data`. Returns the variables that name the
    same places in `data2`."""
    home, moved = tmp_path / "home", data.with_name("data2")
    home.mkdir()
    (home / "antiphon.toml").write_text(
        f'[keys]\nenabled = true\nstore = "sqlite:///{data}/a.db"\n[ledger]\nspool = "{data}/spool"\n'
        f'[knowledge]\ndirectory = "{data}/tables"\n[lora]\nregistry = "{data}/adapters"\n'
    )
    for name in ("spool/one", "tables/p/two", "adapters/three.gguf"):
        (data / name).parent.mkdir(parents=True)
        (data / name).touch()
    shutil.copy(FIRST, data / "a.db")
    assert run(home, "upgrade").returncode == 0
    assert run(home, "backup", str(tmp_path / "backup")).returncode == 0
    return {
        "ANTIPHON_STORE": f"sqlite:///{moved}/a.db",
        "ANTIPHON_SPOOL": f"{moved}/spool",
        "ANTIPHON_KNOWLEDGE_DIRECTORY": f"{moved}/tables",
        "ANTIPHON_LORA_REGISTRY": f"{moved}/adapters",
    }


def list_restored(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


PLACED = ["a.db", "adapters/three.gguf", "spool/one", "tables/p/two"]


def test_files_go_where_the_restored_settings_say(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    back_up_with_settings(tmp_path, data)
    shutil.rmtree(data)
    restored = run(other, "restore", str(tmp_path / "backup"))
    assert restored.returncode == 0, restored.stderr
    assert (list_restored(data), list_restored(other)) == (PLACED, ["antiphon.toml"])
    assert run(other, "status").returncode == 0, (
        "the next command finds the database by the restored settings"
    )


def test_a_restore_beside_the_old_server_is_refused(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    variables = back_up_with_settings(tmp_path, data)
    refused = run(other, "restore", str(tmp_path / "backup"))
    assert refused.returncode == 1 and f"{data}" in refused.stderr and "exists already" in refused.stderr
    assert list_restored(other) == [], "nothing was restored"
    restored = run(other, "restore", str(tmp_path / "backup"), **variables)
    assert restored.returncode == 0, restored.stderr
    assert list_restored(tmp_path / "data2") == PLACED


def test_a_given_settings_file_places_the_backup(tmp_path: Path) -> None:
    data, other, given = tmp_path / "data", tmp_path / "other", tmp_path / "given.toml"
    back_up_with_settings(tmp_path, data)
    text = (tmp_path / "home" / "antiphon.toml").read_text()
    given.write_text(text.replace(str(data), str(tmp_path / "given")))
    restored = run(other, "restore", str(tmp_path / "backup"), "--config", str(given))
    assert restored.returncode == 0, restored.stderr
    assert (list_restored(tmp_path / "given"), list_restored(other)) == (PLACED, ["antiphon.toml"])


def test_a_restore_without_a_database_makes_none(tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    (home / "pepper").write_text("0" * 64)
    assert run(home, "backup", str(tmp_path / "backup")).returncode == 0
    restored = run(other, "restore", str(tmp_path / "backup"))
    assert restored.returncode == 0 and "pg_restore" in restored.stderr
    assert "upgrade" not in restored.stderr and "revision" not in restored.stdout
    assert not (other / "antiphon.db").exists()


def test_restored_secrets_are_private_whatever_the_backup_allows(tmp_path: Path) -> None:
    home, other, backup = tmp_path / "home", tmp_path / "other", tmp_path / "backup"
    for name in ("pepper", "admin.key", "antiphon.toml", "spool/one", "knowledge/p/x", "adapters/a.gguf"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    shutil.copy(FIRST, home / "antiphon.db")
    assert run(home, "backup", str(backup)).returncode == 0
    for path in backup.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o666)  # as a copy to a disk without modes leaves them
    assert run(other, "restore", str(backup)).returncode == 0
    modes = {str(path.relative_to(other)): path.stat().st_mode & 0o777 for path in other.rglob("*")}
    assert modes.pop("adapters/a.gguf") == 0o644
    files = {"pepper", "admin.key", "antiphon.toml", "antiphon.db", "spool/one", "knowledge/p/x"}
    assert files <= modes.keys() and all(modes[name] == 0o600 for name in files)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a complete backup"),
        (b"\xff", "is not a complete backup"),
        (b"[" * 100_000, "is not a complete backup"),
        (b"[]", "is not a complete backup"),
        (b'{"format": 1, "version": "1.0.0", "has_database": true, "revision": "0001"}', "`files`"),
        (
            b'{"format": 1, "version": "1.0.0", "has_database": true, "revision": "0001", "files": []}',
            "`$.files`",
        ),
        (
            b'{"format": 1, "version": 1, "has_database": true, "revision": "0001", "files": {}}',
            "`$.version`",
        ),
        (b'{"format": "1", "version": "1.0.0"}', "`$.format`"),
        (
            b'{"format": 1, "version": "1.0.0", "has_database": false, "revision": {}, "files": {}}',
            "`$.revision`",
        ),
        (
            b'{"format": 1, "version": "1", "has_database": false, "revision": null, "files": {"a": 1}}',
            "`$.files",
        ),
        (
            b'{"format": 2, "version": "9.0.0", "records": []}',
            "another version of Antiphon (9.0.0), in format 2",
        ),
        (
            b'{"format": 1, "version": "1", "has_database": false, "revision": null, "files": {"": ""}}',
            "complete",
        ),
    ],
)
def test_a_manifest_that_cannot_be_read_is_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "manifest.json").write_bytes(content)
    done = run(tmp_path / "home", "restore", str(tmp_path / "backup"))
    (line,) = done.stderr.strip().splitlines()
    assert (done.returncode, done.stdout) == (1, "") and said in line
    assert not (tmp_path / "home").exists()
