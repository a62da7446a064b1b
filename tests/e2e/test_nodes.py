"""Several servers on one database: what one changes holds on the others within a second, and a database that
goes away takes nothing along."""

import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tests.e2e.bearers import CHAT, bearer
from tests.e2e.refused_starts import refused
from tests.e2e.vendor_model import VENDOR_MODEL
from tests.support.commands import run_command
from tests.support.databases import PASSWORD, running
from tests.support.held_vendor import serve_held_vendor
from tests.support.server import serving
from tests.support.stop_streams import CHAT as HELD
from tests.support.stop_streams import (
    is_refusing,
    list_cut,
    open_streams,
    read_readiness,
    write_settings,
)
from tests.support.stores import open_new_store
from tests.support.vendors.scripted_upstream import serve_upstream
from tests.support.waiting import PATIENCE, wait_until

PEPPER = "5e" * 32
LATEST_S = 10.0
"""Within which the other server must know; it is a fifth of a second at most where nothing else runs."""
KEYS = "/admin/v1/keys"


def environment(folder, store):
    folder.mkdir()
    return {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(folder),
        "ANTIPHON_STORE": store,
        "ANTIPHON_PEPPER": PEPPER,
    }


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A settings file with the vendor's model."""
    file = tmp_path_factory.mktemp("settings") / "antiphon.toml"
    with serve_upstream() as upstream:
        file.write_text(VENDOR_MODEL.format(url=upstream.url))
        yield file


@contextmanager
def both(settings, one, two):
    """Two servers, a client of each, and the operator's key."""
    first, second = (serving("--config", str(settings), env=env) for env in (one, two))
    with first as server, second as other, server.client() as here, other.client() as there:
        admin = bearer((Path(one["ANTIPHON_HOME"]) / "admin.key").read_text())
        yield here, there, admin, server, two, other


def status(client, key):
    return client.get("/v1/models", headers=bearer(key)).status_code


@pytest.fixture(scope="module")
def away():
    """A database of PostgreSQL that tests stop; it runs again when they end."""
    with running() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair(away, settings, tmp_path_factory):
    """Two servers of that database, each with a home of its own."""
    folder, store = tmp_path_factory.mktemp("pair"), away.database()
    with both(settings, *(environment(folder / name, store) for name in ("one", "two"))) as servers:
        yield servers


@pytest.fixture(scope="module")
def sqlite_pair(settings, tmp_path_factory):
    """Two servers of one home and one file, and the file. Tests move it; it is in its place again when they
    end."""
    folder = tmp_path_factory.mktemp("sqlite")
    open_new_store(folder / "shared.db").close()
    env = environment(folder / "home", f"sqlite:///{folder}/shared.db")
    with both(settings, env, env) as servers:
        yield *servers, folder / "shared.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def servers(request):
    """Two servers of either database."""
    if request.param == "postgresql":
        return request.getfixturevalue("pair")
    *servers, _ = request.getfixturevalue("sqlite_pair")
    return servers


def test_what_one_server_changes_holds_on_the_other(servers, tmp_path):
    here, there, admin, _, env, _ = servers
    made = here.post(KEYS, json={"kind": "service", "project": "default"}, headers=admin).json()
    wait_until(lambda: status(there, made["secret"]) == 200, LATEST_S, "made")
    path = f"{KEYS}/{made['id']}"
    assert here.patch(path, json={"models": ["none"]}, headers=admin).status_code == 200
    wait_until(lambda: there.get(path, headers=admin).json()["models"] == ["none"], LATEST_S, "changed")
    assert there.post(f"{path}/revoke", json={}, headers=admin).status_code == 200
    wait_until(lambda: status(here, made["secret"]) == 401, LATEST_S, "revoked")
    assert status(there, made["secret"]) == 401

    out = tmp_path / "another.key"
    assert run_command("store", "admin-key", "--out", str(out), cwd=tmp_path, env=env).returncode == 0
    wait_until(lambda: status(here, out.read_text()) == 200, LATEST_S, "made on the machine itself")


def test_two_servers_of_one_home_both_keep_the_limits(sqlite_pair):
    """Only one of them brings the ledger into the database; each counts for itself."""
    _, there, admin, _, _, second, _ = sqlite_pair
    made = there.post(KEYS, json={"kind": "service", "project": "default"}, headers=admin).json()
    asked = {"subject": "key", "target": made["id"], "measure": "requests", "amount": 2, "window": "day"}
    assert there.post("/admin/v1/limits", json=asked, headers=admin).status_code == 201
    key = bearer(made["secret"])
    statuses = [there.post("/v1/chat/completions", json=CHAT, headers=key).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    assert there.get("/health/ready").status_code == 200
    wait_until(lambda: second.records("ledger_drained_elsewhere"), what="the log says it")
    assert len(second.records("ledger_drained_elsewhere")) == 1
    rows = f"/admin/v1/usage/entries?key={made['id']}"
    wait_until(lambda: len(there.get(rows, headers=admin).json()["data"]) == 2, what="both rows")


def test_an_upgrade_starts_the_new_server_before_it_stops_the_old_one(sqlite_pair, tmp_path):
    """As docs/operations.md tells it, for servers of one home: no stream of the old one is cut, and both
    write into one ledger. The old one is a third server here."""
    client, _, admin, new, env, *_ = sqlite_pair
    made = client.post(KEYS, json={"kind": "service", "project": "default"}, headers=admin).json()
    key = bearer(made["secret"])
    with serve_held_vendor() as vendor:
        (tmp_path / "antiphon.toml").write_text(write_settings(vendor))
        with serving(env=env, cwd=tmp_path) as old, open_streams(old.client(headers=key), 4) as streams:
            assert read_readiness(new) == read_readiness(old) == (200, "ok")
            old.process.terminate()
            wait_until(lambda: is_refusing(old), what="the old one takes no more")
            vendor.finish.set()
            answer = client.post("/v1/chat/completions", json=HELD | {"model": "cantor"}, headers=key)
            assert answer.text.count("[DONE]") == 1
            assert old.process.wait(PATIENCE) == 0
    assert list_cut(streams) == []
    rows = f"/admin/v1/usage/entries?key={made['id']}"
    wait_until(
        lambda: len(client.get(rows, headers=admin).json()["data"]) == 5, what="one ledger has all of them"
    )


def test_a_node_with_another_pepper_does_not_start(pair, tmp_path):
    *_, env, _ = pair
    other = environment(tmp_path / "three", env["ANTIPHON_STORE"]) | {"ANTIPHON_PEPPER": "ab" * 32}
    assert "the keys of this database were made with another pepper" in refused(env=other)


def test_a_restarted_process_waits_for_an_absent_database(away, pair):
    client, _, admin, server, *_ = pair
    assert client.get(KEYS, headers=admin).status_code == 200
    before = len(server.records("store_away"))
    away.stop()
    server.children("antiphon.assembly")[0].kill()
    wait_until(
        lambda: len(server.records("store_away")) > before, what="another process asks for the database"
    )
    away.start()

    def answers():
        with suppress(httpx2.TransportError):
            return client.get(KEYS, headers=admin).status_code == 200

    wait_until(answers, what="the server answers again")
    assert len(server.records("store_away")) == before + 1


def test_nothing_is_lost_while_the_database_is_away(away, pair):
    here, there, admin, first, *_ = pair
    made = here.post(KEYS, json={"kind": "service", "project": "default"}, headers=admin).json()
    key = made["secret"]
    wait_until(lambda: status(there, key) == 200, LATEST_S, "made")
    lost, resumed = (len(first.records(event)) for event in ("feed_lost", "feed_resumed"))
    away.stop()
    for client in (here, there):
        said = client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
        assert said.status_code == 200, said.text
        for change in (f"{KEYS}/{made['id']}/revoke", f"{KEYS}/{made['id']}/rotate"):
            failed = client.post(change, json={}, headers=admin)
            assert failed.status_code == 503
            assert failed.json()["error"]["code"] == "store_unavailable"
            for secret in (PASSWORD, str(away.folder), "psycopg", "SELECT", key):
                assert secret not in failed.text
    assert status(here, key) == status(there, key) == 200
    wait_until(lambda: len(first.records("feed_lost")) > lost, LATEST_S, "the log says it")
    away.start()
    began = time.monotonic()
    assert here.post(f"{KEYS}/{made['id']}/revoke", json={}, headers=admin).status_code == 200
    wait_until(lambda: status(there, key) == 401, LATEST_S, "revoked")
    assert status(here, key) == 401
    wait_until(lambda: len(first.records("feed_resumed")) > resumed, LATEST_S, "the log says it")
    sys.stdout.write(f"all works again after {time.monotonic() - began:.2f} s\n")
    assert PASSWORD not in "\n".join(first.lines)


@pytest.mark.parametrize("replaced", [pytest.param(False, marks=pytest.mark.soak), True])
def test_removing_or_replacing_the_open_database_loses_nothing(sqlite_pair, replaced):
    _, _, admin, server, *_, path = sqlite_pair
    aside = path.with_name("aside.db")
    with server.client() as client:

        def answered():
            return client.get("/admin/v1/usage", headers=admin).json()["total"]["requests"]

        requests = answered()
        before = {event: len(server.records(event)) for event in ("feed_lost", "store_back", "store_moved")}

        def logged(event):
            return lambda: len(server.records(event)) > before[event]

        new = {"kind": "service", "project": "default"}
        key = bearer(client.post(KEYS, json=new, headers=admin).json()["secret"])
        path.rename(aside)
        if replaced:
            path.write_bytes(b"")
        failed = client.post(KEYS, json=new, headers=admin)
        assert (failed.status_code, failed.json()["error"]["code"]) == (503, "store_unavailable")
        assert client.post("/v1/chat/completions", json=CHAT, headers=key).status_code == 200

        def ledger(state):
            return lambda: client.get("/health/ready").json().get("ledger") == state

        wait_until(ledger("waiting"), LATEST_S, "the ledger waits")
        wait_until(logged("feed_lost"), LATEST_S, "the feed is lost")
        assert path.exists() == replaced
        assert not path.exists() or path.stat().st_size == 0
        aside.rename(path)
        wait_until(logged("store_back"), LATEST_S, "the file is back")
        wait_until(lambda: not ledger("waiting")(), LATEST_S, "the ledger takes rows")
        assert client.post(KEYS, json=new, headers=admin).status_code == 201
        wait_until(lambda: answered() > requests, what="the row")
        assert answered() == requests + 1
        assert len(server.records("store_moved")) == before["store_moved"] + 1
