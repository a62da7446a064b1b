"""Chat templates that come with requests: refused unless the operator takes them, and then no caller keeps
the others from theirs."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from antiphon.rendering.template.request_template import HELPER_LIMITS
from tests.support.processes import descendants
from tests.support.server import Server
from tests.support.waiting import wait_until

ASK: Any = [{"role": "user", "content": "Who are you?"}]
SHORT = "{{ messages[0].content }}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ATTEMPTS = 5
"""How often another caller asks: on a machine that stands still more may end beside it."""
PAUSE_S = 0.2
FLOOD = HELPER_LIMITS.at_once + HELPER_LIMITS.queue_per_actor + 2
"""Templates of one caller: two more than it may have there at once."""

EVERYWHERE = {
    "/v1/chat/completions": {"model": "cantor", "max_tokens": 4, "messages": ASK},
    "/v1/tokenize": {"messages": ASK},
    "/v1/apply-template": {"messages": ASK},
}


def test_templates_of_callers_are_refused_unless_enabled(server: Server, keyed: tuple[Server, Path]) -> None:
    trusting, home = keyed
    with server.client() as careful, client_of(trusting, read_admin_key(home)) as other:
        for path, body in EVERYWHERE.items():
            asked = body | {"chat_template": SHORT}
            error = careful.post(path, json=asked).json()["error"]
            assert (error["code"], error["param"]) == ("unsupported_parameter", "chat_template"), path
            assert "ANTIPHON_REQUEST_TEMPLATES=true" in error["message"]
            assert careful.post(path, json=body | {"chat_template": None}).status_code == 200
            assert other.post(path, json=asked).status_code == 200
            smuggled = body | {"chat_template_kwargs": {"chat_template": SHORT}}
            for client in (careful, other):
                error = client.post(path, json=smuggled).json()["error"]
                assert error["param"] == "chat_template_kwargs.chat_template"
        foreign = careful.post("/empower/api/v1/chat/completions", json=asked | {"model": "cantor"})
        assert foreign.status_code == 400 and "chat_template" in foreign.text
    assert not descendants(server.process.pid, "antiphon.processes.sandbox")


def test_one_callers_templates_keep_nobody_else_from_theirs(keyed: tuple[Server, Path]) -> None:
    """The other waits for at most one of those that run, and the first is told how long its own take."""
    server, home = keyed
    with client_of(server, read_admin_key(home)) as admin:
        id_, mallory = make_key(admin)
        _, ada = make_key(admin)
        with flooding(server, admin, id_, mallory) as answers, client_of(server, ada) as client:
            wait_until(lambda: 429 in dict(answers), 60, "the caller has as many there as it may")
            refused = [float(wait or 0) for status, wait in tuple(answers) if status == 429]
            assert (
                min(refused)
                >= HELPER_LIMITS.queue_per_actor * HELPER_LIMITS.seconds_per_item / HELPER_LIMITS.at_once
            )
            for _ in range(ATTEMPTS):
                before = len(answers)
                answer = client.post("/v1/apply-template", json={"messages": ASK, "chat_template": SHORT})
                assert answer.json() == {"prompt": "Who are you?"}
                through = answers[before:].count((400, None))
                if through <= HELPER_LIMITS.at_once + 1:
                    break
            assert through <= HELPER_LIMITS.at_once + 1, "one turn of each place, and one that ends beside"
            running = lambda: descendants(server.process.pid, "antiphon.processes.sandbox")  # noqa: E731
            wait_until(running, what="the others go on")


Answers = list[tuple[int, str | None]]
"""Status and retry-after."""


@contextmanager
def flooding(server: Server, admin: httpx2.Client, id_: str, key: str) -> Iterator[Answers]:
    """Endless templates of one caller, always more than are let in, and what is answered; then the key's end,
    which ends them."""
    answers: Answers = []
    over = threading.Event()

    def ask() -> None:
        with client_of(server, key) as client:
            while not over.wait(PAUSE_S):
                answer = client.post("/v1/apply-template", json={"messages": ASK, "chat_template": ENDLESS})
                answers.append((answer.status_code, answer.headers.get("retry-after")))

    with ThreadPoolExecutor(FLOOD) as threads:
        flood = [threads.submit(ask) for _ in range(FLOOD)]
        try:
            yield answers
        finally:
            over.set()
            assert admin.delete(f"/admin/v1/keys/{id_}").is_success
    for each in flood:
        each.result()


def client_of(server: Server, key: str) -> httpx2.Client:
    return server.client(headers={"authorization": f"Bearer {key}"})


def read_admin_key(home: Path) -> str:
    return (home / "admin.key").read_text().strip()


def make_key(admin: httpx2.Client) -> tuple[str, str]:
    """The id of a new key, and its secret."""
    made = admin.post("/admin/v1/keys", json={"kind": "service", "project": "default"}).json()
    return made["id"], made["secret"]
