"""What one project's prompts left in the engine serves no other project, whatever that one sends: its
requests compute as many tokens as if nobody had asked before, so their time tells nothing either."""

from pathlib import Path
from typing import Any

import httpx2

from tests.support.server import Server

PROMPT = "The hen and the fox went to the river, and the river was wide. " * 6
ASK: dict[str, Any] = {"model": "cantor", "prompt": PROMPT, "max_tokens": 1, "temperature": 0}


def made(client: httpx2.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(f"/admin/v1{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


def computed(server: Server, key: str, **more: Any) -> tuple[int, int]:
    """Prompt tokens that a request says it found, and those that the engine computed for it."""
    before = server.load().prefill_tokens
    with server.client(headers={"authorization": f"Bearer {key}"}) as client:
        usage = client.post("/v1/completions", json=ASK | more).json()["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    done = server.load().prefill_tokens - before
    assert found + done == usage["prompt_tokens"]
    return found, done


def test_no_salt_reaches_the_cached_prompt_of_another_project(keyed: tuple[Server, Path]) -> None:
    server, home = keyed
    server.wait_until_idle()
    operator = (home / "admin.key").read_text().strip()
    with server.client(headers={"authorization": f"Bearer {operator}"}) as admin:
        projects = [made(admin, "/projects", {"name": name})["id"] for name in ("ours", "theirs")]
        ours, also_ours, theirs = (
            made(admin, "/keys", {"kind": "service", "project": project})["secret"]
            for project in (projects[0], projects[0], projects[1])
        )
    whole = computed(server, ours)
    assert computed(server, ours, cache_salt="s") == whole and whole[0] == 0
    for salt in (None, "s"):
        assert computed(server, also_ours, cache_salt=salt)[0] > whole[1] / 2, "a project's own is found"
    first = projects[0]
    for salt in (None, "s", first, f"{first} s", f"{len(first)} {first} ", f"{len(first)} {first} s"):
        assert computed(server, theirs, cache_salt=salt) == whole, salt
