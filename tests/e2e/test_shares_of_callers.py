"""A caller that fills every place with the longest answers keeps no other caller waiting for one to end."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.support.server import Server
from tests.support.waiting import wait_until

PLACES = 16
LONGEST = {"model": "cantor", "prompt": "Hi", "max_tokens": 2000, "ignore_eos": True, "n": 18, "stream": True}
"""Takes many seconds, where a caller gives a place up after one."""
SHORT = {"model": "cantor", "prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


def key_of_a_project(admin: httpx2.Client, name: str) -> dict[str, str]:
    project = admin.post("/admin/v1/projects", json={"name": name}).json()["id"]
    answer = admin.post("/admin/v1/keys", json={"kind": "service", "project": project})
    assert answer.is_success, answer.text
    return {"authorization": f"Bearer {answer.json()['secret']}"}


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_another_caller_waits_for_no_answer_to_end(keyed: tuple[Server, Path], times: int) -> None:
    server, home = keyed
    server.wait_until_idle()
    operator = (home / "admin.key").read_text().strip()
    with server.client(headers={"authorization": f"Bearer {operator}"}) as admin:
        first, other = (key_of_a_project(admin, name) for name in ("first caller", "other caller"))
    is_enough = threading.Event()

    def flood() -> None:
        """Reads the long answers until it is told to leave."""
        with (
            server.client(headers=first) as client,
            client.stream("POST", "/v1/completions", json=LONGEST) as answer,
        ):
            for _ in answer.iter_bytes():
                if is_enough.is_set():
                    return
        raise AssertionError("the long answers have ended")

    with ThreadPoolExecutor() as threads, server.client(headers=other) as client:
        before = server.load().preemptions
        flooding = threads.submit(flood)
        wait_until(lambda: server.load().running == PLACES, what="every place is taken")
        for _ in range(times):
            answer = client.post("/v1/completions", json=SHORT)
            assert answer.status_code == 200, answer.text
            load = server.load()
            assert load.running + load.queued == LONGEST["n"], "none of the long ones has ended"
        assert load.preemptions > before
        is_enough.set()
        flooding.result()
