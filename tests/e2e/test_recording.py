"""Requests and answers kept word by word: on a real server, where a project wants it and nowhere else."""

import json
import time

import pytest

from tests.e2e.server import serving

CANARY = "canary-5f3c"
PATIENCE = 20


@pytest.fixture
def env(tmp_path):
    return {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home")}


def chat(text, **said):
    return {"model": "cantor", "messages": [{"role": "user", "content": text}], "max_tokens": 8} | said


def test_a_project_that_wants_it_has_its_requests_and_answers(env, tmp_path):
    home = tmp_path / "home"
    with serving(env=env) as server, server.client() as client:
        admin = {"authorization": "Bearer " + (home / "admin.key").read_text().strip()}

        def listed():
            return client.get("/admin/v1/requests?project=default", headers=admin).json()["data"]

        def ask(text, **said):
            answer = client.post("/v1/chat/completions", json=chat(text, **said), headers=admin)
            assert answer.status_code == 200
            return answer

        ask(f"{CANARY} before")
        turned = client.put(
            "/admin/v1/projects/default/recording", json={"days": 1, "redact": ["email"]}, headers=admin
        )
        assert turned.status_code == 200
        answered = ask(f"{CANARY} to ann@example.org, please").json()["choices"][0]
        streamed = ask(f"{CANARY} streamed", stream=True, n=2)
        text = ["", ""]
        for line in streamed.text.splitlines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    text[choice["index"]] += choice["delta"].get("content") or ""
        assert client.post("/v1/chat/completions", json=chat("x", n=0), headers=admin).status_code == 400
        deadline = time.monotonic() + PATIENCE
        while len(listed()) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        latest, first = listed()
        assert json.loads(first["request"])["messages"][0]["content"] == f"{CANARY} to [email], please"
        (choice,) = json.loads(first["answer"])["choices"]
        assert choice["text"] == answered["message"]["content"]
        assert choice["finish_reason"] == answered["finish_reason"]
        assert [each["text"] for each in json.loads(latest["answer"])["choices"]] == text
        assert 86_000 < latest["expires_at"] - time.time() < 86_500
        entries = client.get("/admin/v1/usage/entries", headers=admin).json()["data"]
        assert {latest["id"], first["id"]} < {entry["id"] for entry in entries}
        client.delete("/admin/v1/projects/default/recording", headers=admin)
        ask(f"{CANARY} after")
        lines = "\n".join(server.lines)
    assert CANARY not in lines
    whole = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert b"ann@example.org" not in whole
    assert f"{CANARY} before".encode() not in whole
    assert f"{CANARY} after".encode() not in whole
