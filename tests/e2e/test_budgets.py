"""Budgets on a real server: a stream that runs away is stopped while it runs, and its engine with it.
Warnings come once each, signed, also over a crash."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.server import Server, serving
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver, receiving

TEXT: dict[str, Any] = {"model": "cantor", "prompt": "Once upon a time", "ignore_eos": True}
CHAT: dict[str, Any] = {
    "model": "cantor",
    "messages": [{"role": "user", "content": "Tell me a long story."}],
    "ignore_eos": True,
}
ROOM = 40
"""Output tokens of the budget; cantor's context has room for many more."""


SECRET = "a-secret-of-these-tests-only"
APART = httpx2.Limits(max_keepalive_connections=0)
"""Each request on a connection of its own: some process takes it."""
REQUESTS = 20
"""Requests a month, of the project whose warnings are read."""
NOTE = "ask Ada"
"""Of that budget alone."""
SOON = 30.0

pytestmark = pytest.mark.timeout(480)


@dataclass(frozen=True)
class Restarted:
    """A server on the home of another that crashed: it had two HTTP processes, and its project had used more
    than half of a budget."""

    server: Server
    home: Path
    receiver: WebhookReceiver
    key: str
    """Of that project."""


class Place:
    """A server with keys, its operator, and a key of its own with a budget."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.operator = server.client(headers=_read_operator(home))
        made = self.operator.post("/admin/v1/keys", json={"kind": "service", "project": "default"}).json()
        self.key: str = made["id"]
        self.client = server.client(headers=_bearer(made["secret"]))

    def limit(self, measure: str, amount: int, window: str | None = "day") -> None:
        wanted = {
            "subject": "key",
            "target": self.key,
            "measure": measure,
            "amount": amount,
            "window": window,
        }
        made = self.operator.post("/admin/v1/limits", json=wanted)
        assert made.status_code == 201, made.text

    def entry(self, request: str) -> dict[str, Any]:
        """The only row of a request."""
        asked = {"request_id": request}
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = self.operator.get("/admin/v1/usage/entries", params=asked).json()["data"]
            return bool(found)

        wait_until(there, what="the row")
        assert len(found) == 1
        return found[0]


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def _read_operator(home: Path) -> dict[str, str]:
    return _bearer((home / "admin.key").read_text().strip())


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    home = tmp_path_factory.mktemp("budgets") / "home"
    with receiving() as receiver:
        env = {
            "ANTIPHON_KEYS": "true",
            "ANTIPHON_HOME": str(home),
            "ANTIPHON_LIMITS_WARN_AT": "0.5,0.8,1",
            "ANTIPHON_LIMITS_WEBHOOK": receiver.url,
            "ANTIPHON_LIMITS_WEBHOOK_SECRET": SECRET,
            "ANTIPHON_LIMITS_WEBHOOK_PRIVATE": "true",
        }
        with serving("--workers", "2", env=env) as server:
            key = add_budget(server, home)
            assert generate(server, key, 12) == {200: 12}
            wait_until(lambda: list_warnings(receiver) == [(0.5, "10", "20")], SOON, "the first warning")
            children = server.supervisor.children(recursive=True)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(SOON)
            assert psutil.wait_procs(children, SOON)[1] == []
        with serving(env=env) as server:
            yield Restarted(server, home, receiver, key)


def add_budget(server: Server, home: Path) -> str:
    with server.client(headers=_read_operator(home)) as client:
        project = client.post("/admin/v1/projects", json={"name": "Thrifty"}).json()["id"]
        made = client.post("/admin/v1/keys", json={"kind": "service", "project": project}).json()
        budget: dict[str, Any] = {"subject": "project", "target": project, "measure": "requests"}
        budget |= {"amount": REQUESTS, "window": "month", "note": NOTE}
        assert client.post("/admin/v1/limits", json=budget).status_code == 201
    key: str = made["secret"]
    return key


def generate(server: Server, key: str, times: int) -> Counter[int]:
    """How often which status was the answer."""
    body = {"model": "cantor", "prompt": "Hi", "max_tokens": 1}
    with server.client(headers=_bearer(key), limits=APART) as client:
        return Counter(client.post("/v1/completions", json=body).status_code for _ in range(times))


def list_messages(receiver: WebhookReceiver) -> list[tuple[dict[str, str], bytes, dict[str, Any]]]:
    """Headers, body and message of what the receiver got about the project's budget."""
    parsed = [(headers, body, json.loads(body)) for headers, body in list(receiver.arrived)]
    return [each for each in parsed if each[2]["data"]["note"] == NOTE]


def list_warnings(receiver: WebhookReceiver) -> list[tuple[float, str, str]]:
    messages = [message["data"] for _, _, message in list_messages(receiver)]
    return [(data["share"], data["used"], data["amount"]) for data in messages]


@pytest.fixture
def place(restarted: Restarted) -> Iterator[Place]:
    made = Place(restarted.server, restarted.home)
    yield made
    made.operator.close()
    made.client.close()


def data(reply: httpx2.Response) -> list[Any]:
    lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def test_a_stream_over_its_budget_is_stopped_with_its_engine(place: Place) -> None:
    place.limit("output_tokens", ROOM)
    reply = place.client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert reply.status_code == 200, reply.text
    *chunks, last = data(reply)
    assert last["error"]["code"] == "insufficient_quota"
    assert f"{ROOM} output tokens per day" in last["error"]["message"]
    assert chunks and not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
    wait_until(lambda: place.server.load().running == 0, what="the engine's sequence ends")
    entry = place.entry(reply.headers["x-request-id"])
    assert entry["status"] == "insufficient_quota" and ROOM <= entry["output_tokens"] <= ROOM + 1
    again = place.client.post("/v1/chat/completions", json=CHAT)
    assert (again.status_code, again.headers["x-should-retry"]) == (429, "false")
    assert 1 <= int(again.headers["retry-after"]) <= 86_400


def test_used_and_remaining_amounts_agree_with_the_ledger(place: Place) -> None:
    place.limit("requests", 3, "minute")
    place.limit("tokens", 1_000, "minute")
    left = 1_000
    for number in range(3):
        reply = place.client.post("/v1/completions", json=TEXT | {"max_tokens": 5})
        left -= reply.json()["usage"]["prompt_tokens"] + 5
        assert reply.headers["x-ratelimit-remaining-requests"] == str(2 - number)
        assert int(reply.headers["x-ratelimit-remaining-tokens"]) == left
        entry = place.entry(reply.headers["x-request-id"])
        usage = reply.json()["usage"]
        assert (entry["status"], entry["source"], entry["engine"]) == ("ok", "engine", "llama")
        assert (entry["prompt_tokens"], entry["output_tokens"]) == (usage["prompt_tokens"], 5)
        assert entry["queue_ms"] is not None and entry["ttft_ms"] <= entry["total_ms"]
    refused = place.client.post("/v1/completions", json=TEXT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    asked = {"request_id": refused.headers["x-request-id"]}
    assert place.operator.get("/admin/v1/usage/entries", params=asked).json()["data"] == []


def test_a_refusal_names_the_project_or_the_key_with_its_id(place: Place) -> None:
    def make(noun: str, **values: object) -> dict[str, Any]:
        made = place.operator.post(f"/admin/v1/{noun}", json=values)
        assert made.status_code == 201, made.text
        return dict(made.json())

    def refuse(secret: str) -> str:
        reply = place.client.post("/v1/completions", json=TEXT, headers=_bearer(secret))
        assert reply.status_code in (400, 403, 429)
        return str(reply.json()["error"]["message"])

    project, other = (make("projects", name=name)["id"] for name in ("Research", "Sales"))
    key = make("keys", kind="service", project=project)
    limits = [
        make("limits", subject="project", target=project, measure=measure, amount=0, window="day")["id"]
        for measure in ("requests", "cost")
    ]
    assert f"for the project Research ({project}); the operator adds a price" in refuse(key["secret"])
    place.operator.delete(f"/admin/v1/limits/{limits[1]}")
    assert f"0 requests per day for the project Research ({project}): ask for less" in refuse(key["secret"])
    place.operator.delete(f"/admin/v1/limits/{limits[0]}")
    make("limits", subject="key", target=key["id"], measure="requests", amount=0, window="minute")
    assert f"for the key {key['prefix']} ({key['id']}): ask for less" in refuse(key["secret"])
    user = make("users", name="Ann")["id"]
    for each in (project, other):
        path = f"/admin/v1/projects/{each}/members/{user}"
        assert place.operator.put(path, json={"role": "member"}).status_code == 200
    token = make("keys", kind="access_token", user=user)["secret"]
    assert f"several projects: Research ({project}), Sales ({other}); name the id" in refuse(token)


def test_a_service_key_that_acts_for_users_counts_for_its_project_alone(place: Place) -> None:
    """Whatever it uses, the users have their own limits to themselves, also limits that are set later and
    begin with what the ledger knows."""
    operator = place.operator

    def make(noun: str, **said: object) -> dict[str, Any]:
        made = operator.post(f"/admin/v1/{noun}", json=said)
        assert made.status_code == 201, made.text
        return dict(made.json())

    def limit_requests(subject: str, target: str, amount: int) -> None:
        make("limits", subject=subject, target=target, measure="requests", amount=amount, window="day")

    def ask(secret: str, **headers: str) -> httpx2.Response:
        said = TEXT | {"max_tokens": 1}
        return place.client.post("/v1/completions", json=said, headers=_bearer(secret) | headers)

    other = make("projects", name="Other")["id"]
    users = [make("users", name=name)["id"] for name in ("Ann", "Bob")]
    for user in users:
        for project in ("default", other):
            member = operator.put(f"/admin/v1/projects/{project}/members/{user}", json={"role": "member"})
            assert member.status_code == 200
    ann, bob = (make("keys", kind="access_token", user=user, project="default")["secret"] for user in users)
    bot = make("keys", kind="service", project=other)["secret"]
    limit_requests("user", users[0], 2)
    limit_requests("project", other, 6)
    acted = [ask(bot, **{"x-user-id": user}) for user in users for _ in range(3)]
    assert [reply.status_code for reply in acted] == [200] * 6
    assert [ask(ann).status_code for _ in range(3)] == [200, 200, 429]
    for reply in acted:
        assert place.entry(reply.headers["x-request-id"])["user"] in users
    limit_requests("user", users[1], 2)
    assert [ask(bob).status_code for _ in range(3)] == [200, 200, 429]
    refused = ask(bot, **{"x-user-id": users[1]})
    assert refused.status_code == 429 and f"the project Other ({other})" in refused.json()["error"]["message"]


def test_each_share_warns_once_over_processes_and_a_crash(restarted: Restarted) -> None:
    server, receiver = restarted.server, restarted.receiver
    assert generate(server, restarted.key, 10) == {200: 8, 429: 2}
    wait_until(lambda: len(list_warnings(receiver)) >= 3, SOON, "the other warnings")
    require_reported(restarted)
    *earlier, (share, used, amount) = list_warnings(receiver)
    assert earlier == [(0.5, "10", "20"), (0.8, "16", "20")]
    assert (share, amount) == (1.0, "20")
    assert used in ("19", "20"), "the refusal may come before the last request is settled"
    headers, body, message = list_messages(receiver)[1]
    assert message["type"] == "budget.warning"
    assert "80 % of its budget: 16 of 20 requests per month" in message["text"]
    assert message["data"]["window_begins"].endswith("-01T00:00:00Z")
    assert headers["webhook-id"].startswith(message["data"]["limit"])
    assert restarted.key.encode() not in body


def require_reported(restarted: Restarted) -> None:
    """The log and the numbers of this server have what it warned of."""
    server, receiver = restarted.server, restarted.receiver
    limit = list_messages(receiver)[0][2]["data"]["limit"]

    def list_shares() -> list[object]:
        return [each["share"] for each in server.records("budget_warning") if each["limit"] == limit]

    wait_until(lambda: len(list_shares()) >= 2, SOON, "the log has both")
    assert list_shares() == [0.8, 1.0]
    with server.client(headers=_read_operator(restarted.home)) as client:

        def are_counted() -> bool:
            """The receiver has a message before the server has its answer. The first was another server's."""
            delivered = f'antiphon_webhooks_total{{outcome="delivered"}} {len(receiver.arrived) - 1}.0'
            return delivered in client.get("/metrics").text

        wait_until(are_counted, SOON, "all are counted")
        page = client.get("/metrics").text
    for share in ("0.8", "1.0"):
        labels = f'measure="requests",share="{share}",subject="project",window="month"'
        lines = [line for line in page.splitlines() if line.startswith("antiphon_budget_warnings_total{")]
        assert any(set(labels.split(",")) == set(line[31:-5].split(",")) for line in lines), lines
    assert SECRET not in "\n".join(server.lines) and "/hook" not in "\n".join(server.lines)
