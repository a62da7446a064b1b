"""Requests and answers kept word by word: on a real server, where a project wants it and nowhere else."""

import json
import time

import pytest

from antiphon.ledger.recorder import EXPIRY_S
from tests.support.server import read_event, serving
from tests.support.waiting import wait_until

CANARY = "canary-5f3c"
RECORDED = "canary-9b21"
DOCUMENT = "canary-77d0"
"""The same of other tests, which share a home."""
PATIENCE = 50


def environment(home):
    return {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Two HTTP processes, and their home. Each test has a project of its own."""
    home = tmp_path_factory.mktemp("recording") / "home"
    with serving("--workers", "2", env=environment(home)) as server:
        yield server, home


def chat(text, **said):
    return {"model": "cantor", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | said


def read_admin_key(home):
    return {"authorization": "Bearer " + (home / "admin.key").read_text().strip()}


def read(path):
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the server has just removed it
        return b""


def test_a_project_that_wants_it_has_its_requests_and_answers(shared):
    server, home = shared
    with server.client() as client:  # one connection: the other process learns of the project later
        admin = read_admin_key(home)
        project = client.post("/admin/v1/projects", json={"name": "recorded"}, headers=admin).json()["id"]
        made = client.post("/admin/v1/keys", json={"kind": "service", "project": project}, headers=admin)
        own = {"authorization": f"Bearer {made.json()['secret']}"}
        records = f"/admin/v1/requests?project={project}"
        recording = f"/admin/v1/projects/{project}/recording"

        def listed():
            return client.get(records, headers=admin).json()["data"]

        def ask(text, **said):
            answer = client.post("/v1/chat/completions", json=chat(text, **said), headers=own)
            assert answer.status_code == 200
            return answer

        ask(f"{RECORDED} before")
        turned = client.put(recording, json={"days": 1, "redact": ["email"]}, headers=admin)
        assert turned.status_code == 200
        answered = ask(f"{RECORDED} to ann@example.org, please").json()["choices"][0]
        streamed = ask(f"{RECORDED} streamed", stream=True, n=2)
        text = ["", ""]
        for line in streamed.text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text[choice["index"]] += choice["delta"].get("content") or ""
        assert client.post("/v1/chat/completions", json=chat("x", n=0), headers=own).status_code == 400
        deadline = time.monotonic() + PATIENCE
        while len(listed()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        latest, first = listed()
        assert json.loads(first["request"])["messages"][0]["content"] == f"{RECORDED} to [email], please"
        (choice,) = json.loads(first["answer"])["choices"]
        assert choice["text"] == answered["message"]["content"]
        assert choice["finish_reason"] == answered["finish_reason"]
        assert [each["text"] for each in json.loads(latest["answer"])["choices"]] == text
        assert 86_000 < latest["expires_at"] - time.time() < 86_500

        def is_in_the_ledger():
            entries = client.get(f"/admin/v1/usage/entries?project={project}", headers=admin).json()["data"]
            return {latest["id"], first["id"]} < {entry["id"] for entry in entries}

        while not is_in_the_ledger() and time.monotonic() < deadline:  # each has a drain of its own
            time.sleep(0.05)
        assert is_in_the_ledger()
        client.delete(recording, headers=admin)
        ask(f"{RECORDED} after")
        database = [home / f"antiphon.db{suffix}" for suffix in ("", "-wal")]
        assert any(RECORDED.encode() in read(path) for path in database)
        erased = client.delete(records, headers=admin)
        assert erased.json()["removed"] == 2
        wait_until(
            lambda: not any(RECORDED.encode() in read(path) for path in database),
            2 * EXPIRY_S + PATIENCE,
            "the texts are overwritten; a log that others read is truncated by the next expiry",
        )
        lines = "\n".join(server.lines)
    assert RECORDED not in lines
    whole = b"".join(read(path) for path in home.rglob("*") if path.is_file())
    assert b"ann@example.org" not in whole
    assert f"{RECORDED} before".encode() not in whole
    assert f"{RECORDED} after".encode() not in whole


def test_erased_requests_come_back_from_no_process(shared):
    many = 12
    server, home = shared
    admin = read_admin_key(home)

    def asked(method, path, **said):
        with server.client() as client:  # a connection of its own, so that every process gets some
            return client.request(method, path, headers=admin, **said).json()

    def listed():
        return asked("GET", "/admin/v1/requests?project=default&limit=100")["data"]

    asked("PUT", "/admin/v1/projects/default/recording", json={"days": 1})
    endless = chat(f"{CANARY} running", stream=True) | {"max_tokens": 200, "ignore_eos": True}
    with (
        server.client() as slow,
        slow.stream("POST", "/v1/chat/completions", json=endless, headers=admin) as running,
    ):
        lines = running.iter_lines()
        read_event(lines)
        for _ in range(many):
            asked("POST", "/v1/chat/completions", json=chat(f"{CANARY} before"))
        erased = asked("DELETE", "/admin/v1/requests?project=default")["removed"]
        assert "data: [DONE]" in lines
    for number in range(many):
        asked("POST", "/v1/chat/completions", json=chat(f"after {number}"))
    deadline = time.monotonic() + PATIENCE
    while len(found := listed()) < many and time.monotonic() < deadline:
        time.sleep(0.05)
    assert CANARY not in json.dumps(found) and len(found) == many
    (entry,) = [
        each
        for each in asked("GET", "/admin/v1/audit?target=default")["data"]
        if each["action"] == "project.erase_requests"
    ]
    assert entry["detail"] == {"removed": erased, "responses": 0}


def test_removed_documents_leave_nothing_in_records_or_files(shared):
    server, home = shared
    tables, admin = "/v1/knowledge/tables", read_admin_key(home)
    with server.client() as client:  # one connection: the other process learns of the project later

        def ask(method, path, key=admin, **sent):
            answer = client.request(method, path, headers=key, **sent)
            assert answer.is_success, answer.text
            return answer.json()

        def look():
            return [json.loads(each["answer"]) for each in ask("GET", records)["data"]]

        def is_on_disk():
            return any(DOCUMENT.encode() in read(path) for path in home.rglob("*") if path.is_file())

        project = ask("POST", "/admin/v1/projects", json={"name": "removed"})["id"]
        new = {"kind": "service", "project": project}
        new["endpoints"] = ["/v1/knowledge/*", "/v1/chat/completions"]
        made = ask("POST", "/admin/v1/keys", json=new)
        own = {"authorization": f"Bearer {made['secret']}"}
        records = f"/admin/v1/requests?project={project}"
        ask("PUT", f"/admin/v1/projects/{project}/recording", json={"days": 1})
        ask("POST", tables, own, json={"name": "t", "embedding_model": None})
        file = {"file": ("leave.txt", f"{DOCUMENT} says that the boat is red".encode())}
        document = ask("POST", f"{tables}/t/documents", own, files=file, data={"wait": "true"})
        rag = {"table_id": "t", "search_query": "boat"}
        answer = ask("POST", "/v1/chat/completions", own, json=chat("Which boat?", rag_params=rag))
        (chunk,) = answer["references"]["chunks"]
        assert DOCUMENT in chunk["text"] and is_on_disk()
        deadline = time.monotonic() + PATIENCE
        while not look() and time.monotonic() < deadline:
            time.sleep(0.05)
        (kept,) = look()
        assert kept["references"] == {
            "table_id": "t",
            "search_query": "boat",
            "chunks": [{"document_id": document["id"], "chunk_id": chunk["chunk_id"]}],
        }
        ask("DELETE", f"{tables}/t/documents/{document['id']}", own)
        while is_on_disk() and time.monotonic() < deadline + PATIENCE:
            time.sleep(0.05)
        assert not is_on_disk(), "neither in the table's file nor in a record"
        assert look() == [kept], "what was recorded is removed by itself"
        assert ask("DELETE", records)["removed"] == 1 and look() == []
        assert ask("DELETE", f"/admin/v1/knowledge?project={project}") == {
            "object": "removed",
            "removed": 1,
        }
        assert ask("GET", tables, own)["data"] == []
        assert DOCUMENT not in "\n".join(server.lines)
